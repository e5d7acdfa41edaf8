"""The start of ranks: every agent of the order is told its own, all of them one place to meet."""

from __future__ import annotations

import asyncio

from everstep.agent import wire
from everstep.agent_client import environment, ranks
from everstep.backends.local.cluster import LocalCluster
from everstep.backends.local.database import books, pods
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db
from everstep.backends.local.settings import HOST
from everstep.core.world import StartOrder, StartState
from everstep.processes import free_port


async def ensure(cluster: LocalCluster, order: StartOrder) -> StartState:
    """Start what does not run yet; the folders of the order are absolute."""
    own, port = await cluster.store.run(lambda db: _pods_and_port(db, order))
    meeting = ranks.Meeting(hosts=(HOST,) * len(order.slots), port=port)
    slots = sorted(order.slots)
    answers = await asyncio.gather(
        *(_start(cluster, own.get(slot), slot, order, meeting) for slot in slots)
    )
    return ranks.state_of(dict(zip(slots, answers, strict=True)))


def _pods_and_port(db: Db, order: StartOrder) -> tuple[dict[int, Pod], int]:
    """The port of this generation is the same for every slot and whoever asks."""
    books.owned(db, order.job, order.generation)
    db.execute(
        "UPDATE jobs SET checkpoints_path = ?, checkpoints_format = ? WHERE id = ?",
        (order.checkpoints_path, order.checkpoints_format, order.job.id),
    )
    asked = (order.job.id, order.generation)
    db.execute("INSERT INTO ports VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (*asked, free_port()))
    row = db.execute("SELECT port FROM ports WHERE job = ? AND generation = ?", asked).fetchone()
    return {pod.slot: pod for pod in pods.of_job(db, order.job.id)}, row["port"]


async def _start(
    cluster: LocalCluster, pod: Pod | None, slot: int, order: StartOrder, meeting: ranks.Meeting
) -> wire.RunSeen | str | None:
    """The run of this generation, or why there can be none; None if nobody there knows of it."""
    if pod is None or pod.is_lost or pod.service != "ready":
        return None

    def command() -> wire.RunCommand | str:
        why = environment.lacking(cluster.settings.environ, order.env_from)
        return why or _command(cluster, pod, slot, order, meeting)

    return await ranks.run_of(cluster.agents, pod.uid, order.generation, command)


def _command(
    cluster: LocalCluster, pod: Pod, slot: int, order: StartOrder, meeting: ranks.Meeting
) -> wire.RunCommand:
    here = cluster.settings
    place = ranks.RunPlace(
        uid=pod.uid,
        agent=str(here.folder(pod.uid).path / wire.SOCKET),
        devices=pod.devices,
        accelerator=here.kind(order.accelerator),
        metrics=str(here.metrics(pod.node)),
    )
    settings = ranks.RankSettings(
        cluster=cluster.identity,
        fence_s=here.fence_s,
        environ=here.environ,
        pass_env=here.pass_env,
    )
    return ranks.run_command(order, slot, place, meeting=meeting, settings=settings)
