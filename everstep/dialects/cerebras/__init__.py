"""Trainer configurations of Cerebras' Model Zoo, and what restarts them."""

COMMAND = "everstep.command"
"""The field of its command, as messages name it."""
