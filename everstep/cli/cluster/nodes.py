"""Commands about machines: `nodes`, `isolate` and `release`. All query the quarantine of a cluster.

The nodes of this machine come from its books as well, which need no worker.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from temporalio.client import Client

from everstep.backends.tools import SilentAgent
from everstep.cli import completion, pages
from everstep.cli.cluster.cluster_choice import cluster_of_node, only_cluster
from everstep.cli.cluster.living_jobs import avoidances_known, by_node, device_use_known
from everstep.cli.output import AsJson, not_empty, show, shown
from everstep.cli.server import with_server
from everstep.client import machine
from everstep.client.connection import UnlessAbsent
from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs.answers import NoResponse, send_update
from everstep.client.jobs.found_job import find
from everstep.client.quarantine import quarantined_nodes
from everstep.core import names
from everstep.core.errors import BackendUnavailable, CommandRejected, InvalidSpec
from everstep.core.world import NodeView

ClusterOption = Annotated[
    str | None,
    typer.Option(
        callback=not_empty, help="The name of the cluster; else the only one that has the node."
    ),
]

BLANK: dict[str, Any] = dict.fromkeys(
    (
        *("name", "state", "reason", "by", "since", "until", "jobs", "devices", "silent", "counts"),
        *("maintenance", "avoided_by", "failing", "devices_used", "device_use"),
    )
)
"""The pinned keys of a node; null where unknown."""


def nodes(
    cluster: Annotated[
        str | None,
        typer.Option(
            callback=not_empty, help="The name of the cluster; else the only one, or local."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the nodes of this machine or, by its kubeconfig, of a cluster, and which of them are isolated.

    Nodes with device faults that are counted are printed too: how often, and how many isolate the device.
    So are nodes that jobs avoid: why, and until when. Use and memory of the devices of jobs stand below.
    """

    async def all_of(client: Client) -> list[dict[str, Any]]:
        return await _rows(client, await only_cluster(client, cluster))

    show(with_server(all_of), pages.nodes, as_json=as_json)


async def _rows(client: Client, cluster: str) -> list[dict[str, Any]]:
    """A row for each node of the cluster."""
    here = {node["name"]: node for node in await _in_cluster(cluster)}
    isolated: dict[str, dict[str, Any]] = {}
    for row in await _quarantined_nodes(client, cluster, is_alone=not here):
        isolated[row["name"]] = {**isolated.get(row["name"], {}), **row}
    avoided = by_node(await avoidances_known(client, cluster))
    used = by_node(await device_use_known(client, cluster))
    return [
        {
            **_joined(isolated.get(name, {}), here.get(name, {})),
            "name": name,
            "avoided_by": [_avoidance(row) for row in avoided.get(name, ())],
            "device_use": used.get(name, []),
        }
        for name in {**here, **isolated, **avoided, **used}
    ]


def _avoidance(row: dict[str, Any]) -> dict[str, Any]:
    """The row below its node."""
    return {key: row[key] for key in ("job", "why", "since", "until")}


