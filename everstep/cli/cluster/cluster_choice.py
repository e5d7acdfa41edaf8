"""Which cluster a command about nodes is for where `--cluster` does not say it."""

from __future__ import annotations

import asyncio

from temporalio.client import Client

from everstep.cli.cluster.living_jobs import avoidances_known
from everstep.client import machine
from everstep.client.connection import UnlessAbsent, of_each, unless_denied
from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs.answers import NoResponse, send_query
from everstep.core import names
from everstep.core.errors import BackendUnavailable, InvalidSpec

ANSWER_S = 3.0
"""Longest wait for what one cluster has."""

SEVERAL = "{node} is a node of clusters {clusters}: name one with --cluster"
NONE = "none of clusters {clusters} shows a node {node}: name one with --cluster"
WHICH = "there are clusters {clusters}: name one with --cluster"


async def cluster_of_node(client: Client, node: str, cluster: str | None) -> str:
    """The cluster as given, else the only one that has this node. Raises `Failed` if several have it."""
    if cluster is not None:
        return cluster
    clusters = await _clusters(client)
    if len(clusters) < 2:
        return next(iter(clusters), machine.USUAL)
    name, _, _ = node.partition("/")
    has_node = await of_each(clusters, lambda each: _has_node(client, each, name))
    owners = [each for each, has in zip(clusters, has_node, strict=True) if has]
    if len(owners) != 1:
        problem = SEVERAL if owners else NONE
        joined = " and ".join(owners or clusters)
        raise Failed(Exit.USAGE, problem.format(node=node, clusters=joined))
    return owners[0]


async def only_cluster(client: Client, cluster: str | None) -> str:
    """The cluster as given, else the only one; of several that of this machine."""
    if cluster is not None:
        return cluster
    clusters = await _clusters(client)
    if len(clusters) < 2:
        return next(iter(clusters), machine.USUAL)
    if machine.USUAL in clusters:
        return machine.USUAL
    raise Failed(Exit.USAGE, WHICH.format(clusters=" and ".join(clusters)))


async def _clusters(client: Client) -> list[str]:
    """Clusters with a quarantine, a janitor or a job on the server, and this machine's if it has nodes."""
    listed = await unless_denied(_listed(client), [], note="other clusters are not known")
    here = [machine.USUAL] if await _nodes_by_its_machine(machine.USUAL) else []
    return sorted({*listed, *here})


async def _listed(client: Client) -> list[str]:
    kinds = " OR ".join(
        f"WorkflowType = '{kind}'"
        for kind in (names.NODE_QUARANTINE, names.JANITOR, names.TRAINING_JOB)
    )
    clusters = []
    async for row in client.list_workflows(f"({kinds}) AND ExecutionStatus = 'Running'"):
        if row.workflow_type == names.TRAINING_JOB:
            attributes = row.typed_search_attributes.search_attributes
            clusters += [pair.value for pair in attributes if pair.key.name == "TrainCluster"]
        else:
            clusters.append(row.id.partition("/")[2])
    return clusters


async def _has_node(client: Client, cluster: str, node: str) -> bool:
    """Whether the cluster, its quarantine, or a job there that avoids the node shows it."""
    if node in await _nodes_by_its_machine(cluster):
        return True
    if node in {row["node"].partition("/")[0] for row in await avoidances_known(client, cluster)}:
        return True
    return node in await _isolated_nodes(client, cluster)


async def _nodes_by_its_machine(cluster: str) -> set[str]:
    """The nodes of this machine, or of the cluster of the kubeconfig; none where it cannot be reached."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return {node.name for node in await machine.tools(cluster).nodes()}
    except (BackendUnavailable, InvalidSpec, ValueError, TimeoutError):
        return set()


async def _isolated_nodes(client: Client, cluster: str) -> set[str]:
    """As the quarantine has them; none where it does not answer in time."""
    with UnlessAbsent():
        try:
            async with asyncio.timeout(ANSWER_S):
                rows = await send_query(
                    client, names.quarantine_id(cluster), "nodes", {"counts": True}
                )
                return {row["name"].partition("/")[0] for row in rows}
        except (NoResponse, TimeoutError):
            pass
    return set()
