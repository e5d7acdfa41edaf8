"""Files and folders that others may write to: fences, checkpoints, what is ours alone."""
