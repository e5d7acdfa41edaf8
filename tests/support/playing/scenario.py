"""Scenario files: what happens to a job, and the transcript it should leave. How they are read and played.

How it is written down is `transcript.py`. It is played by a `Driver`: `simulated.py` is one; others that can
run a job on a fake cluster and hand back its decisions, records and status can be another.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import yaml

from everstep.backends.base import Backend
from everstep.backends.fake.faults import parse_fault
from everstep.backends.fake.settings import EPOCH
from everstep.backends.fake.simulated.state import Effect
from everstep.backends.fault_lines import When
from everstep.core.deciding.decision import Decision
from everstep.core.world import JobRef
from everstep.documents.merge import merged

SEPARATOR = "-----"
"""The line between a scenario and its transcript."""
JOB = "demo"
OPERATOR = JobRef(id="operator", run="scenario")
PATIENCE_S = 7 * 86_400.0
"""A job that is still there after a week of virtual time will never end."""


class BadScenario(Exception):
    """The file is not a scenario; the message names it and the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """An outside action at a time: `tell`, `show`, `lose`, `quarantine`, `release`."""

    line: int
    at_s: float
    verb: str
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLine:
    """A line for the fake cluster itself."""

    line: int
    text: str
    when: When


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One file, read."""

    path: Path
    head: str  # everything before the rule, as it stands
    golden: str
    nodes: int
    devices: int
    document: Mapping[str, Any]
    policy: Mapping[str, Any]
    faults: tuple[FaultLine, ...]
    cues: tuple[Cue, ...]
    forgotten: tuple[int, ...]  # recoveries whose outcome never arrives, though they ended
    is_real: bool | None  # whether it can be played on real processes; None: the file does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What came of a cue, for the transcript."""

    at_s: float
    what: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What can be read of a job's life afterwards."""

    decisions: tuple[Decision, ...]
    restarts: tuple[Mapping[str, Any], ...]  # as the query gives them
    status: Mapping[str, Any]
    report: Mapping[str, Any]
    effects: tuple[Effect, ...]
    notes: tuple[Note, ...]


class Driver(Protocol):
    """Runs the job of a scenario on a fake cluster whose clock stands still unless a caller waits."""

    @property
    def backend(self) -> Backend:
        """The cluster; there from `set_up` on."""

    async def set_up(self, scenario: Scenario) -> None:
        """Build the cluster and make everything ready for the job."""

    async def fault(self, line: str) -> None:
        """Let something go wrong on the cluster, now or later."""

    async def run(self) -> None:
        """The job, from its start to its end."""

    async def act(self, cue: Cue) -> str:
        """Do what the cue says; return once the job has taken it up, with what there is to say."""

    async def played(self, notes: tuple[Note, ...]) -> Played:
        """Everything for the transcript, after the end."""

    def has_happened(self, when: When) -> bool:
        """Whether this moment came before the job ended."""


# -- Playing ------------------------------------------------------------------------------------


