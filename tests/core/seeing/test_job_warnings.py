"""Warnings of a job that goes on: shown once, woken for in time, taken back when they are over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.chronicle import happenings, views
from everstep.core.seeing import watching
from everstep.core.seeing.job_warnings import ROOM, JobWarning
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.seeing.watching import WaitFor, Watch
from everstep.core.state import Learned
from everstep.core.world import Checkpoint, Observation, PodView, Unrecognised
from everstep.protocol.exits import Exit, RankExit
from tests.support.builders import pod, running, watch_order

SAVED = Checkpoint(step=40, path="ckpt/40", bytes=2_000_000_000)
PACE = Learned(steps_seen=True, longest_gap_s=1.0, first_step_at=1.0, save_every_s=100.0)
NEW = Learned()


def look(
    *pods: PodView,
    now: float,
    learned: Learned = PACE,
    warnings: tuple[JobWarning, ...] = (),
    saved: Checkpoint | None = SAVED,
    is_paused: bool = False,
) -> WaitFor | WatchReport:
    slots = (p.slot for p in pods)
    order = watch_order(*slots, learned=learned, warnings=warnings, is_paused=is_paused)
    observation = Observation(now=now, cursor="1", pods=pods, generation=1, checkpoint=saved)
    watch_result = watching.check(order, Watch(learned=learned, has_polled=True), observation)[1]
    assert isinstance(watch_result, WaitFor | WatchReport)
    return watch_result


def warned(watch_result: WaitFor | WatchReport) -> list[str]:
    assert isinstance(watch_result, WatchReport), watch_result
    assert watch_result.news == "warned"
    return [warning.text for warning in watch_result.warnings]


def printing(since: float, **details: object) -> PodView:
    return pod(0, unmatched_since=since, **details)


def stepping(now: float, **details: object) -> PodView:
    steps = {"step": 9, "step_at": now, "first_step_at": 1.0}
    return pod(0, **{**steps, **details})


def test_a_container_that_failed_beside_the_ranks_is_a_warning_until_it_is_gone() -> None:
    dead = stepping(50.0)._replace(dead_sidecars=("logger (exit code 1)",))
    (text,) = warned(look(dead, now=50.0))
    assert text == "beside the ranks of slot 0 on n0 failed: logger (exit code 1)"
    second = dead._replace(slot=1, node="n1", uid="b")
    (text_of_both,) = warned(look(second, dead, now=50.0))
    assert text_of_both == f"{text} (and of 1 other pods)"
    warnings = (JobWarning(kind="sidecar", at=50.0, text=text),)
    assert warned(look(stepping(60.0), now=60.0, warnings=warnings)) == []


def test_a_pattern_that_matches_nothing_is_told_after_a_minute() -> None:
    waits = look(printing(100.0), now=130.0, learned=NEW)
    assert isinstance(waits, WaitFor)
    assert waits.until == 160.0
    (text,) = warned(look(printing(100.0), now=160.0, learned=NEW))
    assert text == "no line printed in 60 s matches progress.log_pattern: no step is seen"


def test_files_that_are_no_checkpoints_are_told_after_a_minute_until_one_is() -> None:
    wrote = pod(0, unrecognised=Unrecognised(since=100.0, number=3, example="state_30.foo"))
    waits = look(wrote, now=130.0, saved=None)
    assert isinstance(waits, WaitFor)
    assert waits.until == 160.0
    (text,) = warned(look(wrote, now=160.0, saved=None))
    assert text == (
        "3 files written where checkpoints should be, none recognised as one (state_30.foo, for example): "
        "checkpoints.pattern says what they are called"
    )
    warnings = (JobWarning(kind="checkpoint_names", at=160.0, text=text),)
    assert warned(look(pod(0), now=170.0, learned=NEW, warnings=warnings)) == []


def test_a_pattern_that_was_given_up_is_told_until_the_next_start() -> None:
    (text,) = warned(look(stepping(50.0, unread=True), now=50.0))
    assert text.startswith("progress.log_pattern is too slow for what is printed")
    warnings = (JobWarning(kind="log_unread", at=50.0, text=text),)
    assert isinstance(look(stepping(60.0, unread=True), now=60.0, warnings=warnings), WaitFor)
    assert warned(look(stepping(70.0), now=70.0, warnings=warnings)) == []


def test_steps_from_anywhere_need_no_pattern() -> None:
    learned = Learned(steps_seen=True)
    assert isinstance(look(printing(100.0), now=900.0, learned=learned, saved=None), WaitFor)
    other = stepping(900.0)._replace(slot=1)
    assert isinstance(look(printing(100.0), other, now=900.0, learned=NEW, saved=None), WaitFor)


def test_who_prints_nothing_is_not_told_of_a_pattern() -> None:
    assert isinstance(look(pod(0), now=900.0, learned=NEW, saved=None), WaitFor)


def test_too_little_room_for_the_next_checkpoint_is_told_until_there_is_plenty() -> None:
    (text,) = warned(look(stepping(50.0, free_bytes=1_500_000_000), now=50.0))
    assert text == "1.5 GB are free for checkpoints, and the last one took 2 GB"
    warnings = (JobWarning(kind="checkpoint_room", at=50.0, text=text),)
    some = stepping(60.0, free_bytes=ROOM * SAVED.bytes - 1)
    assert isinstance(look(some, now=60.0, warnings=warnings), WaitFor), (
        "neither said again nor over"
    )
    plenty = stepping(60.0, free_bytes=ROOM * SAVED.bytes)
    assert warned(look(plenty, now=60.0, warnings=warnings)) == []


def test_sizes_and_intervals_have_no_exponent() -> None:
    (text,) = warned(look(stepping(50.0, free_bytes=999_700), now=50.0))
    assert text.startswith("1 MB are free")
    pods = stepping(9_000.0, saved_at=1_000.0)
    learned = replace(PACE, save_every_s=1_800.0)
    (text,) = warned(look(pods, now=9_000.0, learned=learned))
    assert text == "no complete checkpoint for 8000 s; usually one comes every 1800 s"


def test_the_fullest_storage_counts() -> None:
    pods = (stepping(50.0, free_bytes=10**12), stepping(50.0, free_bytes=10)._replace(slot=1))
    assert "10 B are free" in warned(look(*pods, now=50.0))[0]


@pytest.mark.parametrize("saved", [None, replace(SAVED, bytes=0)], ids=["none", "size unknown"])
def test_where_no_size_is_known_nothing_is_said_of_room(saved: Checkpoint | None) -> None:
    assert isinstance(look(stepping(50.0, free_bytes=1), now=50.0, saved=saved), WaitFor)


def test_no_checkpoint_for_three_times_the_usual_interval_is_told() -> None:
    waits = look(stepping(250.0, saved_at=200.0), now=250.0)
    assert isinstance(waits, WaitFor)
    assert waits.until == 500.0
    (text,) = warned(look(stepping(500.0, saved_at=200.0), now=500.0))
    assert text == "no complete checkpoint for 300 s; usually one comes every 100 s"
    warnings = (JobWarning(kind="checkpoint_overdue", at=500.0, text=text),)
    later = look(stepping(600.0, saved_at=200.0), now=600.0, warnings=warnings)
    assert isinstance(later, WaitFor), "said once"
    assert warned(look(stepping(610.0, saved_at=605.0), now=610.0, warnings=warnings)) == []


def test_a_new_start_is_given_its_own_time_for_a_checkpoint() -> None:
    waits = look(stepping(500.0, started_at=300.0, first_step_at=400.0), now=500.0)
    assert isinstance(waits, WaitFor)
    assert waits.until == 700.0


def test_the_time_for_a_checkpoint_begins_with_the_first_step() -> None:
    """Until then it imports and compiles, which may take longer than three intervals."""
    imports = pod(0, started_at=400.0, step=None, step_at=None)
    assert isinstance(look(imports, now=900.0), WaitFor)
    (text,) = warned(look(imports, now=900.0, learned=replace(PACE, steps_seen=False)))
    assert text.startswith("no complete checkpoint for 500 s"), "no step is ever seen of this job"


def test_what_does_not_run_neither_begins_nor_ends_a_warning() -> None:
    warnings = (JobWarning(kind="checkpoint_overdue", at=500.0, text="overdue"),)
    stopped = pod(0, started_at=None)
    assert isinstance(look(stopped, now=900.0), WaitFor)
    assert isinstance(look(stopped, now=900.0, warnings=warnings), WaitFor)
    silent = stepping(400.0, silent_since=890.0)
    assert isinstance(look(silent, now=900.0), WaitFor)
    assert isinstance(look(stepping(500.0, saved_at=100.0), now=900.0, is_paused=True), WaitFor)


def test_other_news_keeps_what_was_warned_of() -> None:
    warnings = (JobWarning(kind="checkpoint_overdue", at=500.0, text="overdue"),)
    ended = stepping(500.0, exits=(RankExit(0, 505.0, Exit(code=0)),))
    done = look(ended, now=510.0, warnings=warnings)
    assert isinstance(done, WatchReport)
    assert (done.news, done.warnings) == ("done", warnings)


def test_status_and_events_say_it_once_and_take_it_back() -> None:
    job = running()
    warning = JobWarning(kind="checkpoint_overdue", at=job.state.now, text="no checkpoint")
    job.report("warned", warnings=(warning,))
    job.report("refresh", warnings=(warning,))
    (warning_of_status,) = views.status(job.state)["warnings"]
    assert (warning_of_status["kind"], warning_of_status["message"]) == (
        "checkpoint_overdue",
        "no checkpoint",
    )
    job.report("warned", warnings=())
    assert views.status(job.state)["warnings"] == []
    messages = [
        e["message"] for e in happenings.events(job.chronicle) if "no checkpoint" in e["message"]
    ]
    assert messages == ["warning: no checkpoint", "over: no checkpoint"]
