"""Metrics of a worker: its own, and those of the Temporal SDK beside them. Off unless configured."""
