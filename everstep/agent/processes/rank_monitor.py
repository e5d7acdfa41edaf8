"""Tracks the ranks of the newest run, in the agent's loop: their start, output, steps and exit.

The loop calls it when a pipe of a rank can be read, on SIGCHLD and once a second. It updates `Run` and
`Rank`, adds a fact for each exit that no command ordered, and has the agent publish its state. No published
state may show an exit without its fact.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent import clock
from everstep.agent.agent import Agent
from everstep.agent.future import Future
from everstep.agent.observing import matching, quotes, steps
from everstep.agent.observing.losses import WRONG_TIMES
from everstep.agent.processes import rank_ends
from everstep.agent.processes.rank import LAST_READS, Rank
from everstep.agent.processes.run import Run
from everstep.agent.storage import reading, space
from everstep.protocol.exits import Exit

STORAGE_S = 0.25
"""Longest wait of the agent's loop, once in a run, for storage that hangs while ranks end."""
STEPS_PUBLISHED_S = 0.5
"""Least time between two publications of steps. The first step is published at once; times stay exact."""
RULES_TOO_SLOW = (
    f"; rules with a log pattern took {matching.LIMIT_S:g} s and are not all looked for"
)


class RankMonitor:
    """Tracks the ranks of an agent's current run: their start, output, steps and exit."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._steps_published = 0.0
        self._steps_due = False

        agent.loop.on_signal(signal.SIGCHLD, self._reap)

    def published(self) -> None:
        """The agent has published its state, the steps included."""
        self._steps_due = False
        self._steps_published = time.monotonic()

    def follow(self, run: Run) -> None:
        """Read the pipes of the run's ranks from now on."""
        for rank in run.ranks:
            if rank.output >= 0:
                self._agent.loop.watch(rank.output, partial(self._read_once, run, rank))
            if rank.start_pipe >= 0:
                self._agent.loop.watch(rank.start_pipe, partial(self._read_start, run, rank))
        self._record_start(run, publishes=False)

    def poll(self) -> None:
        """Read which capabilities the living ranks declare."""
        run = self._agent.run
        living = [rank for rank in run.ranks if rank.is_alive] if run is not None else []
        for rank in living:
            self.read_position(rank)
        changed = [rank.folder.poll() for rank in living]
        for rank in living:
            if rank.folder.problem is not None:
                self._agent.note(f"a file of rank {rank.number} is invalid: {rank.folder.problem}")
        if any(changed):
            self._agent.publish()

    def _read_start(self, run: Run, rank: Rank, *, publishes: bool = True) -> None:
        """Read whether the rank could execute its command."""
        handle = rank.start_pipe
        self._agent.loop.unwatch(handle)
        if not rank.read_start():
            self._agent.loop.watch(handle, lambda: self._read_start(run, rank))
            return
        if rank.failed is not None:
            self._agent.report_failed_start(run, rank.failed)
        self._record_start(run, publishes=publishes)

    def _record_start(self, run: Run, *, publishes: bool = True) -> None:
        """Record the start of the run once every rank executes its command."""
        if run.failed is None and run.started_at is None and all(r.is_started for r in run.ranks):
            begun = (r.started_at or 0.0 for r in run.ranks if r.incarnation == run.generation)
            run.started_at = max(begun, default=clock.now())
            run.moved()
            self._agent.add_work("start", run.generation, run.ordered_at, ended=run.started_at)
            self._agent.save_state()
            if publishes:
                self._agent.publish()

    def _reap(self) -> None:
        """Wait for every child that ended, ranks and orphans alike."""
        any_ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            any_ended = True
            self._agent.note_exit(pid, os.waitstatus_to_exitcode(status))
            rank = self._agent.run.living_with_pid(pid) if self._agent.run is not None else None
            if self._agent.run is not None and rank is not None:
                self._record_exit(self._agent.run, rank, os.waitstatus_to_exitcode(status))
            elif (ended := self._agent.forget_child(pid)) is not None:
                ended(os.waitstatus_to_exitcode(status))
        if any_ended:
            self._agent.parts.endings.child_ended()

    def _record_exit(self, run: Run, rank: Rank, status: int) -> None:
        """Read the last messages and output of the rank, add the facts of its exit, then publish."""
        how = rank.exit = Exit.of_status(status)
        self._date_end(run, rank)
        if rank.start_pipe >= 0:
            self._read_start(run, rank, publishes=False)
        for _ in range(LAST_READS):
            if rank.output < 0 or not self._read_once(run, rank):
                break
        self.read_position(rank)
        if rank.failed is None and not rank.ends_by_command and run.failed is None:
            self._add_exit(run, rank, how)
        self._agent.rank_ended(rank)
        stops_siblings = run.order.stop_siblings and not run.outlives_ends
        if stops_siblings and rank.ended_badly and run.failed is None:
            self._agent.end_siblings(run)
        self._agent.save_state()
        self._agent.poll_parts()
        self._agent.publish()

    def _date_end(self, run: Run, rank: Rank) -> None:
        """Date the end of a rank that was just waited for. A suspended agent waits for it late."""
        alive_at = max(self._agent.loop.signals_served_at, rank.started_at or 0.0)
        span = rank_ends.Span(alive_at, clock.now())
        if span.is_wide:
            span = rank_ends.narrowed(self._agent.home, run.generation, rank.number, span)
        rank.date_end(span)

    def _add_exit(self, run: Run, rank: Rank, how: Exit) -> None:
        lines = rank.log.recent_lines() if rank.ended_badly else []
        words = rank.folder.last_words() if rank.ended_badly else None
        exception = words or quotes.last_exception(lines, how.code)
        if rank.ended_badly:
            self._add_storage_fault(run, "\n".join(lines))
        rules, all_had_time = matching.matching_rules(run.order.log_rules, "\n".join(lines))
        details: dict[str, Any] = {
            "code": how.code,
            **how.details,
            "exception": exception,
            "at_step": run.steps.of(rank.number),
            "log": quotes.last_output(lines),
            "log_path": str(rank.log.path),
            "log_rules": ",".join(rules),
        }
        is_killed = how.signal == signal.SIGKILL
        if rank.is_to_end and is_killed:
            details["consequence"] = True
        # If no step was made the last line explains the end: it is an interpreter's or a parser's error.
        # A process that is killed prints nothing about it.
        may_explain = run.steps.newest is None and not is_killed
        last = quotes.last_line(lines) if may_explain else None
        why = exception or last
        reason = f": {why}" if why else ""
        if is_killed and not rank.is_to_end and (why := self._agent.parts.warden.why_killed()):
            details["warden"], reason = why, f": ended by the warden, {why}"
        if not all_had_time:
            reason += RULES_TOO_SLOW
        at = rank.exited_at or 0.0
        self._agent.add_fact("process.exit", f"{how}{reason}", at=at, rank=rank.number, **details)

    def _add_storage_fault(self, run: Run, output: str) -> None:
        """Add the fault of the checkpoint storage that explains this exit, in the same publication."""
        path, saved = run.order.checkpoints_path, run.checkpoint
        if path is None or run.storage_was_checked:
            return
        run.storage_was_checked = True
        look = partial(
            space.storage_fault,
            Path(path),
            was_there=run.has_folder,
            needs=0 if saved is None else saved["bytes"],
            output=output,
        )
        with contextlib.suppress(OSError):  # it hangs, or cannot be read
            answer = reading.begin(path, look)
            try:
                self._add_fault(reading.result_of(path, answer, within_s=STORAGE_S))
            except reading.StorageHangs:
                add_late = partial(self._add_late_storage_fault, run, answer)
                answer.add_done_callback(lambda _: self._agent.loop.hand_over(add_late))

    def _add_late_storage_fault(self, run: Run, answer: Future[space.StorageFault | None]) -> None:
        """Add the fault if its storage answers after the exit was published, before another run began."""
        if self._agent.run is run and answer.exception() is None and answer.result() is not None:
            self._add_fault(answer.result())
            self._agent.save_state()
            self._agent.publish()

    def _add_fault(self, fault: space.StorageFault | None) -> None:
        if fault is not None:
            self._agent.add_fact(fault.kind, fault.text, at=clock.now())

    def _read_once(self, run: Run, rank: Rank) -> bool:
        handle = rank.output
        more, step = rank.read()
        if rank.output < 0:
            self._agent.loop.unwatch(handle)
        if rank.log.problem is not None:
            self._agent.note(f"the log of rank {rank.number} is not complete: {rank.log.problem}")
        if run.search.is_given_up:
            self._agent.note(steps.TOO_SLOW)
        if step is not None and rank.position is None:
            self._record_step(run, rank, step)
        self._report_wrong_loss(run, rank)
        return more

    def _report_wrong_loss(self, run: Run, rank: Rank) -> None:
        """Add a fact, once in a run, if the newest losses of the rank are no numbers, or infinite."""
        losses = rank.reader.losses
        loss = None if losses is None else losses.wrong
        if loss is None or run.has_wrong_loss or rank.is_to_end:
            return
        run.has_wrong_loss = True
        step = run.steps.of(rank.number)
        where = "" if step is None else f" by step {step}"
        text = f"rank {rank.number} printed loss {loss} {WRONG_TIMES} times in a row{where}"
        details = {"loss": loss, "at_step": step, "log_path": str(rank.log.path)}
        self._agent.add_fact("numeric.nan", text, at=clock.now(), rank=rank.number, **details)
        if rank.exited_at is None:  # else it is published with the exit of the rank
            self._agent.save_state()
            self._agent.publish()

    def read_position(self, rank: Rank) -> None:
        """Read the step that the rank reports itself. What its log has of steps does not count any more."""
        run, position = self._agent.run, rank.position
        completed = None if position is None else position.completed
        if run is not None and rank in run.ranks and completed is not None:
            self._record_step(run, rank, completed)

    def forget(self, rank: Rank) -> None:
        """Stop to read a rank that has ended, and release what it holds."""
        if rank.output >= 0:
            self._agent.loop.unwatch(rank.output)
        rank.close()

    def _record_step(self, run: Run, rank: Rank, step: int) -> None:
        is_first = run.steps.first_at is None
        if not run.steps.saw(rank.number, step, now=clock.now(), ticks=time.monotonic()):
            return
        if rank.exited_at is not None:
            return  # it is published with the exit of the rank
        if is_first:
            self._agent.parts.prewarm.first_step_made(run)
            self._agent.publish()
        elif not self._steps_due:
            self._steps_due = True
            wait_s = self._steps_published + STEPS_PUBLISHED_S - time.monotonic()
            self._agent.loop.later(max(0.0, wait_s), self._publish_steps)

    def _publish_steps(self) -> None:
        if self._steps_due:
            self._agent.publish(only_progress=True)
