"""One function per step, and the table from the step's name to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from everstep.core.deciding.decision import Isolation, StepOrder, StepResult
from everstep.core.deciding.naming import ends_at_hang
from everstep.core.deciding.playbook import log_rules, weight
from everstep.core.facts import START_FAILED, bounded
from everstep.core.levels import Level, Step
from everstep.core.recovering.placement import (
    GoOnWith,
    NoPlace,
    Wait,
    first,
    in_vain,
    node_ranks,
    size,
)
from everstep.core.recovering.plans import prefetch_order
from everstep.core.recovering.quarantine import QuarantineAnswer, Request
from everstep.core.seeing.hang import FLOOR_S
from everstep.core.slots import written
from everstep.core.spec import STILL_S_LEAST, PhaseSpec
from everstep.core.world import (
    JobRef,
    PlaceOrder,
    PrecheckOrder,
    SlotStart,
    StartOrder,
    StopOrder,
)
from everstep.steps.looking import (
    ContainersGone,
    Eyes,
    GivesWay,
    QuarantineUnreachable,
    StepContext,
    look_and_say,
)
from everstep.steps.resuming import STORAGE_POLL_S, resume

STOP_CONFIRM_S = 5.0
"""A slot of a sound node that does not confirm its end within this time gets a new pod."""
HEAL_S_MAX = 600.0
GOING_S = 5.0
"""Old pods have so long to go before a step that comes late settles for the places that there are."""


async def perform(context: StepContext, order: StepOrder) -> StepResult:
    """Carries out the step; every step may be carried out twice and may be killed anywhere."""
    result = await _performed(context, order)
    cause = None if result.cause is None else bounded([result.cause])[0]
    return replace(result, facts=bounded(result.facts), cause=cause)


async def _performed(context: StepContext, order: StepOrder) -> StepResult:
    eyes = Eyes.of(context, order)
    try:
        result = await STEP[order.step](eyes)
        await eyes.waits_for(None)
    except GivesWay:
        return replace(eyes.superseded(), waited=eyes.waited())
    except ContainersGone as error:
        slot = error.slots[0]
        message = f"the container of slot {slot} is gone before its ranks started"
        failed = eyes.failed(eyes.cause("pod.gone", message, slot=slot))
        return replace(failed, gone=error.slots, waited=eyes.waited())
    # One that is repeated may find everything done without a look; it took its time all the same.
    now = max(result.now, await context.backend.clock())
    return replace(result, now=now, waited=eyes.waited())


async def _space(eyes: Eyes) -> StepResult:
    until = eyes.order.since + eyes.order.plan.space_s
    while eyes.now < until:
        await eyes.look(until)
    return eyes.done()


async def _stop(eyes: Eyes) -> StepResult:
    """The new generation first: from then on whatever is older is refused."""
    plan, backend = eyes.order.plan, eyes.context.backend
    above = eyes.order.above
    key = f"{plan.key}/above-{above}" if above else plan.key
    eyes.generation = await backend.ensure_generation(
        plan.job, key, folders=plan.folders, above=plan.generation
    )
    order = StopOrder(
        job=plan.job,
        generation=eyes.generation,
        grace_s=plan.grace_s,
        evidence=plan.evidence,
        keep=plan.keep,
    )
    asked_until = eyes.order.since + plan.grace_s
    deadline = asked_until + STOP_CONFIRM_S
    confirming = plan.slots.keys() - set(plan.recreate)
    while True:
        state = await backend.ensure_stopped(order)
        # A slot that gets a new pod has its grace to save, but need not confirm: its proof is asked
        # for before the start.
        missing = [slot for slot in state.pending if slot in confirming]
        if not missing and (state.done or eyes.now >= asked_until):
            return replace(_stopped_but(eyes, state.kept), evidence=state.evidence)
        if missing and eyes.now >= deadline:
            message = f"slot {missing[0]} did not confirm its end within {STOP_CONFIRM_S:g} s"
            failed = eyes.failed(eyes.cause("agent.unreachable", message, slot=missing[0]))
            return replace(failed, evidence=state.evidence, gone=tuple(missing))
        await eyes.look(deadline if missing else asked_until)


def _stopped_but(eyes: Eyes, kept: tuple[int, ...]) -> StepResult:
    """Whoever was to go on and does not, had ended before."""
    ended = [rank for rank in eyes.order.plan.keep if rank not in kept]
    if not ended:
        return eyes.done()
    message = (
        f"rank {written(ended)} cannot be kept: it had ended (kept: {written(kept) or 'none'})"
    )
    return eyes.failed(eyes.cause("process.not_kept", message))


async def _heal(eyes: Eyes) -> StepResult:
    deadline = eyes.order.since + HEAL_S_MAX
    for ref in eyes.order.plan.heal:
        what = f"device {ref.node}/{ref.device} to heal"
        while True:
            state = await eyes.context.backend.ensure_healed(
                eyes.order.plan.job,
                generation=eyes.generation,
                node=ref.node,
                device=ref.device,
            )
            if state.state == "healed":
                await eyes.found_done(what)
                break
            if state.state == "failed" or eyes.now >= deadline:
                message = state.message or f"{ref.node}/{ref.device} did not heal"
                cause = eyes.cause("device.heal_failed", message, node=ref.node, device=ref.device)
                return eyes.failed(cause)
            await eyes.waits_for(what)
            await eyes.look(deadline)
    return eyes.done()


async def _writable(eyes: Eyes) -> StepResult:
    """Waits until no check complains about the storage any more; nothing is renamed or removed."""
    wait_s = eyes.order.plan.phase.limits.requeue_s
    deadline = None if wait_s is None else eyes.order.since + wait_s
    while True:
        found = await eyes.context.backend.check(eyes.order.plan.job)
        storage = [fact for fact in found if fact.family == "storage"]
        if not storage:
            return eyes.done()
        if deadline is not None and eyes.now >= deadline:
            message = f"{storage[0].message or 'the storage'} for {wait_s:g} s"
            return eyes.failed(eyes.cause("storage.unwritable", message))
        await eyes.waits_for("the storage to be writable")
        next_look = eyes.now + STORAGE_POLL_S
        await eyes.look(next_look if deadline is None else min(deadline, next_look))


# -- Isolating and placing ----------------------------------------------------------------------


async def _isolate(eyes: Eyes) -> StepResult:
    nodes = await eyes.context.backend.nodes()
    result = eyes.done()
    for isolation in eyes.order.plan.isolate:
        # Each answer may take as long as we wait for one.
        eyes.context.beat(eyes.order.step, eyes.now)
        result = await _isolate_one(eyes, isolation, len(nodes), result)
    return result


async def _isolate_one(
    eyes: Eyes, isolation: Isolation, cluster_size: int, result: StepResult
) -> StepResult:
    plan = eyes.order.plan
    request = isolation_request(plan.job, isolation, cluster_size=cluster_size, at=eyes.now)
    try:
        answer = await eyes.context.quarantine.isolate(plan.cluster, request)
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
    """What a job asks the quarantine for."""
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
) -> None:
    """What the quarantine could not be asked while the job lived is left with it at the job's end."""
    cluster_size, now = len(await context.backend.nodes()), await context.backend.clock()
    for isolation in isolations:
        request = isolation_request(job, isolation, cluster_size=cluster_size, at=now)
        await context.quarantine.hand_over(cluster, request)


