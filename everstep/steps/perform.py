"""One function per step, and the table from the step's name to it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from everstep.core.deciding.decision import Isolation, StepOrder, StepResult
from everstep.core.deciding.playbook import weight
from everstep.core.facts import PODS_FAILED, STANDBY_NONE, STANDBY_OVER, START_FAILED, Fact, bounded
from everstep.core.levels import ALL_STAY, Level, Step
from everstep.core.recovering import avoiding, survivors
from everstep.core.recovering.placement import (
    Attempt,
    NoPlace,
    OrderPlaces,
    first_slots,
    next_order,
    no_place_reason,
    node_ranks,
    start_failures_reason,
)
from everstep.core.recovering.plans import prefetch_order
from everstep.core.recovering.quarantine import QuarantineAnswer, Request
from everstep.core.slots import Slots
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import (
    JobRef,
    NodeView,
    Observation,
    PlaceOrder,
    PlaceState,
    PrecheckOrder,
    SlotStart,
    Snapshot,
    StartOrder,
    StopOrder,
    StopState,
    resuming_from,
)
from everstep.steps import dumping
from everstep.steps.resuming import STORAGE_POLL_S, resume
from everstep.steps.run_order import run_order
from everstep.steps.step_run import (
    ENDED,
    REPORT_AFTER_S,
    ContainersGone,
    QuarantineUnreachable,
    SlotsSilent,
    StepContext,
    StepRun,
    Superseded,
    observe_then_report,
)

STOP_CONFIRM_S = 5.0
"""A slot of a sound node that does not confirm its end within this time gets a new pod."""
HEAL_S_MAX = 600.0
"""A device that has not healed within this time counts as broken."""
HEAL_ONLINE_S = 15.0
"""The limit of a device whose processes stay."""
HAND_OVER_S = 10.0
"""Seconds that an ended job waits for the quarantine. One answer may take that long; an activity has 30 s."""
OLD_PODS_END_S = 5.0
"""Time that old pods have to end before a step that starts late goes on with fewer places."""


async def perform(context: StepContext, order: StepOrder) -> StepResult:
    """Carry out the step. Each may be carried out twice and killed anywhere."""
    result = await _performed(context, order)
    cause = None if result.cause is None else bounded([result.cause])[0]
    return replace(result, facts=bounded(result.facts), cause=cause)


async def _performed(context: StepContext, order: StepOrder) -> StepResult:
    step = StepRun.of(context, order)
    if order.since == order.plan.since:
        # The first step of a plan: the job may have the time of a server, which is ahead of the cluster's.
        began = min(order.since, await step.requested_at())
        step.order, step.now = replace(order, since=began), began
    try:
        result = await STEP[order.step](step)
        await step.report_wait(None)
    except Superseded:
        return replace(step.superseded(), waited=step.long_waits())
    except SlotsSilent as error:
        failed = step.failed(step.cause("agent.unreachable", str(error), slot=error.slots[0]))
        return replace(failed, lost_containers=error.slots, waited=step.long_waits())
    except ContainersGone as error:
        slot = error.slots[0]
        message = f"the container of slot {slot} is gone before its ranks started"
        failed = step.failed(step.cause("pod.gone", message, slot=slot))
        return replace(failed, lost_containers=error.slots, waited=step.long_waits())
    # A repeated step may find everything done without an observation; its time counts all the same.
    now = max(result.now, await context.backend.clock())
    return replace(result, now=now, waited=step.long_waits())


async def _standby(step: StepRun) -> StepResult:
    """Create a pod beside each one that will be left, and wait until it is ready. Nothing is stopped."""
    limit_s = step.order.plan.remedy.standby_s
    order = _place_order(step, step.order.active, await _avoided_now(step))
    while not (state := await step.context.backend.ensure_standby(order)).placed:
        deadline = await step.deadline(limit_s)
        if step.now >= deadline:
            message = (
                f"no backup pod was ready within {limit_s:g} s: it waited for {state.waiting_for}"
            )
            # None is wanted any more: those that stand by are removed.
            await step.context.backend.ensure_standby(replace(order, recreate=()))
            return _failed_before_stop(step, STANDBY_NONE, message)
        await step.report_wait(state.wait, until=deadline)
        if ended_slots := _ended_slots(await step.observe(deadline)):
            message = f"slot {ended_slots[0]} ended before a backup pod was ready"
            return _failed_before_stop(step, STANDBY_OVER, message)
    return step.done()


def _ended_slots(observation: Observation) -> list[int]:
    return [pod.slot for pod in observation.pods if pod.exits or pod.state in ENDED]


def _failed_before_stop(step: StepRun, kind: str, message: str) -> StepResult:
    """The failure of a step that leaves the job as it was. Its facts are left to the watch, which goes on."""
    failed = step.failed(step.cause(kind, message))
    return replace(failed, facts=(), cursor=step.order.cursor)


async def _space(step: StepRun) -> StepResult:
    until = step.order.since + step.order.plan.remedy.space_s
    while step.now < until:
        await step.observe(until)
    return step.done()


async def _stop(step: StepRun) -> StepResult:
    """Take a new generation, from which on older orders are refused, then stop the older processes."""
    plan, backend, above = step.order.plan, step.context.backend, step.order.above
    key = f"{plan.key}/above-{above}" if above else plan.key
    step.generation = await backend.ensure_generation(
        plan.job, key, folders=plan.folders, above=plan.generation
    )
    order = StopOrder(
        job=plan.job,
        generation=step.generation,
        grace_s=plan.remedy.grace_s,
        evidence=plan.remedy.evidence,
        keep=plan.keep,
        hold_s=plan.hold_s if plan.keep else 0.0,
    )
    confirming = plan.slots.keys() - set(_leaving_slots(step.order))
    while True:
        state = await backend.ensure_stopped(order)
        # Processes in pods that leave are not waited for beyond the grace: their end is proven before the
        # start.
        missing = [slot for slot in state.pending if slot in confirming]
        if state.done or (not missing and step.now >= await step.requested_at() + order.grace_s):
            result = _kept_or_failed(step, state)
            if result.end == "done":
                result = replace(result, notes=(*result.notes, *await dumping.dump(step)))
            return replace(result, evidence=state.evidence, works=state.works)
        confirm_s = STOP_CONFIRM_S + order.hold_s if missing else 0.0
        until = await step.requested_at() + order.grace_s + confirm_s
        if missing and step.now >= until:
            message = f"slot {missing[0]} did not confirm its end within {confirm_s:g} s"
            failed = step.failed(step.cause("agent.unreachable", message, slot=missing[0]))
            return replace(
                failed, evidence=state.evidence, works=state.works, lost_containers=tuple(missing)
            )
        await step.observe(until)


def _kept_or_failed(step: StepRun, state: StopState) -> StepResult:
    """The ranks that hold. The step fails if they are too few, or have too little, to go on."""
    plan = step.order.plan
    if not plan.keep:
        return step.done()
    if why := survivors.why_not(plan, state.kept_ranks, state.positions):
        return step.failed(step.cause("process.not_kept", why))
    newest = survivors.newest_step(state.kept_ranks, state.positions)
    survivors_count = len(state.kept_ranks)
    in_memory = None if newest is None else Snapshot(newest, step.now, survivors=survivors_count)
    return replace(step.done(), kept_ranks=state.kept_ranks, snapshot=in_memory)


async def _heal(step: StepRun) -> StepResult:
    """Let all devices heal at once. Each look is at all of them: one that was sound may break again.

    Some heal only once nothing runs on them: where every process stays, that proves nothing of the device.
    """
    is_online = step.order.plan.level in ALL_STAY
    heal_s = HEAL_ONLINE_S if is_online else HEAL_S_MAX
    while True:
        healing: list[tuple[WaitCause, float]] = []
        for ref in step.order.plan.remedy.heal:
            wait = WaitKind.HEAL.of(ref.node, ref.device)
            state = await step.context.backend.ensure_healed(
                step.order.plan.job,
                generation=step.generation,
                node=ref.node,
                device=ref.device,
            )
            if state.state == "healed":
                await step.resume_wait(wait)
                continue
            # After a time without a worker the step is old, but the device may have begun just now.
            deadline = max(step.order.since, state.began_at or 0.0) + heal_s
            if is_online and (state.state == "failed" or step.now >= deadline):
                message = f"{ref.node}/{ref.device} does not heal under its processes"
                return step.failed(step.cause("process.not_kept", message))
            if state.state == "failed" or step.now >= deadline:
                message = state.message or f"{ref.node}/{ref.device} did not heal"
                cause = step.cause("device.heal_failed", message, node=ref.node, device=ref.device)
                return step.failed(cause)
            healing.append((wait, deadline))
        if not healing:
            return step.done()
        wait, deadline = healing[0]
        await step.report_wait(wait, until=deadline)
        await step.observe(min(until for _, until in healing))


async def _writable(step: StepRun) -> StepResult:
    """Wait until checkpoints can be written again. Nothing is renamed or removed."""
    wait_s = step.order.plan.phase.limits.requeue_s
    deadline = None if wait_s is None else step.order.since + wait_s
    while problem := await step.context.backend.check_storage(step.order.plan.job):
        if deadline is not None and step.now >= deadline:
            message = f"{problem} for {wait_s:g} s"
            return step.failed(step.cause("storage.unwritable", message))
        await step.report_wait(WaitKind.WRITABLE.of(), until=deadline)
        next_poll = step.now + STORAGE_POLL_S
        await step.observe(next_poll if deadline is None else min(deadline, next_poll))
    return step.done()


# -- Isolating and placing ----------------------------------------------------------------------


async def _isolate(step: StepRun) -> StepResult:
    isolations = step.order.plan.remedy.isolate
    cluster_size = _cluster_size(await step.context.backend.nodes(), isolations)
    result = step.done()
    for isolation in isolations:
        # Each answer may take the whole time limit.
        step.context.beat(step.order.step, step.now)
        result = await _isolate_one(step, isolation, cluster_size, result)
    return result


def _cluster_size(nodes: Iterable[NodeView], isolations: Iterable[Isolation]) -> int:
    """How many nodes there are, with those to isolate, which the cluster may have removed already."""
    names = {isolation.node.partition("/")[0] for isolation in isolations}
    return len(names.union(node.name for node in nodes))


async def _isolate_one(
    step: StepRun, isolation: Isolation, cluster_size: int, result: StepResult
) -> StepResult:
    plan = step.order.plan
    request = isolation_request(plan.job, isolation, cluster_size=cluster_size, at=step.now)
    try:
        answer = await step.context.quarantine.isolate(plan.cluster, request)
    except QuarantineUnreachable:
        return replace(
            result,
            deferred=(*result.deferred, isolation),
            avoid=(*result.avoid, isolation.node),
            notes=(*result.notes, f"isolate: deferred for {isolation.node}"),
        )
    return _isolated(isolation, answer, result)


def isolation_request(
    job: JobRef, isolation: Isolation, *, cluster_size: int, at: float
) -> Request:
    """The job's request to the quarantine."""
    return Request(
        node=isolation.node,
        reason=isolation.reason,
        by=job.id,
        proven=isolation.proven,
        cluster_size=cluster_size,
        at=at,
    )


