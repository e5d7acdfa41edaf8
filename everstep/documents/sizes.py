"""Whether a job is small enough for a server: what it was read as may be larger than its document."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from everstep.core.bounds import JOB_MOST, weight
from everstep.core.spec import JobSpec
from everstep.documents.problems import refusal

LARGE = "comes to {size:.1f} MB when it is read; a job may have {most:.1f} MB: keep data in files"


def fitting(document: dict[str, Any], spec: JobSpec) -> JobSpec:
    """The job itself, once it is known that a server takes it."""
    size = weight(document) + len(to_json(spec))
    if size <= JOB_MOST:
        return spec
    raise refusal([("document", LARGE.format(size=size / 1e6, most=JOB_MOST / 1e6))])
