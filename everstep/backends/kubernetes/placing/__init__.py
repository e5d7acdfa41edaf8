"""Orders to place pods, and what is of those pods. The scheduler of the cluster decides where they run."""
