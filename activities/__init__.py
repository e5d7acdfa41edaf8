"""Verbs of the workflows, a few lines each: the backend is injected, nothing is decided here."""
