"""What the scenarios show that are played on real processes, on this machine and in pods.

Each cluster has to show every verb for every class of fault, every kind of fault and of outside action. What
the loop does (its decisions, its records, what is seen at which moment) is shown on either of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tests.plays.coverage import Coverage
from tests.support import seconds
from tests.support.playing.scenario import Scenario, read

Cluster = Literal["machine", "pods"]

FOLDER = Path(__file__).parents[1] / "scenarios"
REAL = [one for path in sorted(FOLDER.glob("*.txt")) if (one := read(path)).is_real]

LINE = re.compile(r"^ +[\d.]+  (\w+) *(.*)$", re.MULTILINE)
LEVEL = re.compile(r"(in_place|pod|job|elastic|rollback|suspension): ")
HEAD = re.compile(r"^n +(?:phase +)?class ", re.MULTILINE)
END = re.compile(r"^([A-Z]\w+):", re.MULTILINE)
VERB = re.compile(r"place|start|stop|isolate|remove|heal|check|fence|take|stand|release|save")
FLAG = re.compile(r"\b(?:heals|proven|severity)=\w+")


def of_cluster(scenario: Scenario) -> Iterator[str]:
    """Verbs by class of fault, kinds of faults and of outside actions, and how the job ends."""
    yield from (text for text in _course(scenario) if text.startswith("verb: "))
    yield from (f"fault: {name}" for name in faults_of(scenario))
    for cue in scenario.cues:
        yield f"cue: {cue.verb} {'' if cue.verb == 'release' else cue.name}".rstrip()
    yield from (f"end: {name}" for name in END.findall(scenario.golden))
    if scenario.forgotten:
        yield "an outcome is lost"


def of_loop(scenario: Scenario) -> Iterator[str]:
    """Decisions, records, what is seen and commanded at each moment, and parts of the document."""
    yield from (text for text in _course(scenario) if not text.startswith("verb: "))
    yield from (f"record: {' '.join(record)}" for record in records_of(scenario))
    yield from (f"document: {key}" for key in scenario.document["spec"])


def _course(scenario: Scenario) -> Iterator[str]:
    """What the lines of the transcript show, each with the moment of the job that it falls in."""
    records = iter(records_of(scenario))
    moment, fault, sight = "launching", "the launch", ""
    for verb, text in LINE.findall(scenario.golden):
        name = re.split("[ ;:]", text, maxsplit=1)[0]
        if VERB.fullmatch(verb):
            yield f"verb: {verb} for {fault}"
        elif verb == "seen":
            sight = " ".join([name, *FLAG.findall(text)])
            yield f"seen: {sight} while {moment}"
        elif verb == "decided":
            yield f"decided: {name} at {sight}"
        else:
            yield f"told: {f'tell {name}' if verb == 'tell' else verb} while {moment}"
        if verb == "decided" and LEVEL.match(text):
            moment, fault = "recovering", next(records, ("a fault", "", ""))[0]
        elif verb == "start":
            moment, fault = "training", "nothing"
        elif (verb, name) == ("tell", "pause"):
            moment = "paused"


def records_of(scenario: Scenario) -> list[tuple[str, str, str]]:
    """Class, level and result of each restart, from the table below the transcript."""
    head = HEAD.search(scenario.golden)
    if head is None:
        return []
    title, *rows = scenario.golden[head.start() :].splitlines()
    cells = [row[title.index("class") :].split() for row in rows if row[:1].isdigit()]
    return [(cell[0], cell[1], cell[2]) for cell in cells]


def faults_of(scenario: Scenario) -> set[str]:
    """What the faults of the scenario are called."""
    return {_fault_of(fault.text) for fault in scenario.faults}


def _fault_of(line: str) -> str:
    words = line.split()
    words = words[5:] if words[:2] == ["at", "step"] else words[2:]
    return "partition" if "partition" in words else words[0]


TESTS: dict[Cluster, str] = {
    "machine": "tests/local/test_scenarios_on_this_machine.py::"
    "test_real_processes_take_the_same_course",
    "pods": "tests/kubernetes/test_scenarios_in_pods.py::test_a_job_in_pods_takes_the_same_course",
}
QUICK = ("node_lost",)
"""Played by the quick tests of both clusters; each of the others takes some seconds of two cores as well."""


def play_of(name: str, cluster: Cluster) -> str:
    return f"{name} ({cluster})"


def _cost(scenario: Scenario, cluster: Cluster) -> float:
    """About what playing it costs: what was measured, and the lines of its transcript, twice in pods."""
    measured_s = MEASURED_S.get(f"{TESTS[cluster]}[{scenario.path.stem}]", 0.0)
    return measured_s + len(scenario.golden.splitlines()) * (2 if cluster == "pods" else 1)


MEASURED_S = seconds.read()
COVERAGE = Coverage(
    title="scenarios",
    shows={
        play_of(scenario.path.stem, cluster): frozenset(
            [f"{cluster}: {text}" for text in of_cluster(scenario)] + [*of_loop(scenario)]
        )
        for scenario in REAL
        for cluster in TESTS
    },
    costs={
        play_of(scenario.path.stem, cluster): _cost(scenario, cluster)
        for scenario in REAL
        for cluster in TESTS
    },
    always=frozenset(play_of(name, cluster) for name in QUICK for cluster in TESTS),
)
