"""The comparison with other launchers: lines of ranks, order of turns, file of results, and page."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers import plan
from benchmarks.peers.__main__ import SECONDS
from benchmarks.peers.events import Event, Events, recovery
from benchmarks.peers.meeting import Run, take
from benchmarks.peers.plan import ROWS, SETTINGS, Fault, Turn
from benchmarks.peers.results import PLACE, Measurement, NotRun, Results
from docs import write_benchmarks
from docs.write_benchmarks import OURS, PEERS

MACHINE = {
    "cores": 2,
    "processor": "a processor",
    "memory_gb": 8,
    "system": "Linux",
    "python": "3.11",
    "load_at_start": 0.1,
}
ONE = Measurement(
    row="crash",
    launcher=OURS,
    round=1,
    at_s=1.0,
    load=0.5,
    given_up_s=60.0,
    took_s=0.5,
    paused_s=0.6,
    lost_steps=3,
)


def results() -> Results:
    """The results of a run with a fault for each cell of the page: half a second of ours, two of a peer."""
    outcome = Results(
        date="2026-11-30T04:52", seed=7, machine=MACHINE, versions={}, settings=dict(SETTINGS)
    )
    for row in write_benchmarks.ROWS:
        outcome.measured.append(replace(ONE, row=row.ours))
        outcome.measured += [
            replace(ONE, row=row.theirs, launcher=peer, took_s=2.0, paused_s=2.1)
            for peer in row.peers
        ]
    return outcome


def without(outcome: Results, row: str, launcher: str) -> Results:
    outcome.measured = [
        one for one in outcome.measured if (one.row, one.launcher) != (row, launcher)
    ]
    return outcome


def line(page: str, title: str) -> list[str]:
    """The cells of the first row of the table whose fault begins so."""
    rows = [row for row in page.splitlines() if row.startswith(f"| {title}")]
    return [cell.strip() for cell in rows[0].strip("|").split("|")]


def column(launcher: str) -> int:
    return 2 + PEERS.index(launcher)


# -- The page -------------------------------------------------------------------------------------


def test_the_page_of_benchmarks_is_what_the_results_say() -> None:
    page = write_benchmarks.PAGE.read_text(encoding="utf-8")
    assert page == write_benchmarks.page(), "write it anew: make docs"


def test_a_peer_that_never_recovered_is_shown_as_that() -> None:
    outcome = without(results(), "hang", "torchft")
    never = replace(
        ONE, row="hang", launcher="torchft", took_s=None, lost_steps=None, paused_s=60.1
    )
    outcome.measured += [never, never]
    cells = line(write_benchmarks.page(outcome), "a rank is stopped")
    assert cells[column("torchft")] == "not within 60 s (2 of 2)"


def test_ranks_that_go_on_alone_are_shown_with_their_pause() -> None:
    outcome = without(without(results(), "hang", "torchft"), "crash", "torchft")
    never = replace(ONE, row="hang", launcher="torchft", took_s=None, lost_steps=None, paused_s=5.0)
    back = replace(ONE, launcher="torchft", took_s=4.0, lost_steps=0, paused_s=1.0)
    outcome.measured += [never, back]
    page = write_benchmarks.page(outcome)
    cell = line(page, "a rank is stopped")[column("torchft")]
    assert cell == "not within 60 s (1 of 1); one rank goes on alone after 5.00"
    assert line(page, "a rank is killed;")[column("torchft")] == "4.00 (1); pause 1.00"


def test_a_peer_that_recovered_only_sometimes_is_shown_with_both() -> None:
    outcome = results()
    outcome.measured.append(replace(ONE, row="hang", launcher="torchft", took_s=None))
    cells = line(write_benchmarks.page(outcome), "a rank is stopped")
    assert cells[column("torchft")] == "2.00 (1); 1 of 2 not within 60 s; pause 1.35"


def test_a_peer_that_could_not_run_is_shown_with_the_reason() -> None:
    outcome = without(results(), "crash", "NVRx 0.7.0")
    outcome.not_run.append(NotRun(row="crash", launcher="NVRx 0.7.0", reason="no Python 3.12"))
    page = write_benchmarks.page(outcome)
    assert line(page, "a rank is killed;")[column("NVRx 0.7.0")] == "not run here: no Python 3.12"
    assert "- NVRx 0.7.0, row `crash`: no Python 3.12." in page


def test_a_peer_that_is_absent_without_a_reason_is_refused() -> None:
    with pytest.raises(LookupError, match="torchrun, controller: neither"):
        write_benchmarks.page(without(results(), "controller", "torchrun"))


def test_a_row_of_ours_that_could_not_run_has_no_ratio() -> None:
    outcome = without(results(), "node", OURS)
    outcome.not_run.append(NotRun(row="node", launcher=OURS, reason="the disk is full"))
    cells = line(write_benchmarks.page(outcome), "one of two nodes is lost")
    assert (cells[1], cells[-2]) == ("**not run here: the disk is full**", "–")


def test_the_ratio_is_that_of_the_quickest_peer_also_where_it_is_quicker_than_ours() -> None:
    outcome = without(results(), "pods_controller", OURS)
    outcome.measured += [
        replace(ONE, row="pods_controller", took_s=took_s, paused_s=None) for took_s in (0.5, 4.5)
    ]
    outcome.measured = [
        replace(one, paused_s=None) if one.launcher == "JobSet" else one for one in outcome.measured
    ]
    cells = line(write_benchmarks.page(outcome), "Kubernetes: the same, and the controller")
    assert cells[1] == "**2.50 (0.50 to 4.50, 2)**"
    assert cells[-2] == "0.8 (JobSet)"


def test_the_ratio_names_the_pause_too_where_a_rank_alone_makes_steps() -> None:
    outcome = without(results(), "hang", "torchft")
    outcome.measured.append(
        replace(ONE, row="hang", launcher="torchft", took_s=None, lost_steps=None, paused_s=0.3)
    )
    ratio = line(write_benchmarks.page(outcome), "a rank is stopped")[-2]
    assert ratio == "4.0 (NVRx 0.4.1); pause 0.5 (torchft)"


def test_every_row_of_the_plan_is_on_the_page() -> None:
    assert {row.ours for row in write_benchmarks.ROWS} == set(ROWS)
    assert {row.theirs for row in write_benchmarks.ROWS} <= set(ROWS)
    assert set(SETTINGS) == {OURS, *PEERS}


# -- The file -------------------------------------------------------------------------------------


def test_the_file_of_results_is_read_as_it_was_written(tmp_path: Path) -> None:
    outcome = results()
    outcome.not_run.append(NotRun(row="crash", launcher="torchft", reason="none"))
    outcome.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == outcome


def test_the_committed_results_have_each_fault_that_they_are_about() -> None:
    outcome = Results.read(PLACE)
    assert outcome.measured
    assert {one.row for one in outcome.measured} <= set(ROWS)
    assert {one.launcher for one in outcome.measured} <= {OURS, *PEERS}


# -- The order ------------------------------------------------------------------------------------


def test_the_order_of_turns_follows_from_the_seed() -> None:
    first, again, other = (list(plan.rounds(seed, 2)) for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert [number for number, _ in first] == sorted(number for number, _ in first)


def test_only_some_rows_are_met_where_only_these_are_wanted() -> None:
    turns = [turn for _, turn in plan.rounds(7, 1, ["crash", "node"])]
    assert {row for turn in turns for row, _ in turn.faults} == {"crash", "node"}


def test_all_turns_of_a_first_round_fit_into_the_time_of_a_run() -> None:
    assert sum(turn.about_s for _, turn in plan.rounds(7, 1)) < SECONDS


def test_a_launcher_that_does_not_start_is_written_down_and_the_run_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = Run(results=results(), began=0.0, seconds=1e9)
    faults = (("hang", Fault.HANG), ("crash", Fault.CRASH), ("crash", Fault.CRASH))
    turn = Turn(launcher="torchrun", setup="none such", faults=faults, about_s=1)
    asyncio.run(take(run, 1, turn))
    reasons = {(one.row, one.launcher): one.reason for one in run.results.not_run}
    assert reasons.keys() == {("hang", "torchrun"), ("crash", "torchrun")}
    assert "a turn failed: ('torchrun', 'none such')" in capsys.readouterr().out


# -- What ranks write down --------------------------------------------------------------------------


def step(at: float, pid: int, number: int, *, world: int = 2, rank: int = 0) -> Event:
    return Event(at=at, rank=rank, pid=pid, event="step", step=number, world=world)


def begun(at: float, pid: int, *, rank: int = 0) -> Event:
    return Event(at=at, rank=rank, pid=pid, event="begun")


BEFORE = [begun(1.0, 10), begun(1.0, 11, rank=1), step(9.9, 10, 27), step(9.9, 11, 27, rank=1)]


def test_a_restart_of_all_ends_with_the_first_step_of_a_new_process() -> None:
    after = [begun(11.0, 20), begun(11.0, 21, rank=1), step(12.0, 20, 21), step(12.0, 21, 21)]
    outcome = recovery([*BEFORE, *after], fault_at=10.0)
    assert outcome is not None
    assert (outcome.took_s, outcome.begun_s, outcome.lost_steps, outcome.wasted_starts) == (
        2.0,
        1.0,
        7,
        0,
    )
    assert outcome.paused_s == pytest.approx(2.1)


def test_the_steps_of_a_survivor_alone_are_no_recovery_but_end_the_pause() -> None:
    alone = [step(10.0 + n, 10, 27 + n, world=1) for n in (1, 2, 3)]
    assert recovery([*BEFORE, *alone], fault_at=10.0) is None
    back = [*BEFORE, *alone, begun(11.0, 21, rank=1), step(13.5, 21, 31, rank=1)]
    outcome = recovery(back, fault_at=10.0)
    assert outcome is not None
    assert (outcome.took_s, outcome.lost_steps) == (3.5, 0)
    assert outcome.paused_s == pytest.approx(1.1)


def test_a_start_that_made_no_step_is_wasted() -> None:
    tries = [
        begun(10.5, 20),
        begun(11.5, 30),
        begun(11.5, 31),
        step(12.0, 31, 21),
        step(12.0, 30, 21),
    ]
    outcome = recovery([*BEFORE, *tries], fault_at=10.0)
    assert outcome is not None
    assert outcome.wasted_starts == 1


def test_a_line_that_is_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events"
    events = Events(path)
    assert events.all() == []
    path.write_text('{"at": 1.0, "rank": 0, "pid": 5, "event": "begun"}\n{"at": 2.0, "ra')
    assert [one.at for one in events.all()] == [1.0]
    with path.open("a") as file:
        file.write('nk": 1, "pid": 6, "event": "begun"}\n')
    assert [one.at for one in events.all()] == [1.0, 2.0]
