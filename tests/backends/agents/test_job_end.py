"""The end of a job, poll by poll."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from everstep.backends.agents import job_end, job_storage, releasing
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.pod import Pod
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import Checkpoint, GoneState, JobRef

DEMO = JobRef(id="demo", run="r1")
SAVED = Checkpoint(path="step_7", step=7)


class Books:
    """Books of a job with one pod that goes only after some polls."""

    identity = "books"

    def __init__(self) -> None:
        self.record = JobRecord(id="demo", newest=1, folders=("/f",))
        self._pod = Pod(uid="u0", job="demo", slot=0, node="n0", generation=1)

    def refuse_others(self, _ref: JobRef) -> None:
        pass

    def refuse_unknown(self, _generation: int) -> None:
        pass

    def pods(self) -> Sequence[Pod]:
        return [] if self._pod.is_leaving else [self._pod]

    def leaving(self) -> Sequence[Pod]:
        return [self._pod] if self._pod.is_leaving else []

    def end_pods(self, _grace_s: float) -> None:
        self._pod = replace(self._pod, is_leaving=True)

    def forget(self) -> None:
        pass

    async def change(self, _job: str, work: Callable[[Any], Any]) -> Any:
        return work(self)


async def test_a_stop_lists_the_checkpoints_once_though_no_agent_releases_the_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look at them may take two seconds of storage, and the pods go only after it."""
    cluster, listed = cast("Any", SimpleNamespace(books=Books())), list[JobRef]()

    async def no_proof(*_order: Any, **_details: Any) -> bool:
        return False

    async def checkpoints(_cluster: Any, job: JobRef) -> tuple[Checkpoint, ...]:
        listed.append(job)
        return (SAVED,)

    monkeypatch.setattr(releasing, "release", no_proof)
    monkeypatch.setattr(job_storage, "checkpoints", checkpoints)
    left: list[list[WaitCause]] = [[WaitKind.POD_GONE.of("pod u0")]] * 2

    async def remove_pods() -> Sequence[WaitCause]:
        return left.pop() if left else []

    async def release_folders(_end: job_end.JobEnd) -> None:
        return None

    states: list[GoneState] = []
    while not (states and states[-1].done):
        state = await job_end.ensure_gone(
            cluster, DEMO, grace_s=1.0, remove_pods=remove_pods, release_folders=release_folders
        )
        states.append(state)
    assert [state.saved for state in states] == [SAVED, None, None]
    assert listed == [DEMO]