async def hand_over(
    context: StepContext, job: JobRef, cluster: str, isolations: Iterable[Isolation]
) -> tuple[str, ...]:
    """Send the quarantine the isolations that it did not answer while the job lived.

    Returns the nodes that it isolated. What it does not answer now either is left with it.
    All of it has to be done within the time of one activity.
    """
    isolations = tuple(isolations)
    cluster_size = _cluster_size(await context.backend.nodes(), isolations)
    now = await context.backend.clock()
    isolated: list[str] = []
    answers, until = True, time.monotonic() + HAND_OVER_S
    for isolation in isolations:
        request = isolation_request(job, isolation, cluster_size=cluster_size, at=now)
        if answers and time.monotonic() < until:
            context.beat()  # each answer may take the whole time limit
            try:
                answer = await context.quarantine.isolate(cluster, request)
            except QuarantineUnreachable:
                answers = False
            else:
                isolated += [isolation.node] if answer.verdict == "isolated" else []
                continue
        await context.quarantine.hand_over(cluster, request)
    return tuple(isolated)


def _isolated(isolation: Isolation, answer: QuarantineAnswer, result: StepResult) -> StepResult:
    node = isolation.node
    if answer.verdict == "isolated":
        return replace(result, isolated=(*result.isolated, node))
    notes = (*result.notes, f"{node} not isolated: {answer.why}")
    # The only node stays in use: until its faulty device heals, no pod gets that.
    if answer.verdict == "only_node":
        return replace(result, notes=notes)
    return replace(result, notes=notes, avoid=(*result.avoid, node))