async def play(scenario: Scenario, driver: Driver) -> Played:
    """From the first line to the end of the job."""
    await driver.set_up(scenario)
    await driver.backend.ensure_generation(OPERATOR, "clock")  # from here on it holds the clock
    await _break(scenario, driver)
    notes: list[Note] = []
    job = asyncio.create_task(driver.run())
    operator = asyncio.create_task(_operate(scenario, driver, notes))
    try:
        await asyncio.wait({job, operator}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            operator.result()
        await job
    finally:
        for task in (operator, job):
            task.cancel()
        await asyncio.gather(operator, job, return_exceptions=True)
    _all_used(scenario, driver)
    played = await driver.played(tuple(notes))
    for effect in played.effects:
        if effect.what.startswith("could not"):
            raise BadScenario(f"{scenario.path.name}: {effect.what}")
    return played


async def _break(scenario: Scenario, driver: Driver) -> None:
    for fault in scenario.faults:
        try:
            await driver.fault(fault.text)
        except ValueError as error:
            raise BadScenario(f"{scenario.path.name}, line {fault.line}: {error}") from None


async def _operate(scenario: Scenario, driver: Driver, notes: list[Note]) -> None:
    """The cues in their order. Between them the operator waits on the clock of the cluster."""
    for cue in scenario.cues:
        await _wait_until(driver.backend, cue.at_s)
        answer = await driver.act(cue)
        if cue.verb != "release":  # what comes of it on the cluster is told anyway
            notes.append(_note(cue, answer))
    await _wait_until(driver.backend, PATIENCE_S)
    raise BadScenario(f"{scenario.path.name}: the job never ended")


def _note(cue: Cue, answer: str) -> Note:
    if cue.verb == "show":
        return Note(at_s=cue.at_s, what=cue.name, text=answer)
    arguments = ", ".join(f"{key}: {value}" for key, value in cue.args.items())
    text = f"{cue.name} ({arguments})" if arguments else cue.name
    return Note(at_s=cue.at_s, what=cue.verb, text=f"{text}; {answer}" if answer else text)


async def _wait_until(backend: Backend, at_s: float) -> None:
    now, cursor = 0.0, ""
    while now < EPOCH + at_s:
        observation = await backend.observe(OPERATOR, cursor=cursor, until=EPOCH + at_s)
        now, cursor = observation.now, observation.cursor


def _all_used(scenario: Scenario, driver: Driver) -> None:
    unused = [fault.line for fault in scenario.faults if not driver.has_happened(fault.when)]
    unused += [cue.line for cue in scenario.cues if not driver.has_happened(When(at_s=cue.at_s))]
    if unused:
        lines = ", ".join(str(line) for line in sorted(unused))
        raise BadScenario(f"{scenario.path.name}, line {lines}: the job ended before this")


# -- Reading ------------------------------------------------------------------------------------

HEADS = ("cluster", "job", "policy")
CLUSTER = re.compile(r"(\d+) nodes?(?:, (\d+) devices?)?")
REAL = "real"
NOT_REAL = re.compile(r"not real: .+", re.DOTALL)
OUTCOME = re.compile(r"lose the outcome of recovery (\d+)")
CUE = re.compile(r"at (?P<at>\S+) (?P<verb>tell|show|lose|quarantine|release) (?P<name>.+)")
NAMES: Mapping[str, tuple[str, ...]] = {
    "show": ("status",),
    "lose": ("the recovery",),
    "quarantine": ("unreachable", "back"),
}


def read(path: Path) -> Scenario:
    """The scenario in this file; `BadScenario` names the line that cannot be understood."""
    head, separator, golden = path.read_text(encoding="utf-8").partition(f"\n{SEPARATOR}\n")
    if not separator and head.endswith(f"\n{SEPARATOR}"):
        head = head.removesuffix(f"\n{SEPARATOR}")
    blank = Scenario(
        path=path,
        head=head.rstrip(),
        golden=golden,
        nodes=5,
        devices=8,
        document=document({}),
        policy={},
        faults=(),
        cues=(),
        forgotten=(),
        is_real=None,
    )
    return _Reader(scenario=blank).read()


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Goes through the lines before the rule."""

    scenario: Scenario

    def read(self) -> Scenario:
        lines = self.scenario.head.splitlines()
        if not lines or not lines[0].startswith("#"):
            raise self._bad(1, "a scenario begins with a few lines that say what it shows")
        number = 0
        while number < len(lines):
            number = self._take(lines, number)
        cues = sorted(self.scenario.cues, key=lambda cue: cue.at_s)
        return replace(self.scenario, cues=tuple(cues))

    def _take(self, lines: list[str], start: int) -> int:
        """Understand the line, with the indented ones that belong to it; the number of the next."""
        end = start + 1
        while end < len(lines) and lines[end].startswith(" "):
            end += 1
        text = lines[start].strip()
        if text and not text.startswith("#"):
            self._understand("\n".join(lines[start:end]), start + 1)
        return end

    def _understand(self, text: str, line: int) -> None:
        if text.partition(":")[0] in HEADS:
            self.scenario = self._headed(self._yaml(text, line), line)
        elif text == REAL or NOT_REAL.fullmatch(text):
            self.scenario = replace(self.scenario, is_real=text == REAL)
        elif match := CUE.fullmatch(text):
            cue = self._cue(match, line)
            self.scenario = replace(self.scenario, cues=(*self.scenario.cues, cue))
        elif match := OUTCOME.fullmatch(text):
            forgotten = (*self.scenario.forgotten, int(match[1]))
            self.scenario = replace(self.scenario, forgotten=forgotten)
        else:
            fault = self._fault(text, line)
            self.scenario = replace(self.scenario, faults=(*self.scenario.faults, fault))

    def _headed(self, head: Mapping[str, Any], line: int) -> Scenario:
        if match := CLUSTER.fullmatch(str(head.get("cluster"))):
            devices = int(match[2] or 0)
            return replace(self.scenario, nodes=int(match[1]), devices=devices)
        if isinstance(spec := head.get("job"), dict):
            return replace(self.scenario, document=document(spec))
        if isinstance(policy := head.get("policy"), dict):
            return replace(self.scenario, policy=policy)
        raise self._bad(line, "should read: cluster: 5 nodes, 8 devices, or job: {...}")

    def _cue(self, match: re.Match[str], line: int) -> Cue:
        verb, name, args = match["verb"], match["name"], {}
        if verb == "tell":
            name, _, rest = name.partition(" ")
            args = self._yaml(rest, line) if rest else {}
        elif verb in NAMES and name not in NAMES[verb]:
            raise self._bad(line, f"{verb} what? It knows {' and '.join(NAMES[verb])}")
        # The time of a cue is written as that of a fault: it is read from any line with that time.
        when = self._fault(f"at {match['at']} add-node n0", line).when
        return Cue(line=line, at_s=when.at_s or 0.0, verb=verb, name=name, args=args)

    def _fault(self, text: str, line: int) -> FaultLine:
        try:
            return FaultLine(line=line, text=text, when=parse_fault(text).when)
        except ValueError as error:
            raise self._bad(line, str(error)) from None

    def _yaml(self, text: str, line: int) -> dict[str, Any]:
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise self._bad(line, str(error)) from None
        if not isinstance(value, dict):
            raise self._bad(line, f"{text!r} should be keys and values")
        return value

    def _bad(self, line: int, why: str) -> BadScenario:
        return BadScenario(f"{self.scenario.path.name}, line {line}: {why}")


def document(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A native document: what the scenario says, over a job of a hundred steps on four nodes."""
    base: dict[str, Any] = {
        "command": ["python", "train.py"],
        "nodes": 4,
        "accelerators_per_node": 8,
        "accelerator": "simulated",
        "env": {"STEPS": "100"},
        "model_dir": f"out/{JOB}",
        "checkpoints": {"path": f"out/{JOB}/ckpt"},
    }
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": JOB},
        "spec": merged(base, dict(spec)),
    }
