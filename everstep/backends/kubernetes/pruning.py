"""Remove records of jobs that ended long ago, and unused agents: ConfigMaps that nothing else removes.

A record is removed only if nothing is left of its job, its workflow ended before a time, and the record is as
it was read. A job of the same ID that begins later gets generations above those that the
fences of its folders name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused
from everstep.backends.kubernetes.books import JobDocument, stored_in
from everstep.backends.kubernetes.identity import stored_identity
from everstep.backends.kubernetes.pod_facts import seconds
from everstep.backends.kubernetes.reaching import allowing
from everstep.backends.tools import JobRecordLeft, WorkflowEndOf
from everstep.core.errors import BackendUnavailable
from everstep.core.world import JobRef, Leftover

LATE_S = 3_600.0
"""An activity that a closed workflow began has its end by then: without the record its orders would not be
refused."""
LATELY = "ended lately"
_OF_EVERSTEP = {"labelSelector": f"{names.MANAGED_BY}={names.EVERSTEP}"}
CHANGED = "the job was begun again meanwhile"


async def prune(
    api: KubernetesApi,
    namespaces: Iterable[str],
    end_of: WorkflowEndOf,
    *,
    before: float,
    is_dry_run: bool,
) -> list[JobRecordLeft]:
    """Every record of a job. Jobs of the first namespace name none. Raises Refused, Unreachable."""
    default, *further = namespaces
    records = []
    for namespace in (default, *further):
        maps = f"/api/v1/namespaces/{namespace}/configmaps"
        books = await stored_identity(api, namespace)
        if books is None:  # no worker was ever here
            continue
        query = {"labelSelector": f"{names.selector(books)},{names.ROLE}=job"}
        config_maps = [one async for one in api.items(maps, query)]
        # A worker changes the record before it creates a pod, so the deletion below is refused if one comes.
        pods = await _pods(api, namespace)
        with_pods = {pod["metadata"].get("labels", {}).get(names.JOB, "") for pod in pods}
        for config_map in config_maps:
            record = await _looked_at(
                config_map, with_pods, end_of, namespace="" if namespace == default else namespace
            )
            record = replace(record, namespace=namespace)
            if record.reason is None and (record.ended_at is None or record.ended_at >= before):
                record = replace(record, reason=LATELY)
            if record.reason is None and not is_dry_run:
                record = await _removed(api, f"{maps}/{record.name}", config_map, record)
            records.append(record)
    return records


async def _looked_at(
    config_map: Json, with_pods: Collection[str], end_of: WorkflowEndOf, *, namespace: str
) -> JobRecordLeft:
    metadata = config_map["metadata"]
    record = JobRecordLeft(
        name=metadata["name"],
        namespace=namespace,
        job=metadata.get("annotations", {}).get(names.JOB, ""),
        size=sum(map(len, (config_map.get("data") or {}).values())),
        ended_at=None,
    )
    try:
        document = stored_in(config_map).document
    except BackendUnavailable:
        return replace(record, reason="it is not as Everstep wrote it")
    record = replace(record, job=document.record.id)
    if metadata.get("deletionTimestamp"):
        return replace(record, reason="it is being deleted")
    if why := _rest_of(document, with_pods):
        return replace(record, reason=why)
    job = JobRef(id=record.job, run=document.record.newest_run, namespace=namespace)
    end = await end_of(Leftover(job=job, server=document.record.server))
    if end.doubt:
        return replace(record, reason=end.doubt)
    return replace(record, ended_at=max(end.at or 0.0, _written_at(metadata)))


def _rest_of(document: JobDocument, with_pods: Collection[str]) -> str | None:
    """What the cluster may still have of the job; None: nothing."""
    if names.job_label(document.record.id) in with_pods:
        return "a pod of the job is there"
    if document.pods:
        return "a pod of the job may still run"
    if document.has_objects:
        return "the job is not removed yet"
    return None


def _written_at(metadata: Json) -> float:
    """When the record was changed last: the API server notes it beside the field that was written."""
    times = [field["time"] for field in metadata.get("managedFields", ()) if field.get("time")]
    return max(map(seconds, [*times, metadata["creationTimestamp"]]))


async def _removed(
    api: KubernetesApi, path: str, config_map: Json, record: JobRecordLeft
) -> JobRecordLeft:
    """The record, with the reason if it was not removed because it is not the one that was read.

    One that is gone is removed.
    """
    metadata = config_map["metadata"]
    as_read = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    try:
        await api.delete(path, {"preconditions": as_read})
    except Refused as error:
        if error.status == 409:
            return replace(record, reason=CHANGED)
        if error.status != 404:
            raise
    return record


# -- Agents ---------------------------------------------------------------------------------------


async def prune_agents(
    api: KubernetesApi, namespaces: Iterable[str], *, before: float, is_dry_run: bool
) -> list[str]:
    """Remove each agent that was made before this time and that no pod has mounted; return their names.

    A worker makes its own again before it creates pods, and after that. Raises Refused, Unreachable,
    BackendUnavailable.
    """
    removed = []
    for namespace in namespaces:
        maps = f"/api/v1/namespaces/{namespace}/configmaps"
        config_maps = [one async for one in api.items(maps, _OF_EVERSTEP)]
        mounted = _mounted(await _pods(api, namespace))
        for config_map in config_maps:
            metadata = config_map["metadata"]
            is_old = seconds(metadata["creationTimestamp"]) < before
            if not names.is_agent(metadata["name"]) or not is_old or metadata["name"] in mounted:
                continue
            if is_dry_run or await _is_agent_removed(api, namespace, config_map):
                removed.append(metadata["name"])
    return removed


async def _is_agent_removed(api: KubernetesApi, namespace: str, config_map: Json) -> bool:
    """Remove the agent, unless a new pod mounts it by now, whose worker saw it: then it is made again."""
    maps, metadata = f"/api/v1/namespaces/{namespace}/configmaps", config_map["metadata"]
    await allowing(api.delete(f"{maps}/{metadata['name']}"), 404)
    if metadata["name"] not in _mounted(await _pods(api, namespace)):
        return True
    same = {key: metadata[key] for key in ("name", "labels")}
    await allowing(api.create(maps, {**config_map, "metadata": same}), 409)
    return False


def _mounted(pods: Iterable[Json]) -> set[str]:
    """The ConfigMaps that these pods mount."""
    volumes = (volume for pod in pods for volume in pod["spec"].get("volumes") or ())
    return {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}


async def _pods(api: KubernetesApi, namespace: str) -> Sequence[Json]:
    return [one async for one in api.items(f"/api/v1/namespaces/{namespace}/pods", _OF_EVERSTEP)]
