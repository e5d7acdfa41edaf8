"""What the heartbeat of a watch shows between two reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.seeing.glance import glance, saved_in, step_in
from everstep.core.seeing.watch_report import WatchOrder
from everstep.core.seeing.watching import Watch, check, report
from everstep.core.spec import Limits
from everstep.core.state import Learned
from everstep.core.world import Checkpoint, Observation, PodView, RankSnapshot
from tests.support.builders import pod, watch_order

ORDER = watch_order(0, 1, limits=Limits(hang_s=300.0))
OBSERVATION = Observation(
    now=145.0,
    cursor="1",
    pods=(pod(0, step=7, step_at=100.0), pod(1, step=8, step_at=140.0)),
    generation=1,
)
WATCH = Watch(learned=Learned(steps_seen=True))


def test_it_shows_the_newest_step_and_how_long_the_stillest_slot_may_still_be() -> None:
    heartbeats = glance(ORDER, WATCH, OBSERVATION)
    assert (heartbeats["step"], heartbeats["step_at"]) == (7, 140.0)
    assert (heartbeats["still_s"], heartbeats["still_limit_s"]) == (45.0, 300.0)


@pytest.mark.parametrize("older", [pod(1, step=3, generation=0), pod(9, step=3)])
def test_a_heartbeat_has_the_step_of_a_report(older: PodView) -> None:
    """Not that of a pod which the job has given up, or which is still to leave an older generation.

    What `status` and `watch` show would go back with it, and stay there.
    """
    observation = replace(OBSERVATION, pods=(pod(0, step=7, step_at=140.0), older))
    assert report(ORDER, WATCH, observation, "facts").step == 7
    assert glance(ORDER, WATCH, observation)["step"] == 7


@pytest.mark.parametrize(
    "order", [replace(ORDER, is_paused=True), replace(ORDER, limits=Limits(still_s=60.0))]
)
def test_no_limit_is_shown_where_other_rules_judge(order: WatchOrder) -> None:
    assert "still_limit_s" not in glance(order, WATCH, OBSERVATION)


def test_it_shows_what_a_restart_in_place_would_go_on_with() -> None:
    """The newest step of which every rank has a snapshot, and the modules that no rank imports again."""
    pods = tuple(
        one._replace(
            snapshots=tuple(
                RankSnapshot(step, one.slot, 2, generation=1, at=140.0) for step in steps
            ),
            prewarm_bytes=1_000,
            prewarm_modules=("torch",),
        )
        for one, steps in zip(OBSERVATION.pods, ((6, 7), (7, 8)), strict=True)
    )
    heartbeats = glance(ORDER, WATCH, replace(OBSERVATION, pods=pods))
    assert heartbeats["snapshot_step"] == 7
    assert (heartbeats["prewarm_bytes"], heartbeats["prewarm_modules"]) == (2_000, ["torch"])


def test_a_checkpoint_that_was_observed_stays_known_to_the_watch_and_to_its_next_try() -> None:
    """Its agents may be lost with their node, and the worker with them."""
    saved = Checkpoint(step=10, path="saves/step-10", bytes=3, at=120.0)
    memory, _ = check(ORDER, WATCH, replace(OBSERVATION, checkpoint=saved))
    memory, _ = check(ORDER, memory, OBSERVATION)
    assert report(ORDER, memory, OBSERVATION, "facts").checkpoint == saved
    heartbeats = glance(ORDER, memory, OBSERVATION)
    assert heartbeats["checkpoint_step"] == 10
    assert saved_in(heartbeats) == saved


@pytest.mark.parametrize("details", [None, "no glance", {}, glance(ORDER, WATCH, OBSERVATION)])
def test_an_earlier_try_that_saw_no_checkpoint_hands_none_on(details: object) -> None:
    assert saved_in(details) is None


def test_a_step_that_was_observed_stays_known_to_the_watch_and_to_its_next_try() -> None:
    """With a job's record its pods go at once. Else `status` went back to the step of the report before."""
    memory, _ = check(ORDER, WATCH, OBSERVATION)
    without_pods = replace(OBSERVATION, pods=())
    memory, _ = check(ORDER, memory, without_pods)
    assert report(ORDER, memory, without_pods, "facts").step == 7
    heartbeats = glance(ORDER, memory, without_pods)
    assert step_in(heartbeats, generation=ORDER.generation) == 7
    next_try = replace(WATCH, step=step_in(heartbeats, generation=ORDER.generation))
    assert report(ORDER, check(ORDER, next_try, without_pods)[0], without_pods, "facts").step == 7


@pytest.mark.parametrize(
    "heartbeat", [None, {}, "", {"generation": 9, "step": 7}, {"generation": 1, "step": None}]
)
def test_a_heartbeat_of_another_generation_has_no_step_of_this_one(heartbeat: object) -> None:
    assert step_in(heartbeat, generation=1) is None
