"""Pollers of a server: the workers behind a task queue, as the server remembers them."""

from __future__ import annotations

import math
import socket
import time
from dataclasses import dataclass

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from everstep.agent.processes import proc
from everstep.core import names

POLLED_S = 90.0
"""Seconds within which a living worker polls; the server remembers dead ones for longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A task queue and what is given out there."""

    name: str
    kind: TaskQueueType.ValueType


def needed(cluster: str) -> tuple[Queue, Queue]:
    """What a job on this cluster needs: the workflow queue, and the activity queue of its cluster."""
    return (
        Queue(name=names.TASK_QUEUE, kind=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW),
        Queue(name=names.cluster_queue(cluster), kind=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Poller:
    """A worker as the server remembers it."""

    polled_s_ago: float
    pid: int | None  # on this machine

    @property
    def is_stopped(self) -> bool:
        """A SIGSTOP, or a debugger."""
        process = None if self.pid is None else proc.find(self.pid)
        return process is not None and process.is_stopped

    @property
    def may_answer(self) -> bool:
        return self.polled_s_ago < POLLED_S and not self.is_stopped


async def polled_s_ago(there: Client, queue: Queue) -> float:
    """Seconds since a worker last polled here; infinite if none did."""
    return min((p.polled_s_ago for p in await recent(there, queue)), default=math.inf)


async def recent(there: Client, queue: Queue) -> list[Poller]:
    """Workers that polled here in the last minutes."""
    request = DescribeTaskQueueRequest(
        namespace=there.namespace,
        task_queue=TaskQueue(name=queue.name),
        task_queue_type=queue.kind,
    )
    answer = await there.workflow_service.describe_task_queue(request)
    now = time.time()
    return [
        Poller(
            polled_s_ago=max(0.0, now - poller.last_access_time.ToNanoseconds() / 1e9),
            pid=pid_here(poller.identity),
        )
        for poller in answer.pollers
    ]


def pid_here(identity: str) -> int | None:
    """The process of a worker on this machine, by its identity: `pid@host` unless configured.

    That of a worker that carries out activities has more behind a `#`.
    """
    pid, _, host = identity.partition("#")[0].partition("@")
    return int(pid) if host == socket.gethostname() and pid.isdecimal() else None


async def unserved(there: Client, cluster: str) -> list[Queue]:
    """The queues that no living worker polls, of those that a job on this cluster needs."""
    return [q for q in needed(cluster) if await polled_s_ago(there, q) >= POLLED_S]
