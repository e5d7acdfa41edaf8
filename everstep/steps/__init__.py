"""Carry out the steps of a plan against a backend. They decide nothing and do not import Temporal.

The activities wrap them one by one; the simulator calls them directly. `perform` is the table.
"""