def _joined(isolated: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """One row of both: the quarantine's values for an isolation, the books' for all else."""
    first, last = (here, isolated) if isolated.get("state") == "isolated" else (isolated, here)
    return {**BLANK, **first, **{key: value for key, value in last.items() if value is not None}}


async def _in_cluster(cluster: str) -> list[dict[str, Any]]:
    """The nodes as the cluster itself shows them, where it can be reached from here."""
    if machine.has_pods(cluster):
        return await _in_pods_cluster(cluster)
    if not machine.is_here(cluster):
        return []
    with machine.database_can_be_read():
        views = await machine.tools().nodes()
        silent = await machine.tools().silent_agents()
    return [row_of(node, [agent for agent in silent if agent.node == node.name]) for node in views]


async def _in_pods_cluster(cluster: str) -> list[dict[str, Any]]:
    try:
        return [row_of(node, []) for node in await machine.tools(cluster).nodes()]
    except (BackendUnavailable, InvalidSpec) as error:  # the quarantine has its part all the same
        print(f"note: only isolated nodes are shown: {shown(str(error))}", file=sys.stderr)
        return []


def row_of(node: NodeView, silent: list[SilentAgent]) -> dict[str, Any]:
    """What is shown of a node as its cluster sees it."""
    devices = [
        {"index": d.index, "health": d.health, "codes": list(d.codes), "job": d.job}
        for d in node.devices
    ]
    used = sum(d.job is not None for d in node.devices)
    state = "isolated" if node.isolated else "ready" if node.ready else "down"
    service = {"state": state, "reason": node.reason or None, "jobs": list(node.jobs)}
    service["maintenance"] = node.maintenance or None
    return {
        "name": node.name,
        **service,
        "devices": devices,
        "devices_used": used if node.devices_used is None else node.devices_used,
        "silent": list(map(str, silent)),
    }


NODE = {"metavar": "NODE[/DEVICE]", "help": "The node's name, or a device of it: n2/3."}
Node = Annotated[str, typer.Argument(**NODE, autocompletion=completion.node_names)]
IsolatedNode = Annotated[str, typer.Argument(**NODE, autocompletion=completion.isolated_nodes)]


def isolate(
    node: Node,
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
    until: Annotated[
        str, typer.Option(help="When it is released: 2026-01-31T12:00:00Z; else by `release`.")
    ] = "",
    cluster: ClusterOption = None,
    as_json: AsJson = False,
) -> None:
    """Let no new pod have a node, or one device of it. What runs there goes on.

    It stays so until it is released, whatever becomes of the node meanwhile.
    """
    _check_name(node)
    request = {"node": node, **{k: v for k, v in (("reason", reason), ("until", until)) if v}}

    async def isolated(client: Client) -> dict[str, Any]:
        place = await cluster_of_node(client, node, cluster)
        await _quarantine(client, place)
        answer = await _update(client, place, "isolate", request)
        if answer["note"]:
            print(f"note: {shown(answer['note'])}", file=sys.stderr)
        if await _is_absent(node, place):
            note = f"cluster {place} has no {node} now; `everstep nodes` shows what it has"
            print(f"note: {shown(note)}", file=sys.stderr)
        return {"node": node, "cluster": place, "isolated": True, "why": answer["why"]}

    show(with_server(isolated), pages.isolated, as_json=as_json)


def _check_name(node: str) -> None:
    # Loads the rules, for `isolate` alone.
    from everstep.core.node_names import check_place

    try:
        check_place(node, command="isolate")
    except CommandRejected as error:
        raise Failed(Exit.USAGE, str(error)) from None


async def _update(client: Client, cluster: str, update: str, request: dict[str, Any]) -> Any:
    """The quarantine's answer. Where it waits for the cluster, `Failed` says so: its worker is there."""
    try:
        return await send_update(client, names.quarantine_id(cluster), update, request)
    except NoResponse as silence:
        rows = await _rows_without_answer(client, cluster, silence)
    node = request["node"]
    why = next((row["failing"] for row in rows if row["name"] == node and row.get("failing")), "")
    because = f" ({why})" if why else ""
    raise Failed(
        Exit.UNREACHABLE,
        f"{update} {node} waits for cluster {cluster}{because}: it is noted and tried again; `everstep "
        f"nodes --cluster {cluster}` shows it, `everstep release {node} --cluster {cluster}` withdraws it",
    )


async def _rows_without_answer(
    client: Client, cluster: str, silence: NoResponse
) -> list[dict[str, Any]]:
    """The rows of a quarantine that gave an update no answer; `silence` if it answers no query either."""
    try:
        return await quarantined_nodes(client, cluster)
    except NoResponse:
        raise silence from None


async def _is_absent(node: str, cluster: str) -> bool:
    """Whether the cluster has nothing of this name, as far as it can be reached from here."""
    name, slash, device = node.partition("/")
    try:
        views = await machine.tools(cluster).nodes()
    except (BackendUnavailable, InvalidSpec, ValueError):  # or this command is not told where it is
        return False
    view = next((view for view in views if view.name == name), None)
    if view is None or not view.devices:
        return bool(views) and view is None
    return slash != "" and device not in {str(each.index) for each in view.devices}


async def _quarantine(client: Client, cluster: str) -> None:
    """Start the cluster's quarantine if it is not there."""
    # Loads the rules, for `isolate` alone.
    from activities.quarantine_client import start_options

    await client.start_workflow(
        names.NODE_QUARANTINE, {"cluster": cluster}, **start_options(cluster)
    )


def release(
    node: IsolatedNode,
    cluster: ClusterOption = None,
    job: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Only for this job, which avoids it.", callback=not_empty),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let an isolated node or device be used again, also by the jobs that avoid the node.

    With --job an isolated node stays isolated, and other jobs go on avoiding it.
    """
    if job is not None:
        place = with_server(lambda client: _release_of_job(client, job, node))
        answer = {"node": node, "cluster": place, "released": True, "jobs": [job]}
        show(answer, pages.released, as_json=as_json)
        return

    async def released(client: Client) -> dict[str, Any]:
        place = await cluster_of_node(client, node, cluster)
        was_isolated = await _release(client, place, node)
        jobs = await _release_for_jobs(client, place, node)
        if not was_isolated and not jobs:
            hint = f"`everstep nodes --cluster {place}` shows which are"
            what = f"{node} is not isolated on cluster {place}, and no job avoids it"
            raise Failed(Exit.NOT_FOUND, f"{what}; {hint}")
        return {"node": node, "cluster": place, "released": True, "jobs": jobs}

    show(with_server(released), pages.released, as_json=as_json)


async def _release_of_job(client: Client, job_id: str, node: str) -> str:
    """Have this job use the node again. Returns its cluster."""
    job = await find(client, job_id)
    await job.update("release", {"node": node})
    return str(job.attribute("TrainCluster") or machine.USUAL)


async def _release_for_jobs(client: Client, cluster: str, node: str) -> list[str]:
    """Have the jobs that avoid the node use it again. Returns those that did avoid it."""
    rows = await avoidances_known(client, cluster)
    jobs = [row["job"] for row in rows if row["node"] == node]
    return [job for job in jobs if await _release_for_job(client, job, node)]


async def _release_for_job(client: Client, job: str, node: str) -> bool:
    """As `_release_for_jobs`, for one. It may have ended since it was listed."""
    with UnlessAbsent():
        try:
            await send_update(client, job, "release", {"node": node})
        except Failed as error:
            if error.code is not Exit.USAGE:
                raise
            return False  # it does not avoid the node any more
        return True
    return False


async def _quarantined_nodes(
    client: Client, cluster: str, *, is_alone: bool
) -> list[dict[str, Any]]:
    """The same; with a note instead of them if no worker answers, unless nothing else is to be shown."""
    try:
        return await quarantined_nodes(client, cluster)
    except NoResponse as error:
        if is_alone:
            raise
        print(f"note: which nodes are isolated is not known: {shown(str(error))}", file=sys.stderr)
        return []


async def _release(client: Client, cluster: str, node: str) -> bool:
    with UnlessAbsent():
        answer = await _update(client, cluster, "release", {"node": node})
        return bool(answer["released"])
    return False
