"""Done ahead of a restart: imports, by a helper whose forks become ranks, and tries of fewer nodes."""
