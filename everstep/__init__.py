"""Everstep: a training job that takes its next step whatever breaks."""

__version__ = "0.1.0"
