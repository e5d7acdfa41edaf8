"""Documents of ModelArts, what their annotations switch on, and how a job looks there."""
