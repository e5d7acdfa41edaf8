"""The agent itself: what it is told, what becomes of it, what it tells.

Everything here runs in the one thread of the loop, but for `wait`. What others read is a snapshot that
is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from everstep.agent import book, clock, logs, proc, steps, wire
from everstep.agent.ending import Ending, Population
from everstep.agent.loop import Loop
from everstep.agent.members import Members
from everstep.agent.rank import LAST_READS, Rank
from everstep.agent.run import Run

FACTS_KEPT = 100
STEPS_TOLD_S = 0.5
"""Steps are told at most so often; the first one, and their exact times, are not delayed or changed."""

STATE_FILE = "state.json"
EVIDENCE = "evidence"


GONE_S = 1.0
"""A process that was killed is waited for so long, no longer: a driver may hold it for ever."""


def _wait(pid: int) -> None:
    deadline = time.monotonic() + GONE_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.002)


def _need_the_same(wanted: list[int], there: list[int]) -> None:
    """Raises ValueError."""
    if sorted(wanted) != sorted(there):
        told, live = (", ".join(map(str, sorted(ranks))) or "none" for ranks in (wanted, there))
        raise ValueError(f"ranks that were to go on: {told}; those that live: {live}")


class Stale(Exception):
    """The command is older than what was told before."""


class Agent:
    """One pod's agent."""

    def __init__(
        self, loop: Loop, home: Path, *, job: str, slot: int, node: str, uid: str, orphan_s: float
    ) -> None:
        self.loop = loop
        self.home = home
        self.job, self.slot, self.node, self.uid = job, slot, node, uid
        self.boot = uuid.uuid4().hex
        self.orphan_s = orphan_s
        self.population = Population(Members(home, uid), self.note)
        self.generation = 0
        self.stopped_below = 0
        self.kept: list[int] = []
        self.run: Run | None = None
        self.evidence: str | None = None
        self.notes: list[str] = []
        self.facts: list[wire.FactSeen] = []
        self.polled = time.monotonic()
        self.looks: list[Callable[[], None]] = []  # called once a second
        self.look_now: Callable[[], None] = lambda: None  # asked for by who wants to know it now
        self.guards: list[Callable[[], None]] = []  # called when there is something else to guard
        self.children: dict[
            int, Callable[[], None]
        ] = {}  # of ours that are no ranks, and what to do
        self.keep_evidence: Callable[[Run, float, Callable[[str | None], None]], None] | None = None
        self.why_killed: Callable[[], str | None] = lambda: None  # by somebody of ours
        self.fork: Callable[[Run, Rank], bool] = lambda _run, _rank: False  # it, instead of a start
        self.prepare: Callable[[Run], None] = lambda _run: None  # for the start after this one
        self.helper: Callable[[], wire.HelperSeen | None] = lambda: None
        self._past: wire.RunSeen | None = None  # what an earlier agent ran here
        self._ending: Ending | None = None
        self._after: list[Callable[[], None]] = []
        self._facts_told = 0
        self._version = 0
        self._news = 0
        self._changed = threading.Condition()
        self._snapshot = self._state()
        self._steps_told = 0.0
        self._steps_due = False

    # -- what others see --------------------------------------------------------------------------

    def _state(self) -> wire.State:
        run = self.run.seen() if self.run is not None else self._past
        return {
            "version": self._version,
            "news": self._news,
            "now": clock.now(),
            "uid": self.uid,
            "job": self.job,
            "slot": self.slot,
            "node": self.node,
            "boot": self.boot,
            "generation": self.generation,
            "run": run,
            "stopped_below": self.stopped_below,
            "kept": self.kept,
            "evidence": self.evidence,
            "helper": self.helper(),
            "notes": list(self.notes),
            "facts": self.facts[-FACTS_KEPT:],
        }

    @property
    def quiet_s(self) -> float:
        """That training goes on is told after this time at the latest, or it would look suspended."""
        still_s = self.run.still_s if self.run is not None else None
        return math.inf if still_s is None else still_s / 4

    def publish(self, *, goes_on: bool = False) -> None:
        """Something changed; `goes_on`: only that the training does."""
        self._version += 1
        self._news = self._news if goes_on else self._version
        self._steps_due = False
        self._steps_told = time.monotonic()
        state = self._state()
        with self._changed:
            self._snapshot = state
            self._changed.notify_all()

    def wait(self, holds: Callable[[wire.State], bool], within_s: float) -> wire.State:
        """The state as soon as it is so, or after that time. For other threads."""
        with self._changed:
            self._changed.wait_for(lambda: holds(self._snapshot), within_s)
            state = self._snapshot.copy()
        state["now"] = clock.now()
        return state

    def tell(
        self, kind: str, message: str, *, at: float, rank: int | None = None, **details: Any
    ) -> None:
        """A fact; seen by others with the next `publish`."""
        self._facts_told += 1
        fact: wire.FactSeen = {
            "n": self._facts_told,
            "kind": kind,
            "at": at,
            "generation": self.run.generation if self.run is not None else self.generation,
            "rank": rank,
            "message": message,
            "details": details,
        }
        self.facts = logs.bounded([*self.facts[-FACTS_KEPT + 1 :], fact])

    def note(self, text: str) -> None:
        """For people; the same one is said once."""
        if text not in self.notes:
            self.notes = [*self.notes[-49:], text]

    def remember(self) -> None:
        """Keep what the next agent in this folder must know."""
        run = self.run.seen() if self.run is not None else self._past
        kept: book.Kept = {
            "generation": self.generation,
            "stopped_below": self.stopped_below,
            "run": run,
        }
        try:
            book.write(self.home / STATE_FILE, book.as_text(kept))
        except OSError as error:
            self.note(f"what the next agent should know cannot be written: {error}")

    # -- beginning --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take over from an earlier agent of this folder: first of all its processes are ended."""
        kept = book.read(self.home / STATE_FILE)
        self.generation = kept["generation"]
        self.stopped_below = kept["stopped_below"]
        self._past = kept["run"]
        below = self._past["generation"] + 1 if self._past is not None else 0
        self.end(below=below, then=self._lost)
        self.publish()
        self._every_second()

    def _lost(self) -> None:
        """The ranks of the earlier agent died with it."""
        if self._past is None:
            return
        now = clock.now()
        for rank in self._past["ranks"]:
            if rank["exited_at"] is None:
                rank["exited_at"], rank["signal"] = now, 9
                told = {"signal": 9, "with_agent": True}
                self.tell("process.exit", "ended with its agent", at=now, rank=rank["rank"], **told)
        self.remember()

    def _every_second(self) -> None:
        self.loop.later(1.0, self._every_second)
        if time.monotonic() - self.polled > self.orphan_s:
            self.quit(0.0)
        for look in self.looks:
            look()

    # -- commands ---------------------------------------------------------------------------------

    def told(self, generation: int) -> None:
        """A command of this generation came; an older one is refused."""
        if generation < self.generation:
            raise Stale(f"generation {generation} is older than {self.generation}")
        if generation > self.generation:
            self.generation = generation
            self.remember()

    def start(self, command: wire.RunCommand) -> None:
        """Run it, unless that was told before."""
        generation = command["generation"]
        self.told(generation)
        if self._newest_run() == generation:
            return
        if self._is_proven_empty(generation):
            self._start(command)
            return
        self.end(below=generation, then=lambda: self._start(command))
        self.publish()

    def _is_proven_empty(self, generation: int) -> bool:
        """Nothing older is left, and nothing newer was started since that was seen."""
        started = self._newest_run()
        is_older = started is None or started < generation
        return self._ending is None and is_older and self.stopped_below >= generation

    def _newest_run(self) -> int | None:
        if self.run is not None:
            return self.run.command["generation"]
        return self._past["generation"] if self._past is not None else None

    def _start(self, command: wire.RunCommand) -> None:
        if command["generation"] < self.generation:
            return  # a newer one was told while the older processes ended
        if self._newest_run() == command["generation"]:
            return
        going_on = self._admitted(command["generation"])
        run = self.run = Run(command, self.home / wire.LOGS, going_on)
        self._look_at_guards()
        self.remember()
        try:
            _need_the_same(command["keep"], [rank.number for rank in going_on])
            for rank in run.ranks:
                if rank not in going_on and not self.fork(run, rank):
                    rank.start(command["command"], command["env"], command["workdir"])
                self._follow(run, rank)
        except (OSError, ValueError) as error:
            self._not_started(run, str(error))
        self.all_started(run, is_told=False)
        self._look_at_guards()
        self.prepare(run)
        self.publish()

    def _admitted(self, generation: int) -> list[Rank]:
        """Who was kept for this generation, and lives."""
        run = self.run
        return run.going_on if run is not None and run.generation == generation else []

    def _look_at_guards(self) -> None:
        for look in self.guards:
            look()

    def _follow(self, run: Run, rank: Rank) -> None:
        if rank.output >= 0:
            self.loop.watch(rank.output, lambda: self._read_once(run, rank))
        if rank.says >= 0:
            self.loop.watch(rank.says, lambda: self._heard(run, rank))

    def _heard(self, run: Run, rank: Rank, *, is_told: bool = True) -> None:
        handle = rank.says
        self.loop.unwatch(handle)
        if not rank.heard():
            self.loop.watch(handle, lambda: self._heard(run, rank))
            return
        if rank.failed is not None:
            self._not_started(run, rank.failed)
        self.all_started(run, is_told=is_told)

    def all_started(self, run: Run, *, is_told: bool = True) -> None:
        """Note it if every rank became its command."""
        if run.failed is None and run.started_at is None and all(r.is_started for r in run.ranks):
            begun = (r.started_at or 0.0 for r in run.ranks if r.incarnation == run.generation)
            run.started_at = max(begun, default=clock.now())
            run.moved()
            self.remember()
            if is_told:
                self.publish()

    def _not_started(self, run: Run, why: str) -> None:
        if run.failed is not None:
            return
        run.failed = why
        self.tell("start.failed", f"cannot be started: {why}", at=clock.now())
        self.end(below=0, then=self.publish)
        self.remember()
        self.publish()

    def stop(self, command: wire.StopCommand) -> None:
        """End every process older than the generation, but for the ranks to keep."""
        generation, keep = command["generation"], command["keep"]
        self.told(generation)
        if self.stopped_below >= generation and set(self.kept) <= set(keep):
            return
        self._is_stopped(keep)
        self.end(
            below=generation,
            grace_s=command["grace_s"],
            evidence=command["evidence"],
            keep=keep,
            then=lambda: self._admit(generation),
        )
        self.publish()

    def _admit(self, generation: int) -> None:
        """The warden hears it before anybody else: the fence of this generation is none for who was kept."""
        self.kept = self.run.admit(generation) if self.run is not None else []
        self._look_at_guards()

    def _is_stopped(self, keep: Collection[int]) -> None:
        for rank in self.run.ranks if self.run is not None else ():
            rank.stopped = rank.stopped or (rank.is_alive and rank.number not in keep)

    def quit(self, grace_s: float) -> None:
        """End every process, then this one."""
        self._is_stopped(())
        self.end(below=self.generation, grace_s=grace_s, then=self._leave)

    def _leave(self) -> None:
        for pid in self.population.spared:
            proc.end_child(pid)
            with contextlib.suppress(ChildProcessError):
                _wait(pid)
        with contextlib.suppress(OSError):
            Path(wire.SOCKET).unlink()
        os._exit(0)

    # -- ending -----------------------------------------------------------------------------------

    def end(
        self,
        *,
        below: int,
        grace_s: float = 0.0,
        evidence: bool = False,
        keep: Collection[int] = (),
        then: Callable[[], None] | None = None,
    ) -> None:
        """End everything but these ranks; afterwards whatever else is older than `below` is proven gone."""
        self._after.append(lambda: self._proven(below))
        if then is not None:
            self._after.append(then)
        run = self.run
        for rank in run.ranks if run is not None else ():
            rank.killed = rank.killed or rank.number not in keep
        self.population.keeps = {
            rank.process.identity
            for rank in (run.going_on if run is not None else ())
            if rank.process
        }
        if self._ending is not None:
            self._ending.hasten(grace_s)
            return
        collect = None
        if evidence and run is not None and (witness := self.keep_evidence) is not None:

            def collect(collected: Callable[[], None]) -> None:
                witness(run, grace_s, lambda path: self._collected(path, collected))

        ranks = [rank for rank in run.ranks if rank.is_alive] if run is not None else []
        self._ending = Ending(
            self.loop,
            self.population,
            ranks=[rank.process for rank in ranks if rank.killed and rank.process is not None],
            collect=collect,
            grace_s=grace_s,
            done=self._ended,
        )
        self._ending.begin()

    def _collected(self, path: str | None, go_on: Callable[[], None]) -> None:
        self.evidence = path or self.evidence
        go_on()

    def _proven(self, below: int) -> None:
        self.stopped_below = max(self.stopped_below, below)

    def _ended(self) -> None:
        self._ending = None
        for rank in self.run.ranks if self.run is not None else ():
            if not rank.is_alive or rank.killed:
                self._forget_output(rank)
                rank.close()
        after, self._after = self._after, []
        for do in after:
            do()
        self.remember()
        self.publish()

    # -- what happens -----------------------------------------------------------------------------

    def reap(self) -> None:
        """Wait for every child that ended, ranks and orphans alike."""
        someone = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            someone = True
            rank = self.run.with_pid(pid) if self.run is not None else None
            if self.run is not None and rank is not None:
                self._exited(self.run, rank, os.waitstatus_to_exitcode(status))
            elif pid in self.children:
                self.children.pop(pid)()
        if someone and self._ending is not None:
            self._ending.someone_ended()

    def _exited(self, run: Run, rank: Rank, status: int) -> None:
        rank.exited_at, rank.status = clock.now(), status
        if rank.says >= 0:
            self._heard(run, rank, is_told=False)  # nobody is to see an end without its fact
        for _ in range(LAST_READS):
            if rank.output < 0 or not self._read_once(run, rank):
                break
        if rank.failed is None and not rank.stopped and run.failed is None:
            self._tell_exit(run, rank)
        if run.command["stop_siblings"] and rank.ended_badly and run.failed is None:
            self._end_siblings(run)
        self.remember()
        for look in self.looks:
            look()
        self.publish()

    def _tell_exit(self, run: Run, rank: Rank) -> None:
        seen = rank.seen()
        details: dict[str, Any] = {
            "code": seen["code"],
            "exit_code": seen["code"],
            "signal": seen["signal"],
            "exception": seen["exception"],
            "at_step": run.steps.of(rank.number),
            "log": "\n".join(seen["tail"]),
        }
        if rank.killed and rank.signal == 9:
            details["consequence"] = True
        how = f"exit code {rank.code}" if rank.code is not None else f"signal {rank.signal}"
        # Of one that never made a step the last line explains the end: an interpreter or a parser says it.
        last = logs.last_line(seen["tail"]) if run.steps.newest is None else None
        words = seen["exception"] or last
        said = f": {words}" if words else ""
        if rank.signal == 9 and not rank.killed and (why := self.why_killed()):
            details["warden"], said = why, f": ended by the warden, {why}"
        at = rank.exited_at or 0.0
        self.tell("process.exit", f"{how}{said}", at=at, rank=rank.number, **details)

    def _end_siblings(self, run: Run) -> None:
        if self._ending is None and run.is_alive:
            self.end(below=0)

    def _read_once(self, run: Run, rank: Rank) -> bool:
        handle = rank.output
        more, step = rank.read()
        if rank.output < 0:
            self.loop.unwatch(handle)
        if rank.log.problem is not None:
            self.note(f"the log of rank {rank.number} is not complete: {rank.log.problem}")
        if run.search.is_given_up:
            self.note(steps.TOO_SLOW)
        if step is not None:
            self._stepped(run, rank, step)
        return more

    def _forget_output(self, rank: Rank) -> None:
        if rank.output >= 0:
            self.loop.unwatch(rank.output)
            rank.close_output()

    def _stepped(self, run: Run, rank: Rank, step: int) -> None:
        is_first = run.steps.first_at is None
        if not run.steps.saw(rank.number, step, now=clock.now(), ticks=time.monotonic()):
            return
        if rank.exited_at is not None:
            return  # told along with its end: nobody is to see that without its fact
        if is_first:
            self.publish()
        elif not self._steps_due:
            self._steps_due = True
            wait_s = self._steps_told + STEPS_TOLD_S - time.monotonic()
            self.loop.later(max(0.0, wait_s), self._tell_steps)

    def _tell_steps(self) -> None:
        if self._steps_due:
            self.publish(goes_on=True)
