"""A helper that has imported ahead what a training script needs, and whose forks become ranks."""
