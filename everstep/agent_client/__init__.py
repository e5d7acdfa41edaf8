"""The worker's side of an agent: asking it, watching it, telling what it says. Knows no cluster.

A backend adds where pods come from: how each agent is reached, and how one knows that it is gone.
"""
