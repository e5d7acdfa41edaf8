"""What an agent reports of its own work: each command of a generation once, with its times."""

from __future__ import annotations

from everstep.protocol import wire
from tests.agent.pod import Pod

SLEEP = "import time; time.sleep(600)"


def works(state: wire.AgentState, generation: int) -> dict[str, wire.WorkSeen]:
    works = [work for work in state["works"] if work["generation"] == generation]
    by_name = {work["name"]: work for work in works}
    assert len(by_name) == len(works), works
    return by_name


def test_a_start_lasts_from_the_command_to_the_last_rank(pod: Pod) -> None:
    pod.runs(SLEEP, ranks=2)
    state = pod.state()
    start = works(state, 1)["start"]
    assert state["run"] is not None
    assert start["began"] <= start["ended"] == state["run"]["started_at"]


def test_a_stop_lasts_until_the_end_is_proven_however_often_it_is_sent(pod: Pod) -> None:
    pod.runs("import signal, time; signal.signal(15, signal.SIG_IGN); print('x'); time.sleep(600)")
    pod.until(lambda state: state["run"] is not None and state["run"]["output_at"] is not None)
    pod.stop(2, grace_s=0.3)
    pod.stop(2, grace_s=0.3)
    state = pod.until(lambda state: state["stopped_below"] >= 2)
    pod.stop(2)
    stop = works(pod.state(), 2)["stop"]
    assert works(state, 2)["stop"] == stop
    assert stop["ended"] - stop["began"] >= 0.3
    assert stop["ended"] <= state["now"]


def test_a_start_that_fails_has_its_time_too(pod: Pod) -> None:
    pod.run(["/there/is/no/such/program"])
    state = pod.until(lambda s: s["run"] is not None and s["run"]["failed"] is not None)
    assert "start" in works(state, 1)


def test_only_the_newest_are_kept(pod: Pod) -> None:
    for generation in range(1, 2 * wire.WORKS_MOST, 2):
        pod.runs(SLEEP, generation=generation)
        pod.stopped(generation + 1)
    state = pod.state()
    assert len(state["works"]) == wire.WORKS_MOST
    assert set(works(state, 2 * wire.WORKS_MOST)) == {"stop"}
