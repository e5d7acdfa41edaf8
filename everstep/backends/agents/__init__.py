"""What every cluster of agents does alike, over its two ports: the books of its jobs, and its pods."""
