"""Trainer configurations of Cerebras' Model Zoo, and what restarts them."""
