"""The agent of a pod: carries out commands, keeps its state and publishes it.

Everything here runs in the thread of the loop, except `wait`. Other threads read a snapshot, which is
replaced as a whole.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.agent import clock
from everstep.agent.facts import Facts
from everstep.agent.loop import Loop
from everstep.agent.memory.copies import Copies
from everstep.agent.memory.snapshots import Snapshots
from everstep.agent.parts import Parts
from everstep.agent.processes import command_files, proc, rank_ends
from everstep.agent.processes.hold import Hold
from everstep.agent.processes.members import Members
from everstep.agent.processes.rank import Rank
from everstep.agent.processes.run import Run, kept_rank_mismatch
from everstep.agent.processes.termination import Population
from everstep.agent.storage import earlier_runs, files, reading
from everstep.protocol import bounds, wire

if TYPE_CHECKING:
    from everstep.agent.observing.save_watch import SaveWatch

STATE_FILE = "state.json"
EVIDENCE = "evidence"

SAVED_WITHIN_S, ANSWERED_S = 15.0, 1.0
"""How long an agent that is to go waits for the order to save snapshots, and to report that it is done."""

KILLED_WITHIN_S = 1.0
"""Longest wait for a killed process to end: a driver may hold it for ever."""


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + KILLED_WITHIN_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.002)


class Stale(Exception):
    """The command is older than one that was carried out before."""


class Agent:
    """One pod's agent. It works once `connect` has given it its parts."""

    parts: Parts
    _snapshot: wire.AgentState

    def __init__(
        self, loop: Loop, home: Path, *, job: str, slot: int, node: str, uid: str, orphan_s: float
    ) -> None:
        self.loop = loop
        self.home = home
        self.job, self.slot, self.node, self.uid = job, slot, node, uid
        self.boot = os.urandom(4).hex()  # short: it is in the identity of every fact
        self.orphan_s = orphan_s  # without a request of a worker for so long the agent ends itself
        self.population = Population(Members(home, uid), self.note)
        self.generation = 0  # the newest of all commands
        self.stopped_below = 0  # every process of an older generation is proven gone
        self.kept_ranks: list[int] = []
        self.run: Run | None = None
        self.evidence: str | None = None
        self.notes: list[str] = []
        self.facts = Facts(self.boot)
        self.works: list[wire.WorkSeen] = []
        self.snapshots = Snapshots()
        self.copies = Copies()
        self.save_watch: SaveWatch | None = None  # of the newest run that saves
        self.polled = time.monotonic()  # when a worker last sent a request

        self.before_exit: Callable[[], None] = lambda: None  # called last, by `_exit`

        # Child processes of the agent that are not ranks, and what to do when each ends.
        self.children: dict[int, Callable[[int], None]] = {}

        self._hold: Hold | None = None  # that the newest stop ordered
        self._past: wire.RunSeen | None = None  # the last run of an earlier agent in this folder
        self._version = 0  # of the published state
        self._news = 0  # the newest version with more in it than the training's progress
        self._changed = threading.Condition()

    def connect(self, parts: Parts) -> None:
        """Give the agent its parts. Before `begin`, and before any request."""
        self.parts = parts
        self._snapshot = self._state()

    # -- what others see --------------------------------------------------------------------------

    def _state(self) -> wire.AgentState:
        run = self.run.state() if self.run is not None else self._past
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
            "kept_ranks": self.kept_ranks,
            "positions": self._hold.state() if self._hold is not None else [],
            "evidence": self.evidence,
            "helper": self.parts.prewarm.state(),
            "notes": list(self.notes),
            "facts": self.facts.open,
            "facts_seen": self.facts.count,
            "works": self.works,
            "snapshots": self.snapshots.state(),
            "copies": self.copies.state(),
        }

    @property
    def quiet_s(self) -> float:
        """Longest delay of mere progress in an answer: a reader without news takes training for suspended."""
        still_s = self.run.still_s if self.run is not None else None
        return math.inf if still_s is None else still_s / 4

    def publish(self, *, only_progress: bool = False) -> None:
        """Publish the current state. `only_progress`: nothing else has changed."""
        self._version += 1
        self._news = self._news if only_progress else self._version
        self.parts.ranks.published()
        state = self._state()
        with self._changed:
            self._snapshot = state
            self._changed.notify_all()

    def wait(self, holds: Callable[[wire.AgentState], bool], within_s: float) -> wire.AgentState:
        """Return the state as soon as `holds` is true of it, or after that time. For other threads."""
        with self._changed:
            self._changed.wait_for(lambda: holds(self._snapshot), within_s)
            state = self._snapshot.copy()
        state["now"] = clock.now()
        return state

    def add_fact(
        self, kind: str, message: str, *, at: float, rank: int | None = None, **details: Any
    ) -> None:
        """Add a fact. The next `publish` shows it."""
        generation = self.run.generation if self.run is not None else self.generation
        self.facts.add(
            kind=kind, at=at, generation=generation, rank=rank, message=message, details=details
        )

    def drop_stored(self, boot: str, up_to: int) -> None:
        """Drop facts that the worker has stored. This is no news, so waiting requests are not woken."""
        if self.facts.drop_stored(boot, up_to):
            with self._changed:
                self._snapshot = {**self._snapshot, "facts": self.facts.open}

    def note(self, text: str) -> None:
        """Add a note for people, unless it is there already."""
        if (plain := bounds.plain(text)) not in self.notes:
            self.notes = [*self.notes[-49:], plain]

    def add_work(
        self, name: str, generation: int, began: float, *, ended: float | None = None
    ) -> None:
        """Record that a command was carried out, once for each generation. The next `publish` shows it."""
        if any((w["name"], w["generation"]) == (name, generation) for w in self.works):
            return
        ended = clock.now() if ended is None else ended
        work: wire.WorkSeen = {
            "name": name,
            "generation": generation,
            "began": began,
            "ended": max(began, ended),
        }
        self.works = [*self.works, work][-wire.WORKS_MOST :]

    def spare_child(self, child: int, ended: Callable[[], None]) -> None:
        """Keep this child process out of every stop: it belongs to the agent. Call `ended` when it ends."""
        self.population.spared.add(child)
        self.children[child] = lambda _code: ended()

    def forget_child(self, child: int) -> Callable[[int], None] | None:
        """Undo `spare_child`. Returns what was to be called with the exit code of the child, if anything."""
        self.population.spared.discard(child)
        return self.children.pop(child, None)

    def save_state(self) -> None:
        """Save what the next agent in this folder needs, and notes for people to read if this one hangs."""
        run = self.run.state() if self.run is not None else self._past
        state = {
            "generation": self.generation,
            "stopped_below": self.stopped_below,
            "run": run,
            "facts": self.facts.open,
            "notes": self.notes,  # not read by `begin`
        }
        try:
            files.replace(self.home / STATE_FILE, json.dumps(state), is_synced=True)
        except OSError as error:
            self.note(
                f"{STATE_FILE}, for the next agent in this folder, cannot be written: {error}"
            )

    # -- beginning --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take over from an earlier agent of this folder. Ends its processes first."""
        # The file is replaced as a whole: if it cannot be read, the next command decides.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = files.read_json(self.home / STATE_FILE)
            numbers = int(state["generation"]), int(state["stopped_below"])
            self.facts.take_over(state["facts"])
            self._past = state["run"]
            self.generation, self.stopped_below = numbers
        below = self._past["generation"] + 1 if self._past is not None else 0
        self.parts.endings.end(below=below, then=self._report_lost_ranks)
        self.publish()
        self._every_second()

    def _report_lost_ranks(self) -> None:
        """Report the ranks of the earlier agent as killed: they ended with it."""
        if self._past is None:
            return
        alive_at, now = rank_ends.marked_alive_at(self.home), clock.now()
        for rank in self._past["ranks"]:
            if rank["exited_at"] is None:
                span = rank_ends.Span(min(now, max(alive_at, rank["started_at"])), now)
                span = rank_ends.narrowed(self.home, self._past["generation"], rank["rank"], span)
                # An agent lives for a second after its mark, unless it was suspended.
                rank["exited_at"], rank["signal"] = span.began, 9
                rank["ended_between"] = span if span.is_wide else None
                details = {"rank": rank["rank"], "signal": 9, "with_agent": True}
                self.add_fact("process.exit", "ended with its agent", at=span.began, **details)
        self.save_state()

    def _every_second(self) -> None:
        self.loop.later(1.0, self._every_second)
        if time.monotonic() - self.polled > self.orphan_s:
            self.quit(0.0)
        if self.run is not None and self.run.is_alive:
            rank_ends.mark_alive(self.home)
        self.poll_parts()

    def poll_parts(self) -> None:
        """Have every part look at the ranks: once a second, and when one ends."""
        self.parts.ranks.poll()
        self.parts.warden.poll()
        self.parts.samples.poll()
        self.parts.npus.poll()
        self.parts.prefetcher.poll()
        self.parts.copier.poll()

    # -- commands ---------------------------------------------------------------------------------

    def accept_generation(self, generation: int) -> None:
        """Accept a command of this generation. Raises `Stale` if a newer one came before."""
        if generation < self.generation:
            raise Stale(f"generation {generation} is older than {self.generation}")
        if generation > self.generation:
            self.generation = generation
            self.save_state()

    def require_stopped(self, generation: int) -> None:
        """Accept a command that must precede the ranks of its generation. Raises `Stale` if any may run."""
        self.accept_generation(generation)
        started = self.newest_run
        if started is not None and self.stopped_below <= started:
            raise Stale(f"ranks of generation {started} may run")

    def start(self, command: wire.RunCommand) -> None:
        """Start the run of this command, unless its generation was started before."""
        generation = command["generation"]
        self.accept_generation(generation)
        if self.newest_run == generation:
            return
        start = partial(self._fetch_then_start, command, clock.now())
        if self._is_proven_empty(generation):
            start()
            return
        self.parts.endings.end(below=generation, then=start)
        self.publish()

    def _is_proven_empty(self, generation: int) -> bool:
        """Whether every older process is proven gone and no newer run was started since."""
        started = self.newest_run
        is_older = started is None or started < generation
        is_still = not self.parts.endings.is_running and not self.parts.dumping.is_running
        return is_still and is_older and self.stopped_below >= generation

    @property
    def ranks(self) -> Sequence[Rank]:
        """The ranks of the current run."""
        return self.run.ranks if self.run is not None else ()

    @property
    def newest_run(self) -> int | None:
        """The generation of the newest run, that of an earlier agent included."""
        if self.run is not None:
            return self.run.command["generation"]
        return self._past["generation"] if self._past is not None else None

    def _fetch_then_start(self, command: wire.RunCommand, ordered_at: float) -> None:
        """Have the snapshots from which the ranks resume before any of them starts."""
        if command["generation"] >= self.generation:
            start = partial(self._start, command, ordered_at)
            self.parts.fetching.before(command, start)

    def _start(self, command: wire.RunCommand, ordered_at: float, lacks: str = "") -> None:
        """Start the ranks. `lacks`: why a snapshot that they need is not there; then the start fails."""
        if command["generation"] < self.generation:
            return  # a newer command came while the older processes ended
        if self.newest_run == command["generation"]:
            return
        going_on = self._kept_living_ranks(command["generation"])
        if not going_on:
            self.snapshots.keep_only(command["snapshot_step"])
            self.copies.keep_only(command["snapshot_step"], run=command["generation"])
        # An agent that stood by was made for no slot, or for another one.
        self.slot = int(command["env"].get("EVERSTEP_SLOT", self.slot))
        placed = command_files.placed(command, self.home)
        modules = self.parts.prewarm.modules_for(command["order"])
        placed["order"] = placed["order"]._replace(prewarm=modules)
        run = self.run = Run(placed, self.home, going_on, ordered_at=ordered_at)
        self.parts.warden.send_orders()
        self.parts.samples.prepare(run)
        rank_ends.mark_alive(self.home)
        self.save_state()
        try:
            why = lacks or kept_rank_mismatch(command["keep"], [rank.number for rank in going_on])
            if why:
                raise ValueError(why)
            command_files.write(self.home, command["files"])
            run.instruct_ranks()
            for rank in run.ranks:
                if rank not in going_on and not self.parts.prewarm.fork(run, rank):
                    rank.start(run.order.command, command["env"], run.order.workdir)
                if self.save_watch is not None and rank.process is not None:
                    self.save_watch.saw((rank.process,))
        except (OSError, ValueError) as error:
            self.report_failed_start(run, str(error))
        self.parts.ranks.follow(run)
        self.parts.warden.send_orders()
        self.parts.prewarm.prepare(run)
        self._prune_earlier(run)
        self.publish()

    def _prune_earlier(self, run: Run) -> None:
        """Bound what earlier runs left, in a thread: it may be many files."""
        folders = (self.home / wire.LOGS, self.home / EVIDENCE)
        in_use = {rank.log.path.stem for rank in run.ranks}
        prune = partial(earlier_runs.prune, folders, run.generation, in_use=in_use)
        with contextlib.suppress(reading.StorageHangs):
            reading.begin(f"{self.home} of earlier runs", prune)

    def _kept_living_ranks(self, generation: int) -> list[Rank]:
        """The living ranks that a stop kept for this generation."""
        run = self.run
        return run.going_on if run is not None and run.generation == generation else []

    def report_failed_start(self, run: Run, why: str) -> None:
        if run.failed is not None:
            return
        run.failed = why = bounds.plain(why)
        self.add_work("start", run.generation, run.ordered_at)
        self.add_fact("start.failed", f"cannot be started: {why}", at=clock.now())
        self.parts.endings.end(below=0, then=self.publish)
        self.save_state()
        self.publish()

    def stop(self, command: wire.StopCommand) -> None:
        """End every process older than the generation, but for the ranks to keep."""
        generation, keep = command["generation"], command["keep"]
        self.accept_generation(generation)
        if self.stopped_below >= generation and set(self.kept_ranks) <= set(keep):
            return
        if self._hold is not None and self._hold.generation == generation and keep:
            return  # under way
        self._mark_ended_by_command(keep)
        finish = partial(self._finish_stop, generation, clock.now())
        holds = bool(keep) and command["hold_s"] > 0
        self.parts.endings.end(
            below=0 if holds else generation,
            grace_s=command["grace_s"],
            evidence=command["evidence"],
            keep=keep,
            then=None if holds else finish,
        )
        self._hold = (
            Hold(self.loop, generation, partial(self._end_stuck, finish)) if holds else None
        )
        if self._hold is not None and self.run is not None:
            self._hold.begin(self.run.going_on, command["hold_s"])
        self.publish()

    def _end_stuck(self, finish: Callable[[], None], hold: Hold) -> None:
        """End the ranks that do not hold; then the stop is over."""
        if hold is not self._hold:
            return  # a newer stop came
        for rank in self.run.going_on if self.run is not None else ():
            if rank.number not in hold.ranks:
                rank.ends_by_command = True
                self.note(f"rank {rank.number} did not hold: it is ended")
        self.parts.endings.end(below=hold.generation, keep=hold.ranks, then=finish)

    @property
    def _is_holding(self) -> bool:
        return self.parts.endings.is_running or (self._hold is not None and not self._hold.is_over)

    def record_position(self, generation: int, position: wire.RankPosition) -> None:
        """A rank reports that it holds."""
        if self._hold is not None and self._hold.generation == generation:
            self._hold.report(position)

    def rank_ended(self, rank: Rank) -> None:
        """A rank has ended: no hold waits for it."""
        if self._hold is not None:
            self._hold.drop(rank.number)

    def report_interruption(self, rank: Rank, why: str) -> None:
        """A rank cannot go on without the others, and waits.

        No news where a rank has ended here, which is why, and during a restart that lets it go on.
        """
        if self.run is None or self.run.started_at is None or self._is_holding:
            return
        if not any(one.ended_badly for one in self.run.ranks):
            message = f"rank {rank.number} was interrupted: {why}"
            self.add_fact("network.collective", message, at=clock.now(), rank=rank.number)
            self.publish()

    def _finish_stop(self, generation: int, ordered_at: float) -> None:
        self._admit(generation)
        self.add_work("stop", generation, ordered_at)

    def _admit(self, generation: int) -> None:
        """Move kept ranks to this generation, and have the warden guard it before its fence can be written.

        Nothing to do if ranks of this generation were started since the stop was ordered: none is a kept one.
        """
        if self.newest_run == generation:
            return
        self.kept_ranks = self.run.admit(generation) if self.run is not None else []
        self.parts.warden.send_orders()

    def dump(self, command: wire.DumpCommand) -> wire.DumpAnswer:
        """Save snapshots, after every older process is proven gone and before any rank is started."""
        self.require_stopped(command["generation"])
        if self.parts.endings.is_running or self.stopped_below < command["generation"]:
            raise Stale("older processes may run")
        return self.parts.dumping.answer(command)

    def _mark_ended_by_command(self, keep: Collection[int]) -> None:
        """Mark the living ranks that a command ends: unlike other ends by the agent, theirs are no facts."""
        for rank in self.ranks:
            if rank.is_alive and rank.number not in keep:
                rank.ends_by_command = True

    def quit(self, grace_s: float) -> None:
        """End every process, then the agent."""
        self._mark_ended_by_command(keep=())
        self.parts.endings.end(below=self.generation, grace_s=grace_s, then=self._exit)

    def leave(self, grace_s: float) -> None:
        """End every process, then the agent: it is to go, and no worker ordered it.

        Where no worker has stopped its ranks before, it stays until one orders to save their snapshots, for
        as long as that may take.
        """
        newest_run = self.newest_run
        may_be_ordered = newest_run is not None and self.stopped_below <= newest_run
        then = self._leave_when_saved if may_be_ordered else self._exit
        self._mark_ended_by_command(keep=())
        self.parts.endings.end(below=self.generation, grace_s=grace_s, then=then)

    def _leave_when_saved(self) -> None:
        if not self.snapshots.can_be_saved:
            self._exit()
            return
        self.parts.dumping.when_done(lambda: self.loop.later(ANSWERED_S, self._exit))
        self.loop.later(SAVED_WITHIN_S, self._exit)

    def _exit(self) -> None:
        for pid in self.population.spared:
            proc.end_child(pid)
            with contextlib.suppress(ChildProcessError):
                _wait_for_end(pid)
        with contextlib.suppress(OSError):
            Path(wire.SOCKET).unlink()
        self.before_exit()
        os._exit(0)

    # -- ending -----------------------------------------------------------------------------------

    def mark_stopped(self, below: int) -> None:
        """Record that every process of a generation older than `below` is proven gone."""
        self.stopped_below = max(self.stopped_below, below)

    def note_exit(self, pid: int, status: int) -> None:
        """A process of the pod was waited for."""
        if self.save_watch is not None:
            self.save_watch.exited(pid, status)

    def end_siblings(self, run: Run) -> None:
        """End the other ranks of a run in which one failed."""
        if not self.parts.endings.is_running and run.is_alive:
            self.parts.endings.end(below=0)
