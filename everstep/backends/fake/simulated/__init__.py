"""What the fake cluster consists of, and what happens to it over virtual time."""
