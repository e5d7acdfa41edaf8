"""What objects of ours are called, and how they are labelled. Pure."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

PREFIX = "everstep.dev/"
JOB = f"{PREFIX}job"  # as a label: a readable form of the ID; as an annotation: the ID
SLOT = f"{PREFIX}slot"
GENERATION = f"{PREFIX}generation"
PHASE = f"{PREFIX}phase"
BOOKS = f"{PREFIX}books"  # the identity of the books that the object belongs to
KEEPS_OFF = f"{PREFIX}keeps-off"  # short forms of the hosts that the pod may not land on
ROLE = f"{PREFIX}role"  # what the object is for
IN_USE = f"{PREFIX}in-use"  # of a record whose job has pods, or may have
RELEASER = "releaser"  # a role of pods
COMPONENT = f"{PREFIX}component"  # of pods that are no job's
WORKER = "worker"  # a component
MANAGED_BY = "app.kubernetes.io/managed-by"
EVERSTEP = "everstep"

_LABEL_MOST = 63
_JOB_MOST = 40  # of 63 characters: a slot and a generation follow
_HASH_DIGITS = 8
_HAS_HASH = re.compile(rf".*-[0-9a-f]{{{_HASH_DIGITS}}}")


@lru_cache(maxsize=4096)  # each look at a job needs it several times for each of its pods
def job_label(job: str) -> str:
    """A form of the job's ID that may be a label and a part of a name: two IDs never share one."""
    safe = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")[:_JOB_MOST].strip("-") or "job"
    if safe == job and not _HAS_HASH.fullmatch(job):  # it may be the label of another ID
        return safe
    return f"{safe}-{hashlib.sha256(job.encode()).hexdigest()[:_HASH_DIGITS]}"


def pod(job: str, *, slot: int, generation: int) -> str:
    return f"{job_label(job)}-{slot}-g{generation}"


def group(job: str, *, generation: int, number: int = 0) -> str:
    """The group of the pods of one generation. `number`: how many groups it gave up before."""
    return f"{job_label(job)}-g{generation}" + (f"-{number}" if number else "")


def releaser(job: str, *, generation: int) -> str:
    """The pod that releases the folders of an ended job."""
    return f"{job_label(job)}-release-g{generation}"


def standby(job: str, *, slot: int, generation: int, number: int) -> str:
    """A pod that stands by for a slot; another one has another number."""
    return f"{pod(job, slot=slot, generation=generation)}s{number}"


def record(job: str) -> str:
    """The ConfigMap that owns all other objects of a job."""
    return f"everstep-job-{job_label(job)}"


def secret(job: str) -> str:
    return f"everstep-agent-{job_label(job)}"


def policy(job: str) -> str:
    """The NetworkPolicy of a job's pods."""
    return f"everstep-job-{job_label(job)}"


def agent(content: bytes) -> str:
    """The ConfigMap with the agent: another agent is another object, old pods keep the one they have."""
    return f"everstep-agent-{hashlib.sha256(content).hexdigest()[:12]}"


def is_agent(name: str) -> bool:
    """Whether a ConfigMap of ours with this name has an agent."""
    return name.startswith("everstep-agent-")


def phase_label(phase: str) -> str:
    return phase[:_LABEL_MOST].rstrip("-._")  # a label ends with a letter or a digit


def labels(books: str, job: str) -> dict[str, str]:
    """The labels of every object of a job."""
    return {MANAGED_BY: EVERSTEP, BOOKS: books, JOB: job_label(job)}


def selector(books: str) -> str:
    """The label of the objects that belong to these books."""
    return f"{MANAGED_BY}={EVERSTEP},{BOOKS}={books}"