def _leaving_slots(order: StepOrder) -> Slots:
    """The slots that do not keep their pods. At level JOB also those that a smaller document gives up."""
    is_whole = order.plan.level is Level.JOB
    return order.active if is_whole else order.plan.remedy.recreate


async def _place(step: StepRun) -> StepResult:
    """Have a pod for every slot of the job, or for as many as the plan's rules allow.

    Each turn repeats the order and then waits: for places (`next_order`, which may choose fewer slots), or
    once all pods have one, for their agents. Slots that keep their pods are the last that a smaller job
    gives up.
    """
    order, plan = step.order, step.order.plan
    rules = plan.places
    assert rules is not None, "a plan that places pods has rules for places"
    can_stay = set(order.active) - set(_leaving_slots(order))
    job_slots = first_slots(rules.wanted, order.active, staying=can_stay)
    staying = tuple(sorted(can_stay & set(job_slots)))
    slots = job_slots  # those of the newest order: fewer where not all of them find a place
    since = order.since - order.spare_waited_s  # the wait for a spare counts from the stop
    not_before, attempt, all_have_nodes_at = None, None, None
    deadline = None if rules.wait_s is None else since + rules.wait_s
    while True:
        state, attempt = await _order(step, slots, attempt)
        step.needs = frozenset(slots)
        if state.placed:
            # Beside the slots to recreate, any other whose pod this plan has created.
            new_slots = {*plan.remedy.recreate, *(await step.pods_now())}
            pods = {slot: pod for slot, pod in state.pods.items() if slot in new_slots}
            active = tuple(sorted(state.pods))
            return replace(step.done(), pods=pods, active=active, stood_up_s=state.stood_up_s)
        if why := start_failures_reason(plan.phase.policy.start_failures, state):
            return step.failed(step.cause(PODS_FAILED, why))
        all_have_nodes = state.places is not None and state.places >= len(slots)
        all_have_nodes_at = (all_have_nodes_at or step.now) if all_have_nodes else None
        if not_before is None:
            not_before = await _old_pods_end_by(step, since)
        choice = next_order(
            rules,
            staying=staying,
            wanted=job_slots,
            attempt=attempt,
            places=state.places,
            since=since,
            not_before=not_before,
            now=step.now,
        )
        if isinstance(choice, NoPlace):
            count, waited_s = len(job_slots), choice.waited_s
            message = no_place_reason(rules, state, wanted=count, waited_s=waited_s)
            return step.failed(step.cause("place.none", message))
        if isinstance(choice, OrderPlaces) and choice.slots != slots:
            slots = choice.slots
        elif all_have_nodes_at is None:
            await step.report_wait(state.wait, until=deadline)
            await step.observe(choice.until)
        elif (cause := await _wait_for_agents(step, state, all_have_nodes_at)) is not None:
            return step.failed(cause)


