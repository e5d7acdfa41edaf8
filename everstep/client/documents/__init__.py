"""Documents and commands of this machine, on their way to a job."""
