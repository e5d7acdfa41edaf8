"""TrainingJob: a job's whole life. It drives `core.loop.lifecycle` and touches nothing itself.

A local activity evaluates the rules; activities and Recoveries act. Here is only what belongs to Temporal. A
run opens (`_open`), repeats event -> `lifecycle.advance` -> action (`_loop`, `_do`) and ends: the job closes
(`_close`) or continues as a new run. Queries, signals and updates are in `handlers`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
)

from everstep.chronicle import happenings, record_rows, views
from everstep.chronicle.fold import folded
from everstep.core import names
from everstep.core.counting.occurrences import FaultCount
from everstep.core.counting.reports import CountOrder, count_order
from everstep.core.deciding.decision import Outcome, Plan
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.escaping import as_markdown, in_markdown
from everstep.core.levels import RESCHEDULING
from everstep.core.loop import lifecycle, next_actions, operators
from everstep.core.seeing.glance import saved_in
from everstep.core.seeing.watch_report import WatchOrder, WatchReport, report_of_no_news
from everstep.core.spec import JobSpec
from everstep.core.state import JobState, Mode
from everstep.core.world import JobRef
from everstep.dialects import responses
from workflows import (
    adopting,
    attributes,
    commanding,
    missing_workers,
    opening,
    options,
    signatures,
)
from workflows.handlers import JobHandlers
from workflows.publishing import Publisher
from workflows.recovery import (
    carry_out,
    clear_away,
    end_recovery,
    failed_outcome,
    is_cancelled,
    line,
    refusal,
)
from workflows.renewing import should_renew

T = TypeVar("T")


@workflow.defn(name=names.TRAINING_JOB)
class TrainingJob(JobHandlers):
    """One training job, from its document to its report."""

    def __init__(self) -> None:
        super().__init__()
        self._note = ""  # what was decided last, where nothing is done about it
        self._publisher = Publisher(self)

    def log_labels(self) -> dict[str, Any]:
        """Labels of what activities log that this run orders."""
        info = workflow.info()
        job = {"job": info.workflow_id, "first_run": info.first_execution_run_id}
        if self._state is None:
            return job
        return {**job, "phase": self.state.phase.name, "generation": self.state.generation}

    # -- life ----------------------------------------------------------------------------------

    @workflow.run
    async def run(self, *raw: Any) -> dict[str, Any]:
        await self._shielded(self._open(raw))
        self._publishing = asyncio.create_task(self._publisher.work())
        end = await self._shielded(self._live())
        await self._shielded(workflow.wait_condition(workflow.all_handlers_finished))
        # A cancel that came meanwhile does not reach the next run: obey it in this one.
        if end is None and operators.must_end(self.state):
            end = await self._shielded(self._live())
        if end is None:
            # `everstep list` shows the newest run, and the server does not pass the memo on to it.
            workflow.continue_as_new(
                args=[self._carried()],
                memo=workflow.memo(),
                initial_versioning_behavior=options.UPGRADED,
            )
        return self._close(end)

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. A cancel is a stop: what runs is ended in order before the workflow closes.

        A cancel that comes while this run waits to continue as new is obeyed in this run: it does not reach
        the next one.
        """
        task = asyncio.create_task(work)
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled() or self._state is None:
                    raise
                self._queue(commanding.CANCEL)

    async def _live(self) -> next_actions.End | None:
        """Run the loop beside the publisher, and let that finish if the job ends. None: a new run goes on."""
        self._publisher.open()
        end = await self._loop()
        if end is not None:
            await self._publisher.wait_for_all()
            self.chronicle = happenings.lines_lost(self.chronicle, self.state.now)
        self._publisher.close()
        return end

    async def _loop(self) -> next_actions.End | None:
        """Advance the state by each event and do the action that follows, until the job or this run ends."""
        event: next_actions.Event = next_actions.Begun()
        while True:
            if _has_no_time(event):
                self._state = replace(self.state, now=max(self.state.now, self._time()))
            self._state, action, events = lifecycle.advance(self.state, event)
            self.chronicle = folded(self.chronicle, events)
            self._show(action)
            if isinstance(action, next_actions.End):
                return action
            if isinstance(action, next_actions.NextPhase):
                self._state = lifecycle.enter_phase(self.state, self.state.phase_index + 1)
                return None
            if isinstance(action, next_actions.WatchAction) and self._should_renew():
                return None
            event = await self._do(action)

    def _should_renew(self) -> bool:
        """Between incidents or in a pause only, so that no Recovery is ever in flight across runs.

        A server takes 10,000 signals of one run and suggests a new one long before. Where workers have
        versions, a run that is not of the current one ends too: the next run is.
        """
        is_quiet = self.state.incident is None or self.state.mode is Mode.PAUSED
        # A request to save would keep the next run waiting, and the job without a watch.
        is_quiet = is_quiet and not self._saves
        return is_quiet and should_renew()

    async def _do(self, action: next_actions.Action) -> next_actions.Event:
        """Do the action. Returns the event that it ends with."""
        match action:
            case next_actions.Decide(inputs=inputs):
                counted = await self._counted(inputs)
                return next_actions.Undecided() if counted is None else await self._decide(counted)
            case next_actions.RunPlan(plan=plan):
                work = self._recovery(plan) if plan.n else carry_out(plan, self._show_wait)
                return await self._plan_ended(work)
            case next_actions.WatchAction(order=order):
                return next_actions.Watched(report=await self._watch(order))
            case next_actions.Observe(order=order):
                return next_actions.Watched(report=await self._look(order))
            case next_actions.Clear():
                await self._publisher.wait_for_lines()
                isolated = await self._hand_over()  # before its places are free for other jobs
                cluster, why = self.state.spec.cluster, self.state.ending_reason
                cleared = await adopting.in_current_books(
                    lambda: self.state.job,
                    lambda job: clear_away(
                        replace(action, job=job), cluster, self._show_wait, why=why
                    ),
                )
                return next_actions.Cleared(isolated=isolated, saved=cleared.saved)
            case _:
                raise ApplicationError(f"{action} is not something to do", non_retryable=True)

    # -- doing ---------------------------------------------------------------------------------

    async def _plan_ended(self, work: Coroutine[Any, Any, Outcome]) -> next_actions.PlanEnded:
        """The outcome of a plan, or none if it was ended from outside: by hand, a reset or a command."""
        try:
            outcome = await self._interruptible(work)
        except (ActivityError, ChildWorkflowError, asyncio.CancelledError) as error:
            workflow.logger.info("the plan ended without an outcome: %s", error)
            return next_actions.PlanEnded(
                outcome=None,
                interrupted=operators.interrupts(self.state),
                refused=refusal(error),
            )
        self._note_cluster_time(outcome.now)
        return next_actions.PlanEnded(outcome=outcome)

    async def _hand_over(self) -> tuple[str, ...]:
        """Hand the quarantine what is deferred. Returns the nodes that it isolated."""
        if not self.state.deferred:
            return ()
        over = partial(hand_over, self.state)
        return await missing_workers.run_call(over, self._show_wait)

    async def _recovery(self, plan: Plan) -> Outcome:
        """The outcome of the plan's own workflow, under an ID that no other workflow has."""
        while not is_cancelled():
            try:
                return await self._child(plan)
            except WorkflowAlreadyStartedError as error:
                taken_id = error.workflow_id
            if kind := await end_recovery(taken_id, plan):
                plan = replace(plan, key=names.next_key(plan.key))
                self._state = replace(self.state, plan=plan)
                what = f"{taken_id} is a {kind} that this job did not start"
                self._note_refusal(f"{what}; it stays, and the restart takes another ID")
        raise asyncio.CancelledError

    async def _child(self, plan: Plan) -> Outcome:
        record = responses.record(self.chronicle.records[-1])
        if plan.level in RESCHEDULING:  # `everstep list` reads memos and queries no job
            workflow.upsert_memo({"reschedules": views.reschedules(self.state)})
        starting = asyncio.create_task(
            workflow.start_child_workflow(
                names.RECOVERY,
                plan,
                id=names.recovery_id(self.state.job.id, plan.key),
                result_type=Outcome,
                task_queue=names.TASK_QUEUE,
                static_summary=in_markdown(plan.title),
                static_details=as_markdown(record_rows.story(record)),
                memo={"record": record},
                search_attributes=attributes.of_recovery(self.state, self.chronicle, plan),
                **options.RECOVERY,
            )
        )
        try:
            child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A server that still creates the child loses the request to cancel it.
            child = await starting
            child.cancel()
        try:
            outcome: Outcome = await child
        except ChildWorkflowError as error:
            failed = failed_outcome(error)
            if failed is None:
                raise
            return failed
        return outcome

    async def _interruptible(
        self, work: Coroutine[Any, Any, T], or_by: Callable[[], bool] = lambda: False
    ) -> T:
        """The result of the work; a command that cannot wait cancels it, and its end is awaited."""
        task = asyncio.create_task(work)
        await workflow.wait_condition(
            lambda: task.done() or operators.interrupts(self.state) or or_by()
        )
        if not task.done():
            task.cancel()
        return await task

    async def _watch(self, order: WatchOrder) -> WatchReport:
        """The monitor's report. One whose worker died before it could answer our cancel has none."""
        note, self._note = self._note, ""
        summary = line(f"watch generation {order.generation}", note)
        try:
            watching = self._see(signatures.monitor, order, summary, options.FIRST_STEP)
            return await self._interruptible(watching, or_by=self._should_renew)
        except (ActivityError, asyncio.CancelledError) as error:
            workflow.logger.info("the monitor ended without a report: %s", error)
            if why := missing_workers.not_begun(error):
                await self._show_wait(why)
            if operators.must_end(self.state):  # it ends whatever a look would show
                return report_of_no_news(order)
            return await self._look(order)

    async def _look(self, order: WatchOrder) -> WatchReport:
        look = partial(self._see, signatures.look, order, "look at the world")
        return await missing_workers.run_step(look, self._show_wait)

    async def _show_wait(self, what: str | None) -> None:
        """Show what the job waits for where no activity began that could report it."""
        waiting = {"plan": lifecycle.plan_key(self.state), "what": what, "is_refusal": bool(what)}
        await self.waiting(waiting)

    async def _see(
        self,
        called: Callable[[WatchOrder], Awaitable[WatchReport]],
        order: WatchOrder,
        summary: str,
        how: Mapping[str, Any],
    ) -> WatchReport:
        """The report of the activity `monitor` or `look`. If it fails, its heartbeat's checkpoint is kept."""

        async def see(job: JobRef) -> WatchReport:
            try:
                report: WatchReport = await workflow.execute_activity(
                    called,
                    replace(order, job=job),
                    task_queue=names.cluster_queue(order.cluster),
                    summary=summary,
                    **how,
                )
            except ActivityError as error:
                saved = saved_in(missing_workers.newest_heartbeat(error)) or self.state.saved
                self._state = replace(self.state, saved=saved)
                raise
            self._note_cluster_time(report.now)
            return report

        return await adopting.in_current_books(lambda: self.state.job, see)

    async def _counted(self, inputs: DecisionInput) -> DecisionInput | None:
        """The input with the counts of its device faults, where the cluster counts them over all jobs.

        None if a command comes meanwhile that a job obeys without a decision.
        """
        order = count_order(
            inputs.policy,
            inputs.facts,
            inputs.occurrences,
            spec=self.state.spec,
            job=self.state.job.id,
        )
        if order is None:
            return inputs
        counts = missing_workers.run_call(partial(_counts, order), self._show_wait)

        def is_needless() -> bool:
            return operators.needs_no_decision(self.state)

        try:
            return replace(inputs, counts=await self._interruptible(counts, or_by=is_needless))
        except (ActivityError, asyncio.CancelledError):
            return None if is_needless() else inputs

    async def _decide(self, inputs: DecisionInput) -> next_actions.Decided | next_actions.Undecided:
        """The decision, however often its rules fail; none if a command waits then that needs none."""
        about = line(views.occasion(inputs))
        while True:
            try:
                decision = await workflow.execute_local_activity(
                    signatures.decide, inputs, summary=about, **options.LOCAL
                )
                self._note = "" if decision.is_executed else f"noted: {decision.reason}"
                return next_actions.Decided(decision=decision)
            except opening.LOCAL_FAILURES as error:
                if operators.needs_no_decision(self.state):
                    return next_actions.Undecided()
                await self._wait_stuck(f"a decision: {error}")

    async def _wait_stuck(self, why: str) -> None:
        """A pure function failed again and again: visible, and tried again when something changes."""
        await self._show_wait(why)
        messages = self._messages
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._messages != messages,
                timeout=options.STUCK_RETRY,
                timeout_summary="until it is tried again",
            )
        await self._show_wait(None)

    # -- the way in ----------------------------------------------------------------------------

    async def _open(self, raw: tuple[Any, ...]) -> None:
        info = workflow.info()
        job = JobRef(id=info.workflow_id, run=info.run_id, first_run=info.first_execution_run_id)
        carried = opening.carried_over(raw)
        if carried is not None:
            self._document, self.chronicle = carried.document, carried.chronicle
            self._state = replace(carried.state, job=replace(carried.state.job, run=info.run_id))
            self._note_cluster_time(carried.state.now)  # a new run begins right after a report
            spec = await self._recompiled(carried.state.spec)
            self._state = replace(self.state, spec=spec)  # a command may have changed it meanwhile
            return
        try:
            self._document = opening.only_document(raw)
            opening.refuse_id(job.id)
            spec = await opening.compiled(self._document)
        except ApplicationError:
            workflow.upsert_search_attributes(attributes.of_refusal(job.id))
            raise
        self._state = lifecycle.opened(job, spec, at=workflow.time())
        opening.keep_notes(spec)
        self._show(None)
        await self._reach_cluster(spec.cluster)

    async def _reach_cluster(self, cluster: str) -> None:
        """The first thing that needs a worker of the cluster; while there is none the job can be ended."""
        reached = workflow.execute_activity(
            signatures.reach,
            task_queue=names.cluster_queue(cluster),
            summary=f"reach cluster {cluster}",
            **options.CALL,
        )
        try:
            reached_cluster = await self._interruptible(reached)
            self._note_cluster_time(reached_cluster.now)
            job = replace(self.state.job, books=reached_cluster.books)
            self._state = replace(self.state, job=job, now=reached_cluster.now, waiting=None)
        except (ActivityError, asyncio.CancelledError):
            if not operators.interrupts(self.state):
                raise

    async def _recompiled(self, spec: JobSpec) -> JobSpec:
        """The document compiled by this worker's rules. If they refuse it, the job goes on with `spec`."""
        try:
            return await opening.compiled(self._document)
        except opening.LOCAL_FAILURES as error:
            workflow.logger.warning("the document is not accepted any more: %s", error)
            return spec

    # -- the way out ---------------------------------------------------------------------------

    def _carried(self) -> opening.Carried:
        return opening.Carried(document=self._document, state=self.state, chronicle=self.chronicle)

    def _close(self, end: next_actions.End) -> dict[str, Any]:
        left = responses.closing_memo(self.state, self.chronicle)
        workflow.upsert_memo(left)
        if end.status == "Invalid":
            raise ApplicationError(end.reason, type="InvalidSpec", non_retryable=True)
        if end.status == "Failed":
            raise ApplicationError(end.reason, left["report"], type="JobFailed", non_retryable=True)
        if end.status == "Canceled":
            raise asyncio.CancelledError
        return dict(left["report"])

    def _show(self, action: next_actions.Action | None) -> None:
        """Search attributes and the page in the UI."""
        workflow.set_current_details(views.page(self.state, self.chronicle))
        if isinstance(action, next_actions.Decide):
            return  # the answer follows at once and is what counts
        self._list()


def _has_no_time(event: next_actions.Event) -> bool:
    """Whether no report of the cluster came with the event: the job may have waited long before it."""
    is_without_outcome = isinstance(event, next_actions.PlanEnded) and event.outcome is None
    return is_without_outcome or isinstance(event, next_actions.Begun | next_actions.Undecided)


async def _counts(order: CountOrder, how: Mapping[str, Any]) -> tuple[FaultCount, ...]:
    return await workflow.execute_activity(
        signatures.count_faults,
        order,
        task_queue=names.cluster_queue(order.cluster),
        summary=line("count", ", ".join(sorted({str(fact.code) for fact in order.facts}))),
        **how,
    )


async def hand_over(state: JobState, how: Mapping[str, Any]) -> tuple[str, ...]:
    """Send the quarantine, at the job's end, the isolations that it has not answered.

    Returns the nodes that it isolated.
    """
    return await workflow.execute_activity(
        signatures.hand_over,
        args=[state.job, state.spec.cluster, state.deferred],
        task_queue=names.cluster_queue(state.spec.cluster),
        summary=", ".join(isolation.node for isolation in state.deferred),
        **how,
    )