async def _wait_for_agents(
    step: StepRun, state: PlaceState, all_have_nodes_at: float
) -> Fact | None:
    """Wait for the next change while all pods have a node, and not all of their agents answer.

    Returns the cause of failure once that took longer than a start may. It is no wait for a place, and is
    reported as one of its own where it takes longer than usual.
    """
    start_s = step.order.plan.phase.limits.start_s
    report_at, until = all_have_nodes_at + REPORT_AFTER_S, all_have_nodes_at + start_s
    if step.now >= until:
        what = state.waiting_for or "an agent to answer"
        message = f"each slot has a node, and after {start_s:g} s still waits for {what}"
        return step.cause("place.none", message)
    if step.now < report_at:
        await step.observe(min(report_at, until))
        return None
    await step.report_wait(state.wait, until=until)
    await step.observe(until)
    return None


async def _order(
    step: StepRun, slots: tuple[int, ...], attempt: Attempt | None
) -> tuple[PlaceState, Attempt]:
    """Order pods for these slots. Returns how many are placed, and since when the cluster tries."""
    avoid = await _avoided_now(step)
    state = await step.context.backend.ensure_placed(_place_order(step, slots, avoid))
    if state.places is None or state.places < len(slots):
        wait = avoiding.with_avoided(state.wait, step.order.plan, avoid)
        state = replace(state, wait=wait)
    if attempt is None or attempt.slots != slots:
        attempt = Attempt(slots=slots, since=step.now)
    return state, attempt


async def _old_pods_end_by(step: StepRun, since: float) -> float:
    """The time until which old pods may take to end.

    A step that begins at once waits for no old pod; a late one up to `OLD_PODS_END_S`, as its order reaches
    them only now.
    """
    now = await step.context.backend.clock()
    return now + min(now - since, OLD_PODS_END_S)


