"""The job among the Kubernetes objects of a file, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.dialects.overlays import BLOCK
from everstep.documents.merge import merged
from everstep.documents.problems import Problem, path, refusal

SWITCH = "fault-scheduling"
DEPLOYMENT_LABELS = frozenset({SWITCH, "ring-controller.atlas"})

KINDS = "an AscendJob, a Volcano Job, or a Deployment with the label fault-scheduling"


class JobObject(NamedTuple):
    """The job, where it is in the file, and the objects beside it."""

    value: dict[str, Any]
    at: str
    other_objects: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def is_job(value: object) -> bool:
    """Whether this object is a job that MindCluster looks after."""
    if not isinstance(value, Mapping):
        return False
    match value.get("kind"):
        case "AscendJob":
            return True
        case "Job":
            return str(value.get("apiVersion")).startswith("batch.volcano.sh/")
        case "Deployment":
            return bool(DEPLOYMENT_LABELS & {*_labels(value), *_labels(_template(value))})
        case _:
            return False


def is_list(document: Mapping[str, Any]) -> bool:
    """Whether this is a Kubernetes List: a file of several objects is read as one."""
    items = document.get("items")
    return document.get("kind") == "List" and isinstance(items, list)


def may_share(document: object) -> bool:
    """Whether this is a Kubernetes object, which may share its file with others."""
    if not isinstance(document, Mapping):
        return False
    version, kind = document.get("apiVersion"), document.get("kind")
    return isinstance(version, str) and isinstance(kind, str) and not version.startswith("everstep")


def job_object(document: dict[str, Any]) -> JobObject:
    """The one job of this document. Raises `InvalidSpec` where there is none, or more than one."""
    if not is_list(document):
        return JobObject(value=document, at="")
    items = [(path("items", i), item) for i, item in enumerate(document["items"])]
    for at, item in items:
        if not may_share(item):
            raise refusal([(at, "must be a Kubernetes object: it has apiVersion and kind")])
    jobs = [(at, item) for at, item in items if is_job(item)]
    if not jobs:
        kinds = ", ".join(str(item["kind"]) for _, item in items) or "nothing"
        raise refusal([("document", f"holds no job, only {kinds}: add {KINDS}")])
    if len(jobs) > 1:
        names = ", ".join(_name(item) for _, item in jobs)
        raise refusal([(jobs[1][0], f"is a second job ({names}): keep one in a file")])
    ((at, job),) = jobs
    other_objects = tuple(other for other in items if other[0] != at)
    return JobObject(merged(job, _block(document)), at, other_objects)


def _block(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The overlay of the whole file, which may stand beside the items: it is laid over the job's own."""
    return {} if document.get(BLOCK) is None else {BLOCK: document[BLOCK]}


def notes(job: JobObject) -> Iterator[Problem]:
    """A note for each object beside the job."""
    for at, other in job.other_objects:
        yield at, f"the {other['kind']} {_name(other)} has no effect: only the job is read"


def _name(value: Mapping[str, Any]) -> str:
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return str(name or "without a name")


def _template(value: Mapping[str, Any]) -> object:
    spec = value.get("spec")
    return spec.get("template") if isinstance(spec, Mapping) else None


def _labels(value: object) -> Sequence[str]:
    metadata = value.get("metadata") if isinstance(value, Mapping) else None
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return tuple(labels) if isinstance(labels, Mapping) else ()
