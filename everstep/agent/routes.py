"""Handlers of the agent's requests. They run in the threads of connections; the loop touches processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent import clock, commands
from everstep.agent.agent import Agent, Stale
from everstep.agent.memory.copies import OutOfOrder
from everstep.agent.observing import checks, logs
from everstep.agent.observing.evidence import STACKS_S
from everstep.agent.processes import proc
from everstep.agent.processes.run import log_path
from everstep.agent.processes.save_requests import SaveRequests
from everstep.agent.server import HttpRefusal, Last, OfBytes, Routes
from everstep.agent.storage import (
    checkpoints,
    fence,
    fence_writing,
    journal,
    reading,
    releasing,
    set_aside,
    space,
)
from everstep.agent.storage.checkpoints import Verdicts
from everstep.protocol import wire

SOON_S = 0.25
"""A command is answered when it is carried out, if that takes no longer than this."""

READ_S = wire.STORAGE_S
"""Longest read of the fences before a start. With `SOON_S` it is less than the sender waits for an answer."""

LISTING_S = 0.5
"""Longest read of the checkpoints for the answer of a fence. A longer one is a request of its own."""

LOG_LIMIT = 256 * 1024
LOG_LIMIT_MAX = 4 * 1024 * 1024

Fields = dict[str, Any]
Complete = Callable[[wire.RunCommand], wire.RunCommand]
"""Adds to a command what only this machine has: its environment."""


def routes(agent: Agent, complete: Complete, polled: Callable[[], None]) -> Routes:
    """The handler of each path and method."""
    handlers = Handlers(agent, complete, polled)
    return {
        wire.STATE: {"GET": handlers.state},
        wire.RUN: {"POST": handlers.run},
        wire.STOP: {"POST": handlers.stop},
        wire.FENCE: {"POST": handlers.fence},
        wire.CHECKPOINTS: {"POST": handlers.checkpoints},
        wire.WRITABLE: {"POST": handlers.writable},
        wire.SET_ASIDE: {"POST": handlers.set_aside},
        wire.JOURNAL: {"POST": handlers.journal},
        wire.RELEASE: {"POST": handlers.release},
        wire.CHECK: {"POST": handlers.check},
        wire.SAVE: {"POST": handlers.save},
        wire.COPY: {"GET": handlers.copy_header, "POST": OfBytes(handlers.copy)},
        wire.COPY_PART: {"GET": handlers.copy_part},
        wire.COPY_PINS: {"POST": OfBytes(handlers.pins)},
        wire.DUMP: {"POST": handlers.dump},
        wire.PREWARM: {"GET": handlers.prewarmed, "POST": handlers.prewarm},
        wire.STACKS: {"POST": handlers.stacks},
        wire.LOG: {"GET": handlers.log},
        wire.QUIT: {"POST": handlers.quit},
    }


class Handlers:
    """The request handlers of one agent."""

    def __init__(self, agent: Agent, complete: Complete, polled: Callable[[], None]) -> None:
        self.agent = agent
        self.complete = complete
        self.polled = polled
        self.save_requests = SaveRequests(agent)
        self.running_checks: checks.RunningChecks | None = None  # the newest
        self.one_at_a_time = threading.Lock()
        self.run_body: Fields = {}  # of the newest run command, without what belongs to this machine
        # What the newest search for checkpoints judged, and where it searched.
        self.verdicts: tuple[tuple[str | None, ...], Verdicts] | None = None

    def state(self, query: Fields, _body: Fields) -> Any:
        since = commands.number(query, "since", -1)
        wait_s = min(commands.number(query, "wait_s", 0.0), wire.WAIT_S_MAX)
        quiet_s = min(commands.number(query, "quiet_s", 0.0), wait_s, self.agent.quiet_s)
        self.polled()
        if stored_up_to := int(commands.number(query, "after", 0)):
            boot = query.get("boot", "")
            self.agent.loop.hand_over(lambda: self.agent.drop_stored(boot, stored_up_to))
        if query.get("fresh") == "1":
            self.agent.loop.call(self.agent.parts.samples.poll_now)
        # First only for news; once the quiet time is over, for mere progress of the training too.
        state = self.agent.wait(lambda state: _is_news(state, since), quiet_s)
        if state["version"] == since:
            state = self.agent.wait(lambda state: state["version"] != since, wait_s - quiet_s)
        self.polled()
        return state

    def run(self, _query: Fields, body: Fields) -> Any:
        command = self.complete(commands.run_command(body))
        self.polled()
        self._refuse_outdated(command)
        self.agent.loop.call(lambda: self.agent.start(command))
        self.run_body = {**body, "prefetch": [], "fetch": [], "files": {}}
        return self.agent.wait(lambda state: _is_up(state, command["generation"]), SOON_S)

    def prewarmed(self, _query: Fields, _body: Fields) -> Any:
        """The newest run command with what the helper for it has imported. Empty while none is ready."""
        helper: Fields = self.agent.loop.call(self.agent.parts.prewarm.imported)
        return {**self.run_body, **helper} if helper and self.run_body else {}

    def prewarm(self, _query: Fields, body: Fields) -> Any:
        """Import modules for a command that is yet to come, as the agent of another pod answered it."""
        command = commands.run_command(body)
        command["env"] = {**command["env"], proc.POD: self.agent.uid}
        completed = self.complete(command)
        fields: wire.PrewarmCommand = commands.read(body, wire.PrewarmCommand)
        self.polled()
        self.agent.loop.call(lambda: self.agent.parts.prewarm.import_ahead(completed, fields))
        return self.agent.wait(lambda state: state["helper"] is not None, SOON_S)

    def _refuse_outdated(self, command: wire.RunCommand) -> None:
        """Refuse a command if the fence is newer: the command was late, as where this process was stopped.

        If the storage hangs nothing is started: another generation may be running.
        """
        owner = (self.agent.job, command["cluster"])
        left_s = fence_writing.time_left(READ_S)
        for folder in filter(None, (command["order"].model_dir, command["order"].checkpoints_path)):
            try:
                read = partial(fence.read, folder)
                own_fence = reading.read(folder, read, within_s=left_s()).get(owner)
            except reading.StorageHangs:
                raise
            except OSError:  # the warden goes on trying
                continue
            if own_fence is not None and own_fence.generation > command["generation"]:
                raise Stale(f"generation {own_fence.generation} is in the fence of {folder}")
        self._require_volumes(command, owner, within_s=left_s())

    def _require_volumes(
        self, command: wire.RunCommand, owner: fence.FenceOwner, *, within_s: float
    ) -> None:
        """Refuse a command whose ranks would write to the folder in which a volume has to be mounted."""
        folders = [f for f in (command["order"].model_dir, command["order"].checkpoints_path) if f]
        read = partial(fence.missing_volume, folders, owner)
        with suppress(OSError):  # the warden goes on trying
            if folders and (missing := reading.read(folders[0], read, within_s=within_s)):
                raise commands.BadCommand(fence_writing.NOT_MOUNTED.format(missing))

    def stop(self, _query: Fields, body: Fields) -> Any:
        command: wire.StopCommand = commands.read(body, wire.StopCommand)
        self.polled()
        self.agent.loop.call(lambda: self.agent.stop(command))
        return self.agent.wait(lambda state: wire.is_stopped(state, command), SOON_S)

    def quit(self, _query: Fields, body: Fields) -> Any:
        grace_s = commands.read(body, wire.QuitCommand)["grace_s"]
        return Last({}, lambda: self.agent.loop.hand_over(lambda: self.agent.quit(grace_s)))

    def fence(self, _query: Fields, body: Fields) -> Any:
        command: wire.FenceCommand = commands.read(body, wire.FenceCommand)
        body_of_question = command["checkpoints"]
        question: wire.CheckpointsQuestion | None = (
            None
            if body_of_question is None
            else commands.read(body_of_question, wire.CheckpointsQuestion)
        )
        self.polled()
        self.agent.loop.call(lambda: self.agent.accept_generation(command["generation"]))
        with self._recorded_as("fence"):
            answer = fence_writing.write(command, self.agent.job)
        if question is not None and fence_writing.is_written(answer):
            answer["listing"] = self._listing(question, command["generation"])
        return answer

    def _listing(
        self, question: wire.CheckpointsQuestion, generation: int
    ) -> wire.CheckpointListing | None:
        """The checkpoints of a folder, and what was set aside. None if they could not be read in time."""
        moved_before = partial(
            set_aside.moved, Path(question["path"]), generation, question["pattern"]
        )
        left_s = fence_writing.time_left(LISTING_S)
        try:
            saved = self._saved(question, within_s=left_s())
            moved = reading.read(question["path"], moved_before, within_s=left_s())
        except OSError:
            return None
        return {"checkpoints": saved, "set_aside": moved}

    @contextmanager
    def _recorded_as(self, name: str) -> Iterator[None]:
        """Add the body to the works of the newest generation, if it does not raise."""
        began = clock.now()
        yield
        ended = clock.now()
        self.agent.loop.hand_over(
            lambda: self.agent.add_work(name, self.agent.generation, began, ended=ended)
        )

    def checkpoints(self, _query: Fields, body: Fields) -> Any:
        question: wire.CheckpointsQuestion = commands.read(body, wire.CheckpointsQuestion)
        return {"checkpoints": self._saved(question, within_s=wire.LIST_S)}

    def _saved(
        self, question: wire.CheckpointsQuestion, *, within_s: float
    ) -> list[wire.SavedState]:
        path = question["path"]
        verdicts = self._verdicts_of(
            path, question["format"], question["pattern"], question["phase"]
        )
        look = partial(
            checkpoints.scan,
            path,
            question["format"],
            question["ended_between"],
            verdicts,
            is_over=question["is_over"],
            pattern=question["pattern"],
            phase=question["phase"],
        )
        with self._recorded_as("checkpoints"):
            return reading.read(path, look, within_s=within_s)

    def _verdicts_of(self, *layout: str | None) -> Verdicts:
        """The verdicts of the search before, if it was the same search; they make this one cheap."""
        if self.verdicts is None or self.verdicts[0] != layout:
            self.verdicts = (layout, Verdicts())
        return self.verdicts[1]

    def writable(self, _query: Fields, body: Fields) -> Any:
        question: wire.WritableQuestion = commands.read(body, wire.WritableQuestion)
        path = question["path"]
        needs = self.agent.loop.call(self._saved_bytes)
        look = partial(space.why_unwritable, Path(path), needs=needs)
        fault = reading.read(path, look, within_s=wire.STORAGE_S)
        return {"problem": "" if fault is None else fault.text}

    def _saved_bytes(self) -> int:
        """The size of the last checkpoint of the newest run; 0: it is unknown."""
        run = self.agent.run
        return 0 if run is None or run.checkpoint is None else run.checkpoint["bytes"]

    def set_aside(self, _query: Fields, body: Fields) -> Any:
        command: wire.SetAsideCommand = commands.read(body, wire.SetAsideCommand)
        path = command["path"]
        require_stopped = self._requires_stopped(command["generation"])
        require_stopped()
        move = partial(
            set_aside.ensure,
            Path(path),
            command["checkpoints"],
            resume=command["resume"],
            generation=command["generation"],
            require_stopped=require_stopped,
            pattern=command["pattern"],
        )
        moved, why = reading.read(path, move, within_s=wire.STORAGE_S)
        return {"moved": moved, "why": why}

    def _requires_stopped(self, generation: int) -> Callable[[], object]:
        """A function that raises Stale once ranks of this generation may run, for any thread."""
        return lambda: self.agent.loop.call(lambda: self.agent.require_stopped(generation))

    def journal(self, _query: Fields, body: Fields) -> Any:
        command: wire.JournalCommand = commands.read(body, wire.JournalCommand)
        # Under a name of its own, so that reading a fence in that folder does not wait for it.
        name = f"the records in {command['model_dir']}"
        reading.read(name, partial(journal.write, command), within_s=wire.STORAGE_S)
        return {}

    def release(self, _query: Fields, body: Fields) -> Any:
        command: wire.ReleaseCommand = commands.read(body, wire.ReleaseCommand)
        self.polled()
        self.agent.loop.call(lambda: self.agent.require_stopped(command["generation"] + 1))
        return {"kept": releasing.release(command, within_s=wire.STORAGE_S)}

    def check(self, _query: Fields, body: Fields) -> Any:
        command = commands.check_command(body)
        self.polled()
        self.agent.loop.call(lambda: self.agent.accept_generation(command["generation"]))
        return self._running_checks(command).state(SOON_S)

    def _running_checks(self, command: wire.CheckCommand) -> checks.RunningChecks:
        """The checks of this generation; started unless they were started before."""
        with self.one_at_a_time:
            running_checks = self.running_checks
            if running_checks is None or running_checks.generation < command["generation"]:
                within_s = wire.Thresholds(**command["thresholds"]).within_s
                running_checks = self.running_checks = checks.RunningChecks(
                    command["generation"], checks.checks_of(command), within_s=within_s
                )
            return running_checks

    def save(self, _query: Fields, body: Fields) -> Any:
        command = commands.save_command(body)
        self.polled()
        return self.agent.loop.call(lambda: self.save_requests.ask(command))

    def copy(self, body: bytes) -> Any:
        """Take a part of a copy, unless it is meant for another pod or comes from a run that was left."""
        end = body.index(b"\n")
        part = commands.copy_part(body[:end])
        self._refuse_if_left(part["to"], part["run"])
        with memoryview(body) as whole, whole[end + 1 :] as content:
            try:
                made_whole = self.agent.copies.take(part, content)
            except OutOfOrder as error:
                raise Stale(str(error)) from None
        if made_whole:
            self.agent.loop.hand_over(self._publish_copies)
        return {}

    def pins(self, body: bytes) -> Any:
        """Take the report of another agent on what its ranks have pinned."""
        report = commands.pin_report(body)
        self._refuse_if_left(report["to"], report["run"])
        return self.agent.loop.call(lambda: self.agent.parts.copier.take_report(report))

    def _refuse_if_left(self, to: str, run: int) -> None:
        newest = self.agent.newest_run
        if to != self.agent.uid or (newest is not None and run < newest):
            raise Stale("it is meant for another pod, or of a run that was left")

    def _publish_copies(self) -> None:
        run = self.agent.run
        self.agent.publish(only_progress=run is not None and run.is_alive)

    def copy_header(self, query: Fields, _body: Fields) -> Any:
        rank, step, _ = _place_of(query)
        header = self.agent.copies.header(rank, step)
        if header is None:
            raise HttpRefusal(404, f"there is no copy of step {step} of rank {rank}")
        return header

    def copy_part(self, query: Fields, _body: Fields) -> Any:
        rank, step, offset = _place_of(query)
        content = self.agent.copies.read(rank, step, offset)
        if content is None:
            raise HttpRefusal(404, f"there is no copy of step {step} of rank {rank}")
        return content

    def dump(self, _query: Fields, body: Fields) -> Any:
        command: wire.DumpCommand = commands.read(body, wire.DumpCommand)
        self.polled()
        return self.agent.loop.call(lambda: self.agent.dump(command))

    def stacks(self, _query: Fields, _body: Fields) -> Any:
        run = self.agent.run
        texts = self.agent.parts.evidence.stacks(run, STACKS_S) if run is not None else {}
        return {"stacks": {str(number): text for number, text in sorted(texts.items())}}

    def log(self, query: Fields, _body: Fields) -> Any:
        state = self.agent.wait(lambda _: True, 0.0)
        newest = state["run"]["generation"] if state["run"] is not None else 0
        usual = {"generation": newest, "rank": 0, "offset": 0, "limit": LOG_LIMIT}
        generation, rank, offset, limit = (
            int(commands.number(query, name, value)) for name, value in usual.items()
        )
        path = log_path(self.agent.home / wire.LOGS, generation, rank)
        try:
            data, at, behind = logs.read(path, offset, min(max(1, limit), LOG_LIMIT_MAX))
        except FileNotFoundError:
            raise HttpRefusal(404, f"there is no log {path.name}") from None
        return {"text": data.decode(errors="replace"), "offset": at, "next": behind}


def _place_of(query: Fields) -> tuple[int, int, int]:
    """Rank, step and offset."""
    rank, step, offset = (
        int(commands.number(query, name, 0)) for name in ("rank", "step", "offset")
    )
    if offset < 0:
        raise commands.BadCommand("offset: it is not negative")
    return rank, step, offset


def _is_news(state: wire.AgentState, since: float) -> bool:
    """Whether the state has news since that version. A restarted agent counts from 0: that is news too."""
    return state["news"] > since or state["version"] < since


def _is_up(state: wire.AgentState, generation: int) -> bool:
    run = state["run"]
    if run is None or run["generation"] < generation:
        return state["generation"] > generation
    return run["started_at"] is not None or run["failed"] is not None