async def _avoided_now(step: StepRun) -> tuple[str, ...]:
    """The nodes to avoid: without those whose maintenance ended after the plan was made."""
    serviced = step.order.plan.remedy.in_maintenance
    if not serviced:
        return step.order.avoid
    over = avoiding.maintenance_over(serviced, await step.context.backend.nodes())
    return tuple(node for node in step.order.avoid if node not in over)


def _place_order(step: StepRun, slots: tuple[int, ...], avoid: tuple[str, ...]) -> PlaceOrder:
    order, plan = step.order, step.order.plan
    return PlaceOrder(
        job=plan.job,
        phase=plan.phase.name,
        generation=step.generation,
        slots=slots,
        recreate=tuple(sorted(set(plan.remedy.recreate) & set(slots))),
        spares=plan.phase.spare_slots,
        avoid=avoid,
        avoid_devices=order.avoid_devices,
        last_choice=plan.remedy.last_choice,
        accelerator=plan.phase.accelerator,
        accelerators_per_node=plan.phase.accelerators_per_node,
        least=None if plan.places is None else min(plan.places.least, len(slots)),
        priority=plan.priority,
        reissued=plan.reissued,
        clearing_s=plan.phase.clearing_s,
        image=plan.phase.image,
        pod_template=plan.phase.pod_template,
        folders=plan.phase.folders,
    )


async def _precheck(step: StepRun) -> StepResult:
    """Check all places, so that all unsuitable ones are found at once."""
    order = PrecheckOrder(
        job=step.order.plan.job,
        generation=step.generation,
        slots=step.order.active,
        accelerator=step.order.plan.phase.accelerator,
    )
    step.needs = frozenset(order.slots)
    while not (state := await step.context.backend.ensure_prechecked(order)).done:
        await observe_then_report(step, None, WaitKind.PRECHECK.of())
    step.facts += state.failures
    result = step.failed(min(state.failures, key=weight)) if state.failures else step.done()
    return replace(result, notes=state.notes)


# -- Starting -----------------------------------------------------------------------------------


async def _start(step: StepRun) -> StepResult:
    limit_s = step.order.plan.phase.limits.start_s
    order = _start_order(step)
    while True:
        state = await step.context.backend.ensure_started(order)
        if state.done:
            return replace(step.done(), works=state.works)
        if state.failed:
            slot, why = min(state.failed.items())
            message = f"slot {slot} cannot start its ranks: {why}"
            failed = step.failed(step.cause(START_FAILED, message, slot=slot))
            return replace(failed, works=state.works)
        slot = state.pending[0]
        deadline = await step.deadline(limit_s)
        if step.now >= deadline:
            message = f"slot {slot} did not report its ranks started within {limit_s:g} s"
            failed = step.failed(step.cause("start.timeout", message, slot=slot))
            return replace(failed, works=state.works)
        step.needs = frozenset(state.pending)
        wait = WaitKind.START.of(slot, resuming_from(step.order.snapshot or order.resume))
        await observe_then_report(step, deadline, wait, deadline=deadline)


STEP: Mapping[Step, Callable[[StepRun], Awaitable[StepResult]]] = {
    Step.SPACE: _space,
    Step.STANDBY: _standby,
    Step.STOP: _stop,
    Step.HEAL: _heal,
    Step.WRITABLE: _writable,
    Step.ISOLATE: _isolate,
    Step.PLACE: _place,
    Step.PRECHECK: _precheck,
    Step.RESUME: resume,
    Step.START: _start,
}


def _start_order(step: StepRun) -> StartOrder:
    """The order to start the ranks, from the plan and the results of its steps."""
    order, phase = step.order, step.order.plan.phase
    ranks = node_ranks(order.active)
    counts = survivors.counts(order.plan, ranks, order.kept_ranks)
    return StartOrder(
        job=order.plan.job,
        phase=phase.name,
        generation=step.generation,
        run=run_order(step.order.plan),
        slots={
            slot: SlotStart(rank, counts[slot].schedule, counts[slot].process_start)
            for slot, rank in ranks.items()
        },
        env=phase.env,
        env_from=phase.env_from,
        processes_per_node=phase.processes_per_node,
        resume=order.resume,
        snapshot=None
        if order.kept_ranks
        else order.snapshot,  # kept ranks give theirs to the others
        accelerator=phase.accelerator,
        time_scale=order.plan.time_scale,
        kept_ranks=order.kept_ranks,
        files=phase.files,
        restarts=order.plan.restarts,
        prefetch=prefetch_order(order.plan, len(ranks)),
        spares=phase.spare_slots,
    )
