"""What is told of a job, where the workflows' own tests do not look."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from everstep.chronicle import record_rows, shapes, views
from everstep.chronicle.chronicle import Chronicle
from everstep.core.levels import FaultClass, Step
from everstep.core.state import JobState, PhaseResult
from everstep.dialects import responses
from tests.support.builders import running, sighting


def in_two_phases() -> tuple[JobState, Chronicle]:
    """A job with a first restart in each of its phases."""
    told = running()
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    (record,) = told.chronicle.records
    warmup = PhaseResult(
        name="warmup",
        state="completed",
        last_checkpoint_step=None,
        restarts=0,
        ledger=told.state.ledger,
    )
    records = (replace(record, phase="warmup"), record)
    return replace(told.state, finished=(warmup,)), replace(told.chronicle, records=records)


def test_restarts_with_one_number_are_told_apart_by_their_phase() -> None:
    state, known = in_two_phases()
    assert responses.explain(state, known, "demo", 1)["restart"]["phase"] == "main"
    assert (
        responses.explain(state, known, "demo", {"n": 1, "phase": "warmup"})["restart"]["phase"]
        == "warmup"
    )
    assert responses.explain(state, known, "demo", {"phase": "warmup"})["restart"]["n"] == 1
    assert responses.explain(state, known, "demo", {"n": 1, "phase": "cooldown"})["restart"] is None


def test_a_job_whose_document_was_not_read_yet_has_every_field_of_a_status() -> None:
    known, unread = views.status(running().state), shapes.status_unread("demo")
    assert unread.keys() == known.keys()
    assert (unread["id"], unread["state"]) == ("demo", "pending")


def incarnations(state: JobState) -> dict[int, int]:
    """Rank -> the generation its process is from, as status shows it."""
    pods = views.status(state)["pods"]
    return {
        pod["first_rank"] + at: incarnation
        for pod in pods
        for at, incarnation in enumerate(pod["incarnations"])
    }


def test_status_shows_of_each_rank_the_generation_in_which_its_process_was_started() -> None:
    told = running(nodes=2, processes_per_node=2)
    first = told.state.generation
    assert incarnations(told.state) == dict.fromkeys(range(4), first)
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    assert incarnations(told.state) == dict.fromkeys(range(4), first + 1)


def test_status_shows_that_the_process_of_a_kept_rank_is_older() -> None:
    told = running(nodes=2, processes_per_node=2)
    first = told.state.generation
    for keep, older in (((0, 3), {0: first, 3: first}), ((0, 1), {0: first, 1: first + 1})):
        told.see(sighting(FaultClass.CRASH))
        told.state = replace(told.state, plan=replace(told.plan, keep=keep))
        told.succeeds()
        assert incarnations(told.state) == dict.fromkeys(range(4), told.state.generation) | older


def test_an_older_process_is_shown_as_its_agent_tells_it() -> None:
    told = running(nodes=2, processes_per_node=2)
    first = told.state.generation
    told.state = replace(told.state, generation=first + 3)
    told.report(older={2: first})
    told.report()  # by a worker that has heard of no agent yet
    assert incarnations(told.state)[2] == first
    told.report("moved", generation=first + 4, older={1: first + 3})
    assert told.state.older == {1: first + 3}


@pytest.mark.parametrize("more", [0, 1])
def test_status_of_a_large_job_tells_the_incarnations_of_most_pods_once(more: int) -> None:
    ranks = views.INCARNATIONS_MOST // 4
    told = running(nodes=4 + more, processes_per_node=ranks)
    first = told.state.generation
    told.state = replace(told.state, older={ranks: first - 1})
    status, usual = views.status(told.state), [first] * ranks
    of_second = [first - 1, *usual[1:]]
    shown = [pod["incarnations"] for pod in status["pods"]]
    if more:
        assert (status["incarnations"], shown) == (usual, [None, of_second, None, None, None])
    else:
        assert (status["incarnations"], shown) == (None, [usual, of_second, usual, usual])


def test_status_shows_no_incarnation_where_no_process_is() -> None:
    told = running(nodes=2)
    told.command("pause")
    told.interrupted()
    told.succeeds()
    assert incarnations(told.state) == {}
    assert [pod["first_rank"] for pod in views.status(told.state)["pods"]] == [0, 1]


@pytest.mark.parametrize("at", [math.inf, -math.inf, math.nan, 1_795_295_905_000, 1e300])
def test_a_time_that_no_date_can_show_hides_nothing_else(at: float) -> None:
    """What is shown beside it is needed to get rid of it."""
    assert shapes.moment(at) in ("0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.000Z")


def test_every_restart_is_counted_and_those_that_place_pods_anew_apart() -> None:
    state, _ = in_two_phases()
    assert (views.status(state)["restarts"], views.status(state)["reschedules"]) == (1, 0)
    (earlier,) = state.finished
    state = replace(state, finished=(replace(earlier, restarts=4, reschedules=3),))
    assert (views.status(state)["restarts"], views.status(state)["reschedules"]) == (5, 3)


def test_status_shows_when_a_job_began_and_how_long_it_is_there() -> None:
    told = running()
    known = replace(told.chronicle, created_at=0.0, started_at=2.0)
    shown = views.status(replace(told.state, now=60.0), known)
    assert (shown["started_at"], shown["ended_at"]) == (shapes.moment(2.0), None)
    assert shown["duration_s"] == 60.0


def test_a_heartbeat_is_laid_over_a_status_with_its_time() -> None:
    told = running()
    status = views.status(told.state, replace(told.chronicle, created_at=10.0))
    heartbeat = {"now": 100.0, "step": 7, "step_at": 97.0, "still_s": 3.0, "still_limit_s": 300.0}
    shown = shapes.with_glance(status, heartbeat)
    assert (shown["as_of"], shown["step_at"]) == (shapes.moment(100.0), shapes.moment(97.0))
    assert (shown["step"], shown["still_s"], shown["still_limit_s"]) == (7, 3.0, 300.0)
    assert shown["duration_s"] == 90.0
    assert shapes.with_glance(status, {}) == status


def test_levels_that_failed_are_counted_apart() -> None:
    told = running(nodes=2)
    told.see(sighting(FaultClass.CRASH))
    told.fails("agent.unreachable", Step.STOP)
    told.succeeds()
    shown = views.status(told.state)
    assert (shown["restarts"], shown["failed_levels"]) == (2, 1)


def test_a_restart_took_the_time_from_the_first_fact_until_all_ranks_were_started() -> None:
    stages = {"detect": 1.0, "stop": 0.5, "start": 2.0, "heal": None, "first_step": 9.0}
    assert record_rows.took_s({"stages_s": stages}) == 3.5
    assert record_rows.took_s({"stages_s": dict.fromkeys(stages)}) is None
