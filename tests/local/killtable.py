"""The kill table: which processes are killed, when, and what the job must look like afterwards.

`cases` makes the rows: every process and every pair, at moments in a seeded order. `Table` carries them
out, each with a server, a worker and a job of its own: wait for the moment, kill, start server and worker
again, and check report, weights, restarts and what is left on the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.service import RPCError

from everstep.core.levels import Step
from tests.support.machine import STEPS, final, synthetic
from tests.support.patience import HUNG_S
from tests.support.rehearsal import Handle, Pod, Rehearsal, gist, numbers_repeat
from tests.support.rows import recovery

SEED = int(os.environ.get("KILL_SEED", "0")) or 20_261
"""Another table: KILL_SEED=7 make test-long ARGS=tests/local/killed"""
JOB = "synthetic"
AT_A_TIME = 3
"""Cases at once: each has a server, a worker and four ranks of its own, and there are few cores."""

SINGLES = ("rank", "agent", "worker", "server")
VICTIMS: tuple[tuple[str, ...], ...] = (
    *((one,) for one in SINGLES),
    *itertools.combinations(SINGLES, 2),
)

RESTARTS_WITHOUT_KILLS: Mapping[str, list[tuple[str, str, str]]] = {
    "nothing": [],
    "a crash": [("crash", "in_place", "success")],
    "a lost node": [("node", "pod", "success")],
}
"""What happens besides, and the restarts it costs when nothing is killed."""

FAULT: Mapping[str, str] = {"a crash": f"kill {JOB} 2", "a lost node": "node-down n1"}
FAULT_AT = 12
"""Step at which the incident begins: there is a checkpoint already, and one is still to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment in the life of a job, and a test whether it has come."""

    name: str
    has_come: Callable[[Rehearsal], object]
    is_new_row: bool = False  # it has come when the server has the workflow of the Recovery
    step: Step | None = None  # of the Recovery, which is under way then or has just ended

    def __str__(self) -> str:
        return self.name


def step(number: int, *, generation: int = 1) -> Moment:
    return Moment(
        name=f"step {number} of generation {generation}",
        has_come=lambda r: r.step(generation=generation) >= number,
    )


def has_started(pod: Pod, *, generation: int) -> bool:
    """Whether all ranks of this pod became their command."""
    run = pod.state()["run"]
    return run is not None and run["generation"] >= generation and run["started_at"] is not None


DURING: tuple[Moment, ...] = (
    Moment(name="the fault", has_come=lambda _: True),
    Moment(name="the row of the Recovery", has_come=lambda _: True, is_new_row=True),
    Moment(name="generation 2 given out", step=Step.STOP, has_come=lambda r: r.newest(JOB) >= 2),
    Moment(
        name="a slot is stopped",
        step=Step.STOP,
        has_come=lambda r: any(p.state()["stopped_below"] >= 2 for p in r.pods(JOB)),
    ),
    Moment(
        name="generation 2 fenced",
        step=Step.RESUME,
        has_come=lambda r: (r.books().job(JOB).fenced or 0) >= 2,
    ),
    Moment(
        name="ranks of generation 2 started",
        step=Step.START,
        has_come=lambda r: any(has_started(p, generation=2) for p in r.pods(JOB)),
    ),
    Moment(
        name="ranks of generation 2 train",
        has_come=lambda r: any(path.stat().st_size for path in r.logs(generation=2)),
    ),
)
WITH_RANKS: tuple[Moment, ...] = (
    *DURING[-2:],
    step(FAULT_AT, generation=2),
    step(FAULT_AT + 10, generation=2),
)
"""Moments for cases that kill a rank: at the others there is mostly none."""

PLACED = Moment(
    name="generation 2 placed",
    step=Step.PLACE,
    has_come=lambda r: (r.books().job(JOB).placed or 0) >= 2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table."""

    victims: tuple[str, ...]
    besides: str
    moment: Moment
    slot: int  # of the rank or the agent that is killed

    def __str__(self) -> str:
        return f"{' and '.join(self.victims)} (slot {self.slot}) at {self.moment}, {self.besides}"


def cases(seed: int) -> list[Case]:
    """Every process and every pair, while the job is well and while it recovers: a moment each."""
    chance = random.Random(seed)
    decks = {
        besides: Deck(chance, has_places=besides == "a lost node")
        for besides in RESTARTS_WITHOUT_KILLS
    }
    return [
        Case(
            victims=victims,
            besides=besides,
            moment=decks[besides].moment(besides, victims),
            slot=chance.randrange(4),
        )
        for besides in RESTARTS_WITHOUT_KILLS
        for victims in VICTIMS
    ]


class Deck:
    """Moments in a seeded order, each of them before any comes twice."""

    def __init__(self, chance: random.Random, *, has_places: bool) -> None:
        self._chance = chance
        self._during = self._shuffled((*DURING, PLACED) if has_places else DURING)
        self._with_ranks = self._shuffled(WITH_RANKS)

    def _shuffled(self, moments: Sequence[Moment]) -> Iterator[Moment]:
        return itertools.cycle(self._chance.sample(moments, len(moments)))

    def moment(self, besides: str, victims: tuple[str, ...]) -> Moment:
        if besides == "nothing":
            return step(self._chance.randrange(2, STEPS - 8))
        return next(self._with_ranks if "rank" in victims else self._during)


