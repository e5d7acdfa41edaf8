"""Kinds of job documents, a folder each: `registry` reads one, `asked` answers for a job.

Nothing is imported here: views and variables of a dialect are for workflows and agents' commands, which
do without its shapes.
"""
