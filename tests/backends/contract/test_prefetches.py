"""Prefetches beside the ranks, and their reports. Run against every backend."""

from __future__ import annotations

from everstep.core.spec import Prefetch, PrefetchOrder
from everstep.core.world import PodState
from tests.backends.lab import Run
from tests.backends.verbs import NEVER_ENDS


def tries(script: str, *nodes: int) -> PrefetchOrder:
    what = Prefetch(command=("/bin/sh", "-c", script))
    return PrefetchOrder(what=what, nodes=nodes, began=1_800_000_000.0)


async def starts(job: Run, key: str, order: PrefetchOrder) -> None:
    await job.new_generation(key)
    await job.stop()
    await job.place(recreate=job.slots if job.generation == 1 else ())
    await job.fence()
    await job.start(prefetch=order, log_pattern=r"step (?P<step>\d+)")


async def test_each_number_is_tried_once_by_one_pod_while_all_train(job: Run) -> None:
    job.env = {**NEVER_ENDS, "PREFETCH_FAILS": "2"}
    await starts(job, "launch", tries('test "$NNODES" != 2', 2, 1))
    done = await job.fact("prefetch.done")
    prefetch_facts = [fact for fact in job.facts if fact.kind.startswith("prefetch.")]
    assert [(fact.kind, fact.details["nodes"]) for fact in prefetch_facts] == [
        *(("prefetch.failed", 2), ("prefetch.done", 1))
    ]
    assert (done.slot, done.details["phase"]) == (0, "main")
    pods = (await job.observe_now()).pods
    assert [(pod.state, pod.exits, pod.ranks) for pod in pods] == [(PodState.RUNNING, (), 1)] * 2


async def test_one_that_a_stop_ended_is_told_nothing_of(job: Run) -> None:
    job.env = {**NEVER_ENDS, "PREFETCH_S": "100000"}
    await starts(job, "launch", tries("sleep 100000", 1))
    await job.step(1)
    job.env = NEVER_ENDS
    await starts(job, "next", tries("true", 1))
    await job.fact("prefetch.done")
    prefetch_facts = [fact for fact in job.facts if fact.kind.startswith("prefetch.")]
    assert [(fact.kind, fact.generation) for fact in prefetch_facts] == [("prefetch.done", 2)]
