"""IDs of traces and spans, which follow from what they are of: every process makes the same."""

from __future__ import annotations

import hashlib


def trace_id(job_id: str, first_run: str) -> str:
    """32 hexadecimal digits: of a job, from its first run on."""
    return hashlib.sha256(f"{job_id}/{first_run}".encode()).hexdigest()[:32]


def span_id(job_id: str, first_run: str, key: str) -> str:
    """16 hexadecimal digits: of a span of this trace."""
    return hashlib.sha256(f"{job_id}/{first_run}/{key}".encode()).hexdigest()[:16]


def traceparent(job_id: str, first_run: str, key: str) -> str:
    """The W3C header, and variable TRACEPARENT, with this span as the parent; it is sampled."""
    return f"00-{trace_id(job_id, first_run)}-{span_id(job_id, first_run, key)}-01"