@dataclass(slots=True, kw_only=True)
class Table:
    """Carries out cases, several at a time, and says what is wrong with each."""

    folder: Path
    expected: dict[str, object]
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))

    async def run(self, cases: Sequence[Case]) -> Mapping[str, list[str]]:
        """The cases of which anything is not as it must be."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(n, case)) for n, case in enumerate(cases)]
        wrong = {str(case): task.result() for case, task in zip(cases, tasks, strict=True)}
        return {case: problems for case, problems in wrong.items() if problems}

    async def _one(self, number: int, case: Case) -> list[str]:
        async with self.turn:
            began = time.monotonic()
            folder = self.folder / f"case-{number}"
            try:
                problems, summary = await carried_out(case, folder, self.expected)
            except (AssertionError, TimeoutError, RPCError) as error:
                problems, summary = [repr(error)], "?"
            verdict = "" if not problems else f" WRONG: {problems}"
            took = time.monotonic() - began
            sys.stdout.write(f"{number:3} {took:5.1f} s  {case}: {summary}{verdict}\n")
            return problems


async def carried_out(
    case: Case, folder: Path, expected: dict[str, object]
) -> tuple[list[str], str]:
    """What is wrong afterwards, and the restarts in a few words."""
    async with Rehearsal(folder) as r:
        job = await r.submit(synthetic(folder / "job"))
        if case.besides != "nothing":
            await r.until(lambda: r.step(generation=1) >= FAULT_AT, f"step {FAULT_AT}")
            await r.fault(FAULT[case.besides])
        await wait_for(r, job, case.moment)
        hits = kill(r, case)
        await bring_back(r, case)
        report = await r.report(job)
        problems = [
            *([] if report["status"] == "Completed" else [f"it is {report['status']}"]),
            *([] if final(folder / "job") == expected else ["the weights are others"]),
            *(["two records have one number"] if numbers_repeat(report) else []),
            *wrong_restarts(case, hits, gist(report)),
            *await r.is_clean(folder / "job"),
        ]
        if problems:
            problems.append(r.summary())
        text = ", ".join(f"{cls} -> {level}: {end}" for cls, level, end in gist(report))
    left = r.machine.processes()
    return [*problems, *(f"process {pid} outlives it" for pid in left)], f"{hits} hit; {text}"


async def wait_for(r: Rehearsal, job: Handle, moment: Moment) -> None:
    if not moment.is_new_row:
        await r.until(lambda: moment.has_come(r), str(moment))
        return
    row = r.client.get_workflow_handle(await recovery(r.client, job))
    async with asyncio.timeout(HUNG_S):
        while True:
            with suppress(RPCError):
                await row.describe()
                return
            await asyncio.sleep(0.005)


def kill(r: Rehearsal, case: Case) -> int:
    """Send SIGKILL to all victims at once; return how many kinds of faults of the job that makes."""
    targets: list[tuple[str, int]] = []
    for victim in case.victims:
        targets += [(victim, pid) for pid in pids_of(r, victim, case.slot)]
    hits = set()
    for victim, pid in targets:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            hits.add(victim)
    return len(hits & {"rank", "agent"})


def pids_of(r: Rehearsal, victim: str, slot: int) -> list[int]:
    if victim == "worker":
        return [r.worker.pid]
    if victim == "server":
        return [r.server.pid]
    pods = r.pods(JOB)
    # At this moment the slot may have no pod, or the pod no rank: then it is the next one's turn.
    for pod in (*pods[slot:], *pods[:slot]):
        pids = pod.ranks() if victim == "rank" else [pod.agent()]
        if living := [pid for pid in pids if pid is not None]:
            return living
    return []


async def bring_back(r: Rehearsal, case: Case) -> None:
    """A killed server or worker is started again; ranks and agents are restarted by the job alone."""
    if "server" in case.victims:
        await r.server.restart()
    if "worker" in case.victims:
        await r.worker.restart()


def wrong_restarts(case: Case, hits: int, restarts: list[tuple[str, str, str]]) -> list[str]:
    """Whether these restarts can be explained by what was done, and by nothing more."""
    usual = RESTARTS_WITHOUT_KILLS[case.besides]
    if hits == 0:  # worker and server cost nothing
        return [] if restarts == usual else [f"restarts {restarts} instead of {usual}"]
    most = len(usual) + hits
    if not 1 <= len(restarts) <= most:
        return [f"{len(restarts)} restarts for {most} faults: {restarts}"]
    return [problem for check in CHECKS for problem in check(case, restarts)]


Gist = list[tuple[str, str, str]]


def _ends_well(_case: Case, restarts: Gist) -> list[str]:
    """Every Recovery came to an end, the last one to a good one."""
    ends = [end for _, _, end in restarts]
    is_well = ends[-1] == "success" and set(ends) <= {"success", "downgrade", "terminated"}
    return [] if is_well else [f"the restarts ended with {ends}"]


def _is_named_rightly(case: Case, restarts: Gist) -> list[str]:
    classes = {cls for cls, _, _ in restarts}
    allowed = {"crash", "node"} if case.besides == "a lost node" else {"crash"}
    is_seen = case.besides != "a lost node" or "node" in classes
    return [] if classes <= allowed and is_seen else [f"the faults were named {classes}"]


def _is_gentle(case: Case, restarts: Gist) -> list[str]:
    """A dead rank alone costs a start in place, a dead agent a new pod; both more only if repeated."""
    levels = [level for _, level, _ in restarts]
    gentlest = {"rank": "in_place", "agent": "pod"}
    if case.besides == "nothing":
        hardest = "pod" if "agent" in case.victims else gentlest["rank"]
        return [] if levels[-1] == hardest else [f"the levels are {levels}"]
    return [] if set(levels) <= {"in_place", "pod", "job"} else [f"the levels are {levels}"]


CHECKS: tuple[Callable[[Case, Gist], list[str]], ...] = (
    _ends_well,
    _is_named_rightly,
    _is_gentle,
)
