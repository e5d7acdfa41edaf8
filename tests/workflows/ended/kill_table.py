"""Prints for which writes of a Recovery a test kills the worker or the server: `make kill-table`.

A row for each step of each level, a column for each backend, a number for how many kills. All of it is read
from the parameters of the tests that kill: what they leave out shows as a gap.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from everstep.core.levels import STEPS, Level, Step
from tests.kubernetes import test_outages as on_kubernetes
from tests.local import killtable as on_machine
from tests.support.moments import Begun, Call, Event
from tests.workflows.ended import test_kills as on_fake

STEP_OF: Mapping[str, Step] = {
    "ensure_generation": Step.STOP,
    "ensure_stopped": Step.STOP,
    "ensure_healed": Step.HEAL,
    "nodes": Step.ISOLATE,
    "ensure_isolated": Step.ISOLATE,
    "ensure_standby": Step.STANDBY,
    "ensure_placed": Step.PLACE,
    "ensure_fenced": Step.RESUME,
    "checkpoints": Step.RESUME,
    "ensure_set_aside": Step.RESUME,
    "ensure_started": Step.START,
}
"""Verb of a backend -> the step that calls it."""
LEVEL_IN_ID = re.compile(r"/recovery-\d+-([a-z_]+)-")


class Write(NamedTuple):
    """A step of a Recovery of this level."""

    level: Level
    step: Step


ALL: tuple[Write, ...] = tuple(
    Write(level, step) for level, steps in STEPS.items() for step in steps
)


def of_fake() -> Iterator[Write]:
    """The nth kill of a row is in the nth Recovery of its incident, or in the only one."""
    rows = [(incident, row) for incident, rows in on_fake.MOMENTS.values() for row in rows]
    for incident, row in (*rows, *on_fake.SERVER):
        several = len(row) == len(incident.levels)
        for moment, level in zip(row, itertools.cycle(incident.levels), strict=False):
            own_level = level if several else incident.levels[0]
            match moment:
                case Call(verb=verb) if verb in STEP_OF:
                    yield Write(own_level, STEP_OF[verb])
                case Begun(recovery=recovery, step=step):
                    yield Write(_level_of(recovery), step)
                case Event(workflow=workflow, kind="ACTIVITY_TASK_SCHEDULED", nth=nth):
                    yield from _scheduled(workflow, nth)
                case _:
                    pass


def _scheduled(workflow: str, nth: int) -> Iterator[Write]:
    """The first step of a plan is its stop; which others it has depends on its fault."""
    if nth == 1 and LEVEL_IN_ID.search(workflow):
        yield Write(_level_of(workflow), Step.STOP)


def _level_of(recovery: str) -> Level:
    level = LEVEL_IN_ID.search(recovery)
    assert level is not None
    return Level(level[1])


def of_machine() -> Iterator[Write]:
    for case in on_machine.cases(on_machine.SEED):
        restarts = on_machine.RESTARTS_WITHOUT_KILLS[case.besides]
        if case.moment.step is not None and {"worker", "server"} & {*case.victims}:
            for _, level, _ in restarts:
                yield Write(Level(level), case.moment.step)


def of_kubernetes() -> Iterator[Write]:
    for level, steps in on_kubernetes.KILLED_AT.items():
        for step in steps:
            yield Write(level, Step(step))


BACKENDS = {"fake": of_fake, "local": of_machine, "kubernetes": of_kubernetes}


def counts() -> Mapping[str, Counter[Write]]:
    return {backend: Counter(writes()) for backend, writes in BACKENDS.items()}


def table() -> str:
    """The table as text; `-` where no test kills."""
    columns = counts()
    lines = [f"{'level':16}{'step':10}" + "".join(f"{backend:>12}" for backend in columns)]
    for write in ALL:
        numbers = [f"{column[write] or '-':>12}" for column in columns.values()]
        lines.append(f"{write.level:16}{write.step:10}" + "".join(numbers))
    return "\n".join(lines)


def text() -> str:
    """The table, and below it what no test kills at on any backend."""
    columns = counts().values()
    without = [f"{one.level} {one.step}" for one in ALL if not any(kills[one] for kills in columns)]
    number = len(ALL) - len(without)
    summary = f"{number} of {len(ALL)} lines have a kill; none: {', '.join(without) or '-'}"
    return f"{table()}\n\n{summary}"


if __name__ == "__main__":
    sys.stdout.write(f"{text()}\n")
