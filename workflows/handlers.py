"""Queries, signals and updates of a TrainingJob.

A command comes as an update, or as a signal of the same name: `check` accepts or refuses it, `obey_update`
hands it to the loop (`_queue`) and answers. Only a change of the document and an adoption are carried out
here, before they are handed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from everstep.chronicle import happenings, shapes, views
from everstep.chronicle.chronicle import Chronicle
from everstep.chronicle.fold import folded
from everstep.core.bounds import (
    FIRST_SECOND,
    LAST_SECOND,
    NAME_MOST,
    TEXT_MOST,
    cut,
    plain,
    quoted,
)
from everstep.core.errors import CommandRejected
from everstep.core.loop import commands, lifecycle, operators
from everstep.core.loop.document_changes import changed_keys
from everstep.core.loop.job_events import (
    DocumentChanged,
    RequestRefused,
    SaveRequested,
    StorageAwaited,
    WorkerChanged,
)
from everstep.core.spec import PhaseSpec
from everstep.core.state import Command, JobState, Mode, Wait, is_applied
from everstep.core.waits import known_reason
from everstep.dialects import responses
from workflows import adopting, attributes, commanding, opening, saving

CHANGES_MOST = 20
"""Changes of the document that may wait at once: each takes two local activities."""

SAVES_MOST = 10
"""Requests to save that may wait at once: each takes an activity."""

DEVICES_MOST = 100
"""Devices of reported faults that may be looked for at once: each takes an activity, and a server that finds
thousands of them pending fails every task of the workflow."""

WORKERS = ("worker", "earlier")
"""Keys of the signal `taken_over`."""

Handler = Callable[..., Awaitable[dict[str, Any]]]


def _update(name: str, description: str) -> Handler:
    """The handler of an update of a job, with its validator."""

    @workflow.update(name=name, description=description)
    async def handler(job: Any, argument: Any = None) -> dict[str, Any]:
        result: dict[str, Any] = await job.obey_update(name, argument)
        return result

    @handler.validator
    def validator(job: Any, argument: Any = None) -> None:
        job.check(name, argument)

    return cast("Handler", handler)


def _signal(name: str) -> Callable[..., Awaitable[None]]:
    """The handler of the signal that does what the update of this name does.

    It belongs to the class: a handler set by an instance misses the arguments of signals that come with
    the first task, as all do that a reset sends again.
    """

    @workflow.signal(name=name, description=f"the same as the update {name}")
    async def handler(job: Any, *arguments: Any) -> None:
        await job.take_signal(name, arguments)

    return cast("Callable[..., Awaitable[None]]", handler)


def _moment(value: Any) -> float | None:
    """A time in a signal, which may come from anywhere: None unless a date can show it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and FIRST_SECOND <= value <= LAST_SECOND else None


