"""Which scenarios are played on which cluster of real processes: on this machine, or in pods.

Both clusters play the first scenario with each kind of fault, of outside action and of end. The others take
turns: what they add is an order of events, which the loop answers alike on both; what a verb of a cluster
promises is shown by the contract tests on each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from tests.support.playing.scenario import Scenario

Cluster = Literal["machine", "pods"]

TURN: dict[Cluster, int] = {"machine": 0, "pods": 1}
END = re.compile(r"^([A-Z]\w+):", re.MULTILINE)


def dealt(scenarios: Iterable[Scenario], cluster: Cluster) -> Iterator[Scenario]:
    """The scenarios that this cluster plays, in their order."""
    kinds: set[str] = set()
    turns = 0
    for scenario in scenarios:
        kinds_here = kinds_of(scenario)
        if kinds_here - kinds:
            yield scenario
        else:
            if turns % len(TURN) == TURN[cluster]:
                yield scenario
            turns += 1
        kinds |= kinds_here


def kinds_of(scenario: Scenario) -> set[str]:
    """What happens in it: its faults, actions from outside, and how the job ends."""
    cues = {f"{cue.verb} {'' if cue.verb == 'release' else cue.name}" for cue in scenario.cues}
    lost = {"an outcome is lost"} if scenario.forgotten else set[str]()
    spared = {"a pod stands by"} if scenario.document.get("spec", {}).get("spares") else set[str]()
    return faults_of(scenario) | cues | lost | spared | {*END.findall(scenario.golden)}


def faults_of(scenario: Scenario) -> set[str]:
    """What the faults of the scenario are called."""
    return {_fault_of(fault.text) for fault in scenario.faults}


def _fault_of(line: str) -> str:
    words = line.split()
    words = words[5:] if words[:2] == ["at", "step"] else words[2:]
    return "partition" if "partition" in words else words[0]
