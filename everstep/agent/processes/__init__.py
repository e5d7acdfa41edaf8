"""The processes of a pod: how they start, who belongs to them, how all of them are ended."""
