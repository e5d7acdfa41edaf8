"""Every file of `tests/scenarios`: a job, what goes wrong, the transcript, records and events it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from everstep import simulation
from everstep.chronicle.chronicle import Chronicle
from everstep.core.state import JobState
from tests.support.playing.scenario import (
    SEPARATOR,
    BadScenario,
    Played,
    Scenario,
    play,
    read,
)
from tests.support.playing.simulated import Simulated
from tests.support.playing.transcript import transcript
from tests.support.story import assert_views_agree

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))
LINES_OF_TRANSCRIPT = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A scenario, and what its job left when it was played."""

    scenario: Scenario
    played: Played
    state: JobState
    chronicle: Chronicle


@pytest.fixture(scope="module", params=FILES, ids=[path.stem for path in FILES])
async def outcome(request: pytest.FixtureRequest) -> Outcome:
    """Played once for all tests that only read what is left."""
    scenario, driver = read(request.param), Simulated()
    played = await play(scenario, driver)
    return Outcome(
        scenario=scenario,
        played=played,
        state=driver.simulation.state,
        chronicle=driver.simulation.chronicle,
    )


def test_the_job_leaves_its_golden_transcript(
    outcome: Outcome, pytestconfig: pytest.Config
) -> None:
    scenario, text = outcome.scenario, transcript(outcome.played)
    assert text.count("\n") <= LINES_OF_TRANSCRIPT, "nobody reads that: show less"
    if pytestconfig.getoption("update_scenarios"):
        scenario.path.write_text(f"{scenario.head}\n\n{SEPARATOR}\n{text}", encoding="utf-8")
        return
    assert text == scenario.golden, "if this is right: pytest --update-scenarios"


def test_running_records_and_events_tell_one_story(outcome: Outcome) -> None:
    assert_views_agree(outcome.state, outcome.chronicle)


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order is carried out by a worker that first sends every earlier order again."""

    def from_the_first(carry_out: Callable[..., Any]) -> Callable[..., Any]:
        return lambda hands, order, *more: carry_out(hands, replace(order, cursor=""), *more)

    for name in ("perform", "watch", "observe_once"):
        monkeypatch.setattr(simulation, name, from_the_first(getattr(simulation, name)))


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
async def test_what_is_told_again_to_every_order_changes_nothing(path: Path) -> None:
    scenario = read(path)
    assert transcript(await play(scenario, Simulated())) == scenario.golden


def test_every_scenario_says_whether_it_is_played_on_real_processes() -> None:
    silent = [path.stem for path in FILES if read(path).is_real is None]
    assert not silent, "write `real`, or `not real:` and why"


HEAD = "# What it shows.\ncluster: 5 nodes, 8 devices\njob: {nodes: 1, env: {STEPS: '20'}}\n"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "some.txt"
    path.write_text(HEAD + "\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("at 5s explode n1", r"some.txt, line 4: .* names no fault"),
        ("at 5s tell pause now", r"line 4: 'now' should be keys and values"),
        ("at 5s show mercy", r"line 4: show what\? It knows status"),
        ("at noon tell pause", r"line 4: .* should begin: at 35s"),
        ("cluster: small", r"line 4: should read: cluster: 5 nodes"),
        ("weather: fine", r"line 4: .* names no fault"),
    ],
)
def test_a_line_nobody_understands_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(BadScenario, match=message):
        read(written(tmp_path, line))


def test_a_scenario_says_what_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("cluster: 5 nodes", encoding="utf-8")
    with pytest.raises(BadScenario, match="line 1: a scenario begins with a few lines that say"):
        read(path)


@pytest.mark.parametrize(
    "line", ["at 90s node-down n1", "at step 30 of demo preempt demo", "at 90s tell pause"]
)
async def test_a_line_that_comes_after_the_end_is_named(tmp_path: Path, line: str) -> None:
    scenario = read(written(tmp_path, line))
    with pytest.raises(BadScenario, match="line 4: the job ended before this"):
        await play(scenario, Simulated())


async def test_a_fault_of_something_that_is_not_there_is_named(tmp_path: Path) -> None:
    scenario = read(written(tmp_path, "device n9 0 80E01801"))
    with pytest.raises(BadScenario, match=r"line 4: .*n9"):
        await play(scenario, Simulated())


async def test_a_fault_that_could_not_happen_in_time_is_named(tmp_path: Path) -> None:
    scenario = read(written(tmp_path, "at 5s kill demo 7"))
    with pytest.raises(BadScenario, match="demo has no rank 7"):
        await play(scenario, Simulated())