class JobHandlers:
    """Queries, signals and updates of a job. A handler changes the state and nothing else: the loop acts."""

    def __init__(self) -> None:
        self._document: Any = None
        # None before the document is read: updates and queries may come earlier.
        self._state: JobState | None = None
        self.chronicle = Chronicle()
        self.failing = ""  # how the newest publication fails again and again
        self._listed_as = ""  # the state in the list of the Temporal UI
        self._messages = 0  # number of commands that were handed to the loop
        self._changing = asyncio.Lock()  # one change of the document after the other
        self._adopting = asyncio.Lock()  # one adoption after the other
        self._adoption = ("", 0)  # the newest: by which books, at which generation
        self._changes = 0  # changes of the document that were accepted and are not made yet
        self._saves = 0  # requests to save that wait for a checkpoint
        self._looked_for = 0  # devices of reported faults
        # By how much the server's clock was ahead of the cluster's as the newest time of that arrived.
        self._clock_lead_s: float | None = None

    @property
    def state(self) -> JobState:
        if self._state is None:
            raise ApplicationError("the job has not read its document yet", non_retryable=True)
        return self._state

    @workflow.query(name="status", description="where the job is, its pods, budgets and series")
    def status(self, argument: Any = None) -> dict[str, Any]:
        status = responses.status(
            self._state, self.chronicle, workflow.info().workflow_id, argument
        )
        return shapes.with_failing(status, self.failing)

    @workflow.query(name="restarts", description="the newest 50 restart records, oldest first")
    def restarts(self, argument: Any = None) -> list[dict[str, Any]] | dict[str, Any]:
        return responses.shaped_restarts(self.chronicle, workflow.info().workflow_id, argument)

    @workflow.query(name="document", description="the document in force, and who changed it when")
    def document(self, _argument: Any = None) -> dict[str, Any]:
        return views.document(workflow.info().workflow_id, self._document, self.chronicle)

    @workflow.query(name="events", description="the newest 50 things that happened, oldest first")
    def events(self, _argument: Any = None) -> list[dict[str, Any]]:
        return happenings.events(self.chronicle)

    @workflow.query(name="report", description="the JobReport as it would be if the job ended now")
    def report(self, _argument: Any = None) -> dict[str, Any]:
        return responses.report(self.state, self.chronicle)

    @workflow.query(name="explain", description="why a restart was decided as it was: {n, phase}")
    def explain(self, argument: Any = None) -> dict[str, Any]:
        return responses.explain(self._state, self.chronicle, workflow.info().workflow_id, argument)

    @workflow.query(name="state", description="what rules depend on, for `everstep explain --job`")
    def job_state(self, _argument: Any = None) -> JobState:
        return self.state

    @workflow.signal(name="waiting", description="a step of ours says what it waits for")
    async def waiting(self, notice: Any = None) -> None:
        if self._state is None or not isinstance(notice, dict):
            return
        if notice.get("plan") == lifecycle.plan_key(self._state):
            what = notice.get("what")
            what = None if what is None else cut(plain(str(what)), TEXT_MOST)
            since, until = (_moment(notice.get(key)) for key in ("since", "until"))
            since = self._time() if since is None else since
            reason = known_reason(notice.get("reason"))
            wait = (
                None if what is None else Wait(what=what, since=since, until=until, reason=reason)
            )
            if wait is not None and lifecycle.begins_to_await_storage(self._state, wait):
                awaited = StorageAwaited(
                    at=self._time(), text=wait.what, waiting_reason=str(wait.reason)
                )
                self.chronicle = folded(self.chronicle, [awaited])
            self._state = lifecycle.waits(self._state, wait)
            if notice.get("is_refusal") and what:
                self._note_refusal(what, waiting_reason=reason)
            workflow.set_current_details(views.page(self.state, self.chronicle))
            if views.shown_state(self._state) != self._listed_as:
                self._list()

    def _list(self) -> None:
        """Update the search attributes of the job, which the list of the Temporal UI shows."""
        self._listed_as = views.shown_state(self.state)
        workflow.upsert_search_attributes(attributes.updates(self.state, self.chronicle))
        self._list_avoided()

    def _list_avoided(self) -> None:
        """Keep the nodes that the job avoids in its memo: `everstep nodes` and `doctor` query no job."""
        if (avoided := views.avoided_nodes(self.state)) != workflow.memo_value("avoided", []):
            workflow.upsert_memo({"avoided": avoided})

    @workflow.signal(name="unpublished", description="a publication fails again and again")
    async def unpublished(self, what: Any = None) -> None:
        if self._state is None or what is None:
            return
        first, self.failing = not self.failing, cut(plain(str(what)), TEXT_MOST)
        if first:
            self._note_refusal(self.failing)

    @workflow.signal(name="taken_over", description="a worker watches the job after another one")
    async def taken_over(self, notice: Any = None) -> None:
        if self._state is None or not isinstance(notice, dict) or not notice.keys() >= {*WORKERS}:
            return
        worker, earlier = (cut(plain(str(notice[key])), NAME_MOST) for key in WORKERS)
        changed = WorkerChanged(at=self._time(), worker=worker, earlier=earlier)
        self.chronicle = folded(self.chronicle, [changed])

    @workflow.signal(dynamic=True)
    async def unknown(self, name: str, _arguments: Sequence[RawValue]) -> None:
        updates = ", ".join(commands.KEYS)
        await self._refuse(
            f"a job does not know the signal {quoted(name)}; use the update {updates}"
        )

    async def take_signal(self, name: str, arguments: Sequence[Any]) -> None:
        """Do what the update of this name does; a refusal is an event."""
        argument = arguments[0] if arguments else None
        try:
            if len(arguments) > 1:
                raise CommandRejected(f"{name} takes one JSON object, not {len(arguments)}")
            self.check(name, argument)
            await self.obey_update(name, argument)
        except (CommandRejected, *opening.LOCAL_FAILURES) as error:
            why = error.message if isinstance(error, ApplicationError) else error
            await self._refuse(f"the signal {name} was refused: {why}")

    async def _refuse(self, text: str) -> None:
        if self._state is None:
            await workflow.wait_condition(lambda: self._state is not None)
        self._note_refusal(text)

    def _note_refusal(self, text: str, *, waiting_reason: str = "") -> None:
        if happenings.repeats_a_refusal(self.chronicle, text):  # one of thousands
            return
        refused = RequestRefused(at=self._time(), text=text, waiting_reason=waiting_reason)
        self.chronicle = folded(self.chronicle, [refused])

    pause = _update("pause", "stop the processes, keep the pods: {reason}")
    resume = _update("resume", "go on after a pause: {}")
    stop = _update("stop", "end the job in order: {grace_s, reason}")
    restart = _update("restart", "restart now: {level, reason}")
    report_fault = _update("report_fault", "{kind, node, device, code, at, message}")
    set_budget = _update("set_budget", "{name, limit}; limit null: none")
    hot_update = _update("hot_update", "{patch, when: now or next_restart}")
    release = _update("release", "no longer avoid this node: {node}")
    checkpoint = _update(
        "checkpoint", "have the ranks save now: {within_s}; answers what was saved"
    )
    adopt = _update(
        "adopt", "go on with a cluster database that lacks generations of the job: {reason}"
    )

    pause_signal = _signal("pause")
    resume_signal = _signal("resume")
    stop_signal = _signal("stop")
    restart_signal = _signal("restart")
    report_fault_signal = _signal("report_fault")
    set_budget_signal = _signal("set_budget")
    hot_update_signal = _signal("hot_update")
    release_signal = _signal("release")
    adopt_signal = _signal("adopt")
    checkpoint_signal = _signal("checkpoint")

    async def obey_update(self, name: str, argument: Any) -> dict[str, Any]:
        """Obey an update after its check."""
        match name:
            case "hot_update":
                return await self._change_document(argument)
            case "adopt":
                return await self._adopt(argument)
            case "checkpoint":
                return await self._save(argument)
            case _:
                return await self._queue_update(name, argument)

    async def _adopt(self, argument: Any) -> dict[str, Any]:
        args = commanding.only_object(argument)
        await workflow.wait_condition(lambda: self._state is not None)
        async with self._adopting:
            if self._is_applied(args):
                return self._answer(again=True)
            adoption = await adopting.adopted_by(self.state, self._adoption)
            self._adoption = adoption
            self._state = replace(self.state, job=replace(self.state.job, books=adoption[0]))
            self._queue(Command(name="adopt", args=args))
            return self._answer(again=False)

    async def _save(self, argument: Any) -> dict[str, Any]:
        args = commanding.only_object(argument)
        if self._state is None:
            await workflow.wait_condition(lambda: self._state is not None)
            commanding.check_command(self.state, "checkpoint", args)
        self._saves += 1
        try:
            result = await saving.requested(lambda: self.state, args)
        finally:
            self._saves -= 1
        event = SaveRequested(at=self._time(), text=result["text"])
        self.chronicle = folded(self.chronicle, [event])
        return {**self._answer(again=False), **result}

    async def _change_document(self, argument: Any) -> dict[str, Any]:
        self._changes += 1
        try:
            return await self._change_document_in_turn(argument)
        finally:
            self._changes -= 1

    async def _change_document_in_turn(self, argument: Any) -> dict[str, Any]:
        async with self._changing:
            args = commanding.only_object(argument)
            await workflow.wait_condition(lambda: self._state is not None)
            if self._is_applied(args):
                return self._answer(again=True)
            document = self._document
            before = await self._respecify(args["patch"])
            if self._document != document:
                self._note_change(args)
            # Its work is done; only its id is to be remembered.
            self._state = operators.commanded(self.state, Command(name="note", args=args))
            # A phase that has not begun to start follows the new document anyway.
            if args.get("when") == "now" and self.state.mode is not Mode.PENDING:
                restart = operators.restart_for(before, self.state.phase)
                self._queue(Command(name="restart", args=restart), may_join=False)
            return self._answer(again=False)

    def check(self, name: str, argument: Any) -> None:
        """Raise `CommandRejected` if the update cannot be accepted now."""
        args = commanding.only_object(argument)
        if name == "hot_update" and self._changes >= CHANGES_MOST:
            raise CommandRejected(
                f"{CHANGES_MOST} changes of the document wait already; send it again"
            )
        if name == "checkpoint" and self._saves >= SAVES_MOST:
            raise CommandRejected(f"{SAVES_MOST} requests to save wait already; send it again")
        if self._state is None:  # nothing to judge it by yet: the handler waits for that
            commands.parse_arguments(name, args)
        elif not self._is_applied(args):
            commands.accept(self._state, name, args, now=workflow.time())

    async def _queue_update(self, name: str, argument: Any) -> dict[str, Any]:
        """Hand an update to the loop.

        The validator has checked it. A second check here could end otherwise when newer rules replay it.
        """
        args = commanding.only_object(argument)
        if self._state is None:
            await workflow.wait_condition(lambda: self._state is not None)
            commanding.check_command(self.state, name, args)
        if self._is_applied(args):
            return self._answer(again=True)
        if name == "report_fault" and args.get("device") is not None:
            await self._check_device(args["node"], args["device"])
            if self._is_applied(args):  # meanwhile
                return self._answer(again=True)
        command = Command(name=name, args=args)
        joined = operators.restart_joined(self.state, command)
        self._queue(command)
        self._list_avoided()
        return {**self._answer(again=False), "joined": joined}

    async def _check_device(self, node: str, device: int) -> None:
        if self._looked_for >= DEVICES_MOST:
            raise commanding.rejected(
                f"report_fault: {DEVICES_MOST} devices are looked for already; send it again"
            )
        self._looked_for += 1
        try:
            unknown = await commanding.unknown_device(self.state.spec.cluster, node, device)
        finally:
            self._looked_for -= 1
        if unknown:
            self._note_refusal(f"report_fault: {unknown}; it counts all the same")

    def _queue(self, command: Command, *, may_join: bool = True) -> None:
        """Hand an accepted command to the loop."""
        self._state = operators.commanded(self.state, command, may_join=may_join)
        self._messages += 1

    def _is_applied(self, args: Any) -> bool:
        """Whether a command with this ID was accepted before."""
        command_id = args.get("id") if isinstance(args, dict) else None
        return (
            self._state is not None
            and command_id is not None
            and is_applied(self._state, command_id)
        )

    def _answer(self, *, again: bool) -> dict[str, Any]:
        return {
            "accepted": True,
            "again": again,  # this very command was accepted before
            "joined": None,  # what is under way and does what a restart asks for
            "ends_what_is_running": operators.interrupts(self.state),
            "state": views.shown_state(self.state),
        }

    def _note_change(self, args: Mapping[str, Any]) -> None:
        changed = DocumentChanged(
            at=self._time(),
            what=changed_keys(args["patch"]),
            is_now=args.get("when") == "now",
            by=args.get("by"),
        )
        self.chronicle = folded(self.chronicle, [changed])

    def _time(self) -> float:
        """The cluster's time as far as it is known; of a virtual clock the last one that it showed."""
        now, reported = workflow.time(), self.state.now
        run_began = workflow.info().workflow_start_time.timestamp()
        if reported and shapes.is_virtual(reported, now, run_began=run_began):
            return reported
        return now - (self._clock_lead_s or 0.0)

    def _note_cluster_time(self, cluster_time: float) -> None:
        """Compare the clocks. A time that was long on its way makes `_time` late, never early."""
        self._clock_lead_s = workflow.time() - cluster_time

    async def _respecify(self, fragment: Any) -> PhaseSpec:
        """The changed document, compiled; a wrong one fails this update and nothing else.

        Returns the phase as it was: while the document was compiled the next one may have begun.
        """
        document = await opening.patched(self._document, fragment)
        spec = await opening.compiled(document)
        self._document, before = document, self.state.phase
        self._state = operators.respecified(self.state, spec)
        return before