def _isolated(isolation: Isolation, answer: QuarantineAnswer, result: StepResult) -> StepResult:
    node = isolation.node
    if answer.verdict == "isolated":
        return replace(result, isolated=(*result.isolated, node))
    notes = (*result.notes, f"{node} not isolated: {answer.why}")
    if answer.verdict == "only_node":  # its faulty device takes nothing until it heals anyway
        return replace(result, notes=notes)
    return replace(result, notes=notes, avoid=(*result.avoid, node))


async def _place(eyes: Eyes) -> StepResult:
    order, plan = eyes.order, eyes.order.plan
    rules = plan.places
    assert rules is not None, "a plan that places pods says how long it waits for them"
    # A document may ask for fewer than there are; those too many do not stay where all are made anew.
    anew = order.living if plan.level is Level.JOB else plan.recreate
    staying = tuple(sorted(set(order.living) - set(anew)))
    wanted = slots = first(rules.wanted, order.living, staying=staying)
    staying = tuple(sorted(set(wanted) & set(staying)))
    since, not_before = order.since - order.missing_s, None
    while True:
        state = await eyes.context.backend.ensure_placed(_place_order(eyes, slots))
        eyes.needs = frozenset(slots)
        if state.placed:
            new = {*plan.recreate, *(await eyes.made_by_now())}
            pods = {slot: pod for slot, pod in state.pods.items() if slot in new}
            return replace(eyes.done(), pods=pods, living=tuple(sorted(state.pods)))
        if not_before is None:
            not_before = await _settles_at(eyes, since)
        choice = size(
            rules,
            staying=staying,
            wanted=wanted,
            places=state.places,
            since=since,
            not_before=not_before,
            now=eyes.now,
        )
        match choice:
            case NoPlace(waited_s=waited_s):
                message = in_vain(rules, state, wanted=len(order.living), waited_s=waited_s)
                return eyes.failed(eyes.cause("place.none", message))
            case GoOnWith(slots=fewer) if fewer != slots:
                slots = fewer
            case GoOnWith():
                await eyes.look()
            case Wait(until=until):
                if state.places < len(slots):
                    await eyes.waits_for(state.waiting_for or None)
                await eyes.look(until)


