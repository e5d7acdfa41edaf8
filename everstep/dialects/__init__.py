"""Kinds of job documents, a folder each: `registry` compiles one, `responses` has the JSON of a job.

This module imports nothing: workflows and commands of agents need a dialect's views and variables without
its shapes.
"""
