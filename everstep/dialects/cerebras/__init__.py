"""Documents of Cerebras: recognised, and not read yet."""
