"""Closed payloads: what a Temporal server stores of a job is encrypted before it is sent there."""
