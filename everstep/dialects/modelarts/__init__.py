"""Documents of ModelArts, what their annotations switch on, and how a job looks there."""

NAME = "modelarts"
"""The name of this shape in the query `status`, and its key in the memo."""
