"""The first start of a pod that stood by is a fork too, where another pod of its job has a helper."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod
from tests.agent.prewarming.test_auto import auto, packages
from tests.agent.prewarming.warm import Warm, is_prewarmed

__all__ = ["packages"]


@pytest.fixture
def spare(pyz: Path, tmp_path: Path) -> Iterator[Pod]:
    """Another pod of the job, in which nothing ran yet."""
    uid = f"demo-1-{uuid.uuid4().hex[:8]}"
    pod = Pod(pyz, tmp_path / uid, uid)
    yield pod.start()
    pod.end()


def pass_on(pod: Pod, spare: Pod) -> dict[str, Any]:
    command: dict[str, Any] = pod.ask("GET", wire.PREWARM)
    spare.ask("POST", wire.PREWARM, command)
    return command


def started_there(warm: Warm, spare: Pod, **env: str) -> wire.AgentState:
    """The state of the spare once it runs the command of the other pod."""
    environment = {"HOMEDIR": str(warm.pod.home), **env}
    spare.run(
        warm.command,
        generation=2,
        env=environment,
        workdir=str(warm.pod.home),
        prewarm=warm.modules,
        prewarm_auto=not warm.modules,
    )
    return spare.until(lambda s: s["run"] and s["run"]["started_at"])


def test_a_list_of_modules_is_imported_where_nothing_ran_yet(pod: Pod, spare: Pod) -> None:
    warm = Warm(pod)
    warm.start()
    warm.ready()
    pass_on(pod, spare)
    spare.until(lambda s: s["helper"] and s["helper"]["ready"])
    assert is_prewarmed(started_there(warm, spare))


def test_what_a_rank_had_loaded_is_imported_there_too(pod: Pod, spare: Pod, packages: Path) -> None:
    warm = auto(pod, packages)
    warm.ready()
    assert pass_on(pod, spare)["prewarm"] == ["heavy"]
    spare.until(lambda s: s["helper"] and s["helper"]["ready"])
    assert is_prewarmed(started_there(warm, spare, PYTHONPATH=str(packages)))


def test_the_same_order_again_starts_no_second_helper(pod: Pod, spare: Pod) -> None:
    warm = Warm(pod)
    warm.start()
    warm.ready()
    pids = set()
    for _ in range(2):
        pass_on(pod, spare)
        state = spare.until(lambda s: s["helper"] and s["helper"]["ready"])
        pids.add(state["helper"] and state["helper"]["pid"])
    assert len(pids) == 1


def test_a_pod_without_a_helper_has_nothing_to_pass_on(pod: Pod) -> None:
    pod.runs(FOREVER)
    assert pod.ask("GET", wire.PREWARM) == {}


def test_a_helper_is_not_made_beside_ranks_that_run(pod: Pod, spare: Pod) -> None:
    warm = Warm(pod)
    warm.start()
    warm.ready()
    spare.runs(FOREVER)
    pass_on(pod, spare)
    assert spare.state()["helper"] is None
