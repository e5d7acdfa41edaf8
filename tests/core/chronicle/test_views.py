"""Views of a job that the workflows' own tests do not cover."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.chronicle import record_rows, shapes, views
from everstep.chronicle.chronicle import Chronicle
from everstep.chronicle.fold import folded
from everstep.core.levels import FaultClass, Step
from everstep.core.loop.job_events import DocumentChanged
from everstep.core.state import JobState, PhaseResult
from everstep.dialects import responses
from tests.support.builders import running, sighting


def in_two_phases() -> tuple[JobState, Chronicle]:
    """A job with a first restart in each of its phases."""
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    (record,) = job.chronicle.records
    warmup = PhaseResult(
        name="warmup",
        state="completed",
        last_checkpoint_step=None,
        restarts=0,
        ledger=job.state.ledger,
    )
    records = (replace(record, phase="warmup"), record)
    return replace(job.state, finished=(warmup,)), replace(job.chronicle, records=records)


def test_restarts_with_one_number_are_told_apart_by_their_phase() -> None:
    state, chronicle = in_two_phases()
    assert responses.explain(state, chronicle, "demo", 1)["restart"]["phase"] == "main"
    assert (
        responses.explain(state, chronicle, "demo", {"n": 1, "phase": "warmup"})["restart"]["phase"]
        == "warmup"
    )
    assert responses.explain(state, chronicle, "demo", {"phase": "warmup"})["restart"]["n"] == 1
    assert (
        responses.explain(state, chronicle, "demo", {"n": 1, "phase": "cooldown"})["restart"]
        is None
    )


def test_a_job_whose_document_was_not_read_yet_has_every_field_of_a_status() -> None:
    status, unread = views.status(running().state), shapes.status_unread("demo")
    assert unread.keys() == status.keys()
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
    job = running(nodes=2, processes_per_node=2)
    first = job.state.generation
    assert incarnations(job.state) == dict.fromkeys(range(4), first)
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    assert incarnations(job.state) == dict.fromkeys(range(4), first + 1)


def test_status_shows_that_the_process_of_a_kept_rank_is_older() -> None:
    job = running(nodes=2, processes_per_node=2)
    first = job.state.generation
    for keep, older in (((0, 3), {0: first, 3: first}), ((0, 1), {0: first, 1: first + 1})):
        job.see(sighting(FaultClass.CRASH))
        job.succeeds(kept_ranks=keep)
        assert incarnations(job.state) == dict.fromkeys(range(4), job.state.generation) | older


def test_an_older_process_is_shown_as_its_agent_tells_it() -> None:
    job = running(nodes=2, processes_per_node=2)
    first = job.state.generation
    job.state = replace(job.state, generation=first + 3)
    job.report(older_ranks={2: first})
    job.report()  # by a worker that has heard of no agent yet
    assert incarnations(job.state)[2] == first
    job.report("moved", generation=first + 4, older_ranks={1: first + 3})
    assert job.state.older_ranks == {1: first + 3}


@pytest.mark.parametrize("more", [0, 1])
def test_status_of_a_large_job_tells_the_incarnations_of_most_pods_once(more: int) -> None:
    ranks = views.INCARNATIONS_MOST // 4
    job = running(nodes=4 + more, processes_per_node=ranks)
    first = job.state.generation
    job.state = replace(job.state, older_ranks={ranks: first - 1})
    status, usual = views.status(job.state), [first] * ranks
    of_second = [first - 1, *usual[1:]]
    incarnations = [pod["incarnations"] for pod in status["pods"]]
    if more:
        assert (status["incarnations"], incarnations) == (
            usual,
            [None, of_second, None, None, None],
        )
    else:
        assert (status["incarnations"], incarnations) == (None, [usual, of_second, usual, usual])


def test_status_shows_no_incarnation_where_no_process_is() -> None:
    job = running(nodes=2)
    job.command("pause")
    job.interrupted()
    job.succeeds()
    assert incarnations(job.state) == {}
    assert [pod["first_rank"] for pod in views.status(job.state)["pods"]] == [0, 1]


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
    job = running()
    chronicle = replace(job.chronicle, created_at=0.0, started_at=2.0)
    status = views.status(replace(job.state, now=60.0), chronicle)
    assert (status["started_at"], status["ended_at"]) == (shapes.moment(2.0), None)
    assert status["duration_s"] == 60.0


def test_a_heartbeat_is_laid_over_a_status_with_its_time() -> None:
    job = running()
    status = views.status(job.state, replace(job.chronicle, created_at=10.0))
    heartbeat = {"now": 100.0, "step": 7, "step_at": 97.0, "still_s": 3.0, "still_limit_s": 300.0}
    combined = shapes.with_glance(status, heartbeat)
    assert (combined["as_of"], combined["step_at"]) == (shapes.moment(100.0), shapes.moment(97.0))
    assert (combined["step"], combined["still_s"], combined["still_limit_s"]) == (7, 3.0, 300.0)
    assert combined["duration_s"] == 90.0
    assert shapes.with_glance(status, {}) == status


def test_the_step_of_a_job_that_runs_is_of_its_generation() -> None:
    """Until the new processes make one, the step is that of processes which are not there any more."""
    job = running()
    job.report(step=65)
    job.see(sighting(FaultClass.CRASH))
    assert (views.status(job.state)["state"], views.status(job.state)["step"]) == ("recovering", 65)
    job.succeeds()
    assert (views.status(job.state)["state"], views.status(job.state)["step"]) == ("running", None)
    job.report(step=61)
    assert views.status(job.state)["step"] == 61


def test_a_run_that_ended_before_a_step_has_none_in_its_record() -> None:
    job = running(nodes=2)
    job.report(step=65)
    for _ in range(2):
        job.see(sighting(FaultClass.CRASH))
        job.succeeds()
    job.see(sighting(FaultClass.CRASH))
    ends = [record["step"] for record in responses.restarts(job.chronicle)]
    assert ends == [65, None, None], "the run of each restart, not the newest one that made a step"
    job.succeeds()
    job.command("stop")
    job.interrupted()
    assert views.status(job.state)["state"] == "stopping"
    assert views.status(job.state)["step"] == 65, "of a job that ends it is the newest of all"


def test_a_paused_job_shows_the_step_at_which_it_was_paused() -> None:
    """Its processes are stopped as a generation of their own, which trains nothing."""
    job = running()
    job.report(step=65)
    job.command("pause")
    job.interrupted()
    job.succeeds()
    assert job.state.stepped_in < job.state.generation
    assert (views.status(job.state)["state"], views.status(job.state)["step"]) == ("paused", 65)


def test_a_heartbeat_of_another_generation_shows_nothing() -> None:
    """The server returns it with the job, and then the job returns its status: a restart may lie between."""
    status = views.status(running().state)
    heartbeat = {"now": 100.0, "step": 65, "still_s": 3.0}
    generation = status["generation"]
    assert shapes.with_glance(status, {**heartbeat, "generation": generation - 1}) == status
    assert shapes.with_glance(status, {**heartbeat, "generation": generation})["step"] == 65
    unread = shapes.with_glance(shapes.status_unread("demo"), {**heartbeat, "generation": 3})
    assert (unread["generation"], unread["step"]) == (3, 65)


def test_levels_that_failed_are_counted_apart() -> None:
    job = running(nodes=2)
    job.see(sighting(FaultClass.CRASH))
    job.fails("agent.unreachable", Step.STOP)
    job.succeeds()
    status = views.status(job.state)
    assert (status["restarts"], status["failed_levels"]) == (2, 1)


def test_a_restart_took_the_time_from_the_first_fact_until_all_ranks_were_started() -> None:
    stages = {"detect": 1.0, "stop": 0.5, "start": 2.0, "heal": None, "first_step": 9.0}
    assert record_rows.took_s({"stages_s": stages}) == 3.5
    assert record_rows.took_s({"stages_s": dict.fromkeys(stages)}) is None


def test_the_page_says_what_each_stage_is() -> None:
    page = Path(__file__).parents[3] / "docs" / "records.md"
    _, _, rest = page.read_text().partition("| stage | from its begin to its end |")
    rows = re.findall(r"^\| `(\w+)` \|", rest.partition("\n\n")[0], re.MULTILINE)
    assert tuple(rows) == views.STAGES


def test_a_story_has_long_times_without_an_exponent() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds(stages_s={"stop": 0.25, "place": 1_812.3})
    (record,) = responses.restarts(job.chronicle)
    assert "stop 0.25 s, place 1812 s" in record_rows.story(record)


def test_a_job_that_ends_leaves_the_changes_of_its_document() -> None:
    job = running()
    change = DocumentChanged(at=job.state.now, what=("limits.hang_s=600",), is_now=True, by="ada")
    job.chronicle = folded(job.chronicle, [change])
    (left,) = responses.closing_memo(job.state, job.chronicle)["changes"]
    assert (left["what"], left["when"], left["by"]) == (["limits.hang_s=600"], "now", "ada")
    assert views.document("demo", {}, job.chronicle)["changes"] == [left]