async def _settles_at(eyes: Eyes, since: float) -> float:
    """No worker may have been there for a while: then nobody told the old pods to go before now."""
    asked = await eyes.context.backend.clock()
    return asked + min(asked - since, GOING_S)


def _place_order(eyes: Eyes, slots: tuple[int, ...]) -> PlaceOrder:
    order, plan = eyes.order, eyes.order.plan
    return PlaceOrder(
        job=plan.job,
        phase=plan.phase.name,
        generation=eyes.generation,
        slots=slots,
        recreate=tuple(sorted(set(plan.recreate) & set(slots))),
        avoid=order.avoid,
        avoid_devices=order.avoid_devices,
        accelerator=plan.phase.accelerator,
        accelerators_per_node=plan.phase.accelerators_per_node,
        least=None if plan.places is None else min(plan.places.least, len(slots)),
        priority=plan.priority,
        reissued=plan.reissued,
        clearing_s=plan.phase.clearing_s,
        image=plan.phase.image,
        pod_template=plan.phase.pod_template,
    )


async def _precheck(eyes: Eyes) -> StepResult:
    """Every place is looked at, so that all that do not suit are known at once."""
    order = PrecheckOrder(
        job=eyes.order.plan.job,
        generation=eyes.generation,
        slots=eyes.order.living,
        accelerator=eyes.order.plan.phase.accelerator,
    )
    eyes.needs = frozenset(order.slots)
    while not (state := await eyes.context.backend.ensure_prechecked(order)).done:
        await eyes.look()
    eyes.facts += state.failures
    result = eyes.failed(min(state.failures, key=weight)) if state.failures else eyes.done()
    return replace(result, notes=state.notes)


# -- Starting -----------------------------------------------------------------------------------


async def _start(eyes: Eyes) -> StepResult:
    limit_s = eyes.order.plan.phase.limits.start_s
    deadline = eyes.order.since + limit_s
    order = _start_order(eyes)
    while True:
        state = await eyes.context.backend.ensure_started(order)
        if state.done:
            return eyes.done()
        if state.failed:
            slot, why = min(state.failed.items())
            message = f"slot {slot} cannot start its ranks: {why}"
            return eyes.failed(eyes.cause(START_FAILED, message, slot=slot))
        slot = state.pending[0]
        if eyes.now >= deadline:
            message = f"slot {slot} did not report its ranks started within {limit_s:g} s"
            return eyes.failed(eyes.cause("start.timeout", message, slot=slot))
        eyes.needs = frozenset(state.pending)
        await look_and_say(eyes, deadline, f"slot {slot} to start its ranks")


STEP: Mapping[Step, Callable[[Eyes], Awaitable[StepResult]]] = {
    Step.SPACE: _space,
    Step.STOP: _stop,
    Step.HEAL: _heal,
    Step.WRITABLE: _writable,
    Step.ISOLATE: _isolate,
    Step.PLACE: _place,
    Step.PRECHECK: _precheck,
    Step.RESUME: resume,
    Step.START: _start,
}


def _judged_s(phase: PhaseSpec) -> float | None:
    """So long without I/O or device use counts, where a run is judged by them at all."""
    if phase.limits.still_s is not None or not ends_at_hang(phase.policy):
        return phase.limits.still_s
    return max(phase.limits.hang_s or FLOOR_S, STILL_S_LEAST)


def _start_order(eyes: Eyes) -> StartOrder:
    """What the cluster is told to start, from the plan and what its steps brought."""
    order, phase = eyes.order, eyes.order.plan.phase
    ranks = node_ranks(order.living)
    counts = order.plan.slots
    return StartOrder(
        job=order.plan.job,
        phase=phase.name,
        generation=eyes.generation,
        command=phase.command,
        slots={
            slot: SlotStart(rank, counts[slot].schedule, counts[slot].process_start)
            for slot, rank in ranks.items()
        },
        env=phase.env,
        env_from=phase.env_from,
        workdir=phase.workdir,
        processes_per_node=phase.processes_per_node,
        resume=order.resume,
        model_dir=phase.model_dir,
        checkpoints_path=phase.checkpoints_path,
        checkpoints_format=phase.checkpoints_format,
        checkpoints_pattern=phase.checkpoints_pattern,
        checkpoints_of=order.plan.checkpoints_of,
        log_pattern=phase.log_pattern,
        prewarm=phase.prewarm,
        accelerator=phase.accelerator,
        still_s=_judged_s(phase),
        log_rules=log_rules(phase.policy.rules),
        kept=order.plan.keep,
        files=phase.files,
        restarts=order.plan.restarts,
        prefetch=prefetch_order(order.plan, len(ranks)),
    )
