"""Documents of MindCluster: recognised, and not read yet."""
