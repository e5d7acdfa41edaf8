"""The books of the local cluster. Each function is part of a transaction."""
