"""The identity of the books of a cluster: one ConfigMap in each namespace of workers or of their jobs.

Every object of a job is labelled with it. Where the ConfigMap of the workers was deleted, the identity is
that of the jobs' records, so that these stay the workers' own.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import KubernetesApi, Refused, Unreachable
from everstep.core.errors import BackendUnavailable

logger = logging.getLogger(__name__)

CLUSTER = "everstep-books"
"""The ConfigMap that marks a namespace as that of workers, and names its books."""
_IDENTITY = "identity"
_WORKERS = "workers"  # their namespace
_NAMESPACES = (
    "namespaces"  # of jobs, if not that of the workers alone; first that of jobs that name none
)
_RECORDS = {"labelSelector": f"{names.MANAGED_BY}={names.EVERSTEP},{names.ROLE}=job,{names.BOOKS}"}
# The ConfigMap listed the isolated nodes too (`books.isolations`).
MADE_AGAIN = "ConfigMap %s was deleted and is made again: nodes isolated so far are in use again"
_JOBS_NAMED = 3  # in an error
_NO_IDENTITY = (
    f"ConfigMap {CLUSTER} of namespace {{namespace}} has no `{_IDENTITY}`. Delete it: a worker that starts"
    " makes it again, with the identity that the records of jobs name"
)
_UNREADABLE = (
    f"namespace {{namespace}} has no ConfigMap {CLUSTER}, and records of jobs, which may name its identity,"
    " cannot be read: {error}"
)

JobsByIdentity = Mapping[str, Sequence[str]]


async def open_books(api: KubernetesApi, namespace: str, job_namespaces: Sequence[str] = ()) -> str:
    """Return the identity of the books of the workers in this namespace; made once.

    Raises BackendUnavailable where it was deleted and the records of jobs name several or cannot be read, or
    where books do not name their workers.
    """
    if (stored := await stored_identity(api, namespace)) is not None:
        return stored
    try:
        jobs = await _jobs_by_identity(api, namespace, job_namespaces)
    except Refused as error:
        raise BackendUnavailable(_UNREADABLE.format(namespace=namespace, error=error)) from None
    if len(jobs) > 1:
        raise BackendUnavailable(_disagreement(namespace, jobs))
    if jobs:
        logger.warning(MADE_AGAIN, CLUSTER)
    identity = next(iter(jobs), secrets.token_hex(3))
    return await ensure_identity(api, namespace, identity, workers=namespace)


async def ensure_identity(
    api: KubernetesApi, namespace: str, identity: str, *, workers: str
) -> str:
    """Return the identity of the books in this namespace: this one, unless there was another.

    `workers`: the namespace of the workers.
    """
    metadata = {"name": CLUSTER, "labels": {names.MANAGED_BY: names.EVERSTEP}}
    body = {"metadata": metadata, "data": {_IDENTITY: identity, _WORKERS: workers}}
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    try:
        config_map = await api.create(maps, body)
    except Refused as error:
        if error.status != 409 or (stored := await stored_identity(api, namespace)) is None:
            raise
        return stored
    return str(config_map["data"][_IDENTITY])


async def ensure_namespaces_stored(
    api: KubernetesApi, home: str, namespaces: Sequence[str]
) -> None:
    """Store where the workers of this namespace make pods, for commands that have no setting of it."""
    stored = await _entries(api, home) or {}
    value = None if [*namespaces] == [home] else json.dumps([*namespaces])
    if stored.get(_NAMESPACES) != value:
        path = f"/api/v1/namespaces/{home}/configmaps/{CLUSTER}"
        await api.patch(path, {"data": {_NAMESPACES: value}})


async def stored_namespaces(api: KubernetesApi, home: str) -> Sequence[str]:
    """Return where the workers of this namespace make pods; their own where that cannot be read."""
    try:
        entries = await _entries(api, home) or {}
        namespaces = json.loads(entries.get(_NAMESPACES, "[]"))
    except (BackendUnavailable, Refused, Unreachable, ValueError):
        return [home]
    is_list = isinstance(namespaces, list) and all(isinstance(one, str) for one in namespaces)
    return (namespaces if is_list else []) or [home]


async def stored_identity(api: KubernetesApi, namespace: str) -> str | None:
    """Return the identity of the books in this namespace; None: it has none."""
    entries = await _entries(api, namespace)
    return None if entries is None else str(entries[_IDENTITY])


async def _entries(api: KubernetesApi, namespace: str) -> Mapping[str, str] | None:
    config_map = await api.find(f"/api/v1/namespaces/{namespace}/configmaps/{CLUSTER}")
    if config_map is None:
        return None
    entries: Mapping[str, str] = config_map.get("data") or {}
    if not entries.get(_IDENTITY):
        raise BackendUnavailable(_NO_IDENTITY.format(namespace=namespace))
    return entries


async def _jobs_by_identity(
    api: KubernetesApi, namespace: str, job_namespaces: Sequence[str]
) -> JobsByIdentity:
    """Return the identities in the records of jobs, each with its jobs.

    A namespace of jobs counts unless its own books name other workers. Raises BackendUnavailable where they
    name none.
    """
    jobs = defaultdict[str, list[str]](list)
    for name in dict.fromkeys((namespace, *job_namespaces)):
        entries = await _entries(api, name)
        if entries is not None:
            if not (workers := entries.get(_WORKERS)):
                raise BackendUnavailable(_no_workers(name, namespace))
            if workers != namespace:
                continue
            jobs[entries[_IDENTITY]] += []
        maps = f"/api/v1/namespaces/{name}/configmaps"
        async for config_map in api.items(maps, _RECORDS):
            metadata = config_map["metadata"]
            job = metadata.get("annotations", {}).get(names.JOB, metadata["name"])
            jobs[metadata["labels"][names.BOOKS]].append(job)
    return jobs


def _no_workers(job_namespace: str, namespace: str) -> str:
    """Return the error, with the command that ends it."""
    entries = json.dumps({"data": {_WORKERS: namespace}})
    command = f"kubectl -n {job_namespace} patch configmap {CLUSTER} --type merge -p '{entries}'"
    return (
        f"ConfigMap {CLUSTER} of namespace {job_namespace} has no `{_WORKERS}`, so its jobs may be those of"
        f" other workers. If they are yours: {command}. If not, serve that namespace no longer"
    )


def _disagreement(namespace: str, jobs: JobsByIdentity) -> str:
    """Return the error, with the command that ends it."""
    rows = (f"{identity} ({_some_of(jobs[identity])})" for identity in sorted(jobs))
    command = f"kubectl -n {namespace} create configmap {CLUSTER} --from-literal={_IDENTITY}=..."
    return (
        f"ConfigMap {CLUSTER} was deleted, and the records of jobs name several identities:"
        f" {'; '.join(rows)}. Make it again with the one of the jobs that run: {command}"
    )


def _some_of(jobs: Sequence[str]) -> str:
    rest = len(jobs) - _JOBS_NAMED
    return ", ".join(jobs[:_JOBS_NAMED]) + (f" and {rest} more" if rest > 0 else "")
