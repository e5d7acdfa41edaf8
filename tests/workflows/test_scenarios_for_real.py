"""The scenarios once more, on the real server: the same transcript, to the letter.

`make test` plays the fewest that show every step, every level that succeeds and every end of the others.
The rest are long: only they find an order of steps that the workflows take otherwise than
`tests/test_scenarios.py`, which plays all of them without a server. Commands are in tests/workflows/updates.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.plays.coverage import fewest
from tests.support.playing.durable import Durable
from tests.support.playing.scenario import Scenario, play, read
from tests.support.playing.transcript import transcript

FOLDER = Path(__file__).parents[1] / "scenarios"
SCENARIOS = {path.stem: read(path) for path in sorted(FOLDER.glob("*.txt"))}

UNWRITABLE = ("storage_never_writable", "storage_unwritable_at_launch")
"""Their storage takes no last line either."""

STEP = re.compile(r"^ +[\d.]+  (?!seen|decided|tell)(\w+)", re.MULTILINE)
SUCCESS = re.compile(r"^\d+ +\S+ +(\w+ +success)", re.MULTILINE)
END = re.compile(r"^([A-Z]\w+):", re.MULTILINE)


def features(scenario: Scenario) -> frozenset[str]:
    """What workflows do in it: steps, levels that succeed, what befalls their helpers, and its end."""
    texts = [text for pattern in (STEP, SUCCESS, END) for text in pattern.findall(scenario.golden)]
    cues = [cue for cue in scenario.cues if cue.verb != "tell"]
    texts += [f"{cue.verb} {'' if cue.verb == 'release' else cue.name}" for cue in cues]
    texts += ["an outcome is lost"] if scenario.forgotten else []
    return frozenset(" ".join(text.split()) for text in texts)


SHOWS = {name: features(scenario) for name, scenario in SCENARIOS.items()}
LINES = {name: len(scenario.golden.splitlines()) for name, scenario in SCENARIOS.items()}
"""The lines of its transcript: about what playing it costs."""

FEWEST = fewest(SHOWS, LINES)


def test_the_fewest_show_all_that_workflows_do() -> None:
    texts = frozenset[str]().union(*(SHOWS[name] for name in FEWEST))
    assert texts == frozenset[str]().union(*SHOWS.values())
    steps = {"place", "start", "stop", "isolate", "remove", "heal", "check", "fence"}
    levels = {"in_place", "pod", "job", "elastic", "rollback", "suspension"}
    assert texts >= steps | {f"{level} success" for level in levels}
    assert texts >= {"Completed", "Failed", "Terminated", "lose the recovery"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in FEWEST else [pytest.mark.long]) for n in SCENARIOS],
)
async def test_workflows_leave_the_same_transcript(
    name: str, client: Client, request: pytest.FixtureRequest
) -> None:
    if name in UNWRITABLE:
        request.getfixturevalue("no_other_writer")
    scenario = SCENARIOS[name]
    assert transcript(await play(scenario, Durable(client))) == scenario.golden
