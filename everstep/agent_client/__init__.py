"""The worker's side of an agent: sends requests, watches its state, turns that into facts. For any cluster.

A backend adds where pods come from, how an agent is reached, and when it is proven gone.
"""
