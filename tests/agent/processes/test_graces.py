"""When the processes of a pod are killed: at the end of their grace, which later orders may only shorten."""

from __future__ import annotations

import contextlib
import sched
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from everstep.agent.processes.proc import Process
from everstep.agent.processes.termination import Ending, Population

if TYPE_CHECKING:
    from everstep.agent.loop import Loop

RANK = Process(
    pid=2**30,  # more than any kernel gives
    name="python",
    state="S",
    parent=1,
    group=1,
    session=1,
    cpu=0,
    threads=1,
    started=1,
)


class VirtualLoop:
    """The timers of a loop, in virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers = sched.scheduler(lambda: self.now, self._pass)

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def later(self, after_s: float, do: Callable[[], None]) -> sched.Event:
        return self._timers.enter(after_s, 0, do)

    def cancel(self, timer: sched.Event) -> None:
        with contextlib.suppress(ValueError):  # it came before
            self._timers.cancel(timer)

    def left_s(self, timer: sched.Event) -> float:
        return timer.time - self.now

    def run(self) -> None:
        self._timers.run()


class IgnoresSigterm:
    """A pod with one rank, which ends only when it is killed."""

    def descendants_to_end(self) -> list[Process]:
        return [RANK]

    def to_end(self) -> list[Process]:
        return []


@pytest.mark.parametrize(
    ("at", "grace_s", "killed_at"),
    [(5.0, 30.0, 35.0), (55.0, 2.0, 57.0), (55.0, 30.0, 60.0), (5.0, 90.0, 60.0)],
)
def test_a_later_order_shortens_what_is_left_of_the_grace_and_never_prolongs_it(
    at: float, grace_s: float, killed_at: float
) -> None:
    loop, killed = VirtualLoop(), list[float]()
    ending = Ending(
        cast("Loop", loop),
        cast("Population", IgnoresSigterm()),
        ranks=[],
        collect=None,
        grace_s=60.0,
        signals=lambda _: None,
        done=lambda: killed.append(loop.now),
    )
    ending.begin()
    for again_s in (0.0, 1.0):  # a worker repeats its order
        loop.later(at + again_s, lambda: ending.hasten(grace_s))
    loop.run()
    assert killed == [pytest.approx(killed_at)]
