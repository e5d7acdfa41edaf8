"""The life of the ranks: they start, step together, and end by themselves or by an order.

Nothing runs. `start` sets a timer for the end of the start; once all ranks have started, `_begin_steps`
computes when each step, crash, awaited fault and the end come, and sets a timer for each; `halt` cancels
them all. The generation's `Training` computes steps and checkpoints from the time alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

from everstep.agent.processes.run import kept_rank_mismatch
from everstep.backends.fake.simulated.model import NO_RANKS, Job, Pod, Processes
from everstep.backends.fake.simulated.state import AwaitedStep, FakeState
from everstep.backends.fake.simulated.timeline import Callback
from everstep.backends.fake.simulated.training import (
    Crash,
    InMemory,
    Script,
    Training,
    script_of,
)
from everstep.core.facts import PREFETCH_DONE, PREFETCH_FAILED, Detail
from everstep.core.world import StartOrder
from everstep.protocol.exits import Exit, RankExit

SIGKILL = 9


def members(job: Job, training: Training) -> Iterator[tuple[Pod, Processes]]:
    """The pods that take part in a training, those on their way out included."""
    for pod in (*job.pods.values(), *job.leaving):
        if pod.processes is not None and pod.processes.training is training:
            yield pod, pod.processes


# --- starting -----------------------------------------------------------------------------------


def start(state: FakeState, job: Job, places: Iterable[Pod], order: StartOrder) -> None:
    """Run the command in these pods, unless they have the order already. That takes time."""
    to_start = [pod for pod in places if not _has_start_order(pod, order.generation)]
    if to_start:
        training = _training_for(state, job, order)
        shared: ProcessesByStartArgs = {}
        for pod in to_start:
            _start_pod(state, pod, order, training, shared)


def _has_start_order(pod: Pod, generation: int) -> bool:
    processes = pod.processes
    return (
        processes is not None and processes.generation == generation and processes.has_start_order
    )


ProcessesByStartArgs = dict[tuple[int, ...], Processes]
"""Pods started with the same arguments share one `Processes` value."""


def _start_pod(
    state: FakeState, pod: Pod, order: StartOrder, training: Training, shared: ProcessesByStartArgs
) -> None:
    """Begin to start the ranks of one pod; end what else runs there before."""
    before = pod.processes
    going_on = pod.living if before and before.generation == order.generation else []
    if before is not None and not before.is_ended and not going_on:
        end(state, pod)
    slot_start = order.slots[pod.slot]
    first = slot_start.node_rank * order.processes_per_node
    pod.ranks = range(first, first + order.processes_per_node)
    start_s = training.script.start_s if len(going_on) < len(pod.ranks) else 0.0
    at = state.now + start_s
    start_args = (slot_start.schedule_count, slot_start.process_start_count, *going_on)
    if start_args not in shared:
        shared[start_args] = Processes(
            training=training,
            schedule_count=slot_start.schedule_count,
            process_start_count=slot_start.process_start_count,
            generation=order.generation,
            count=len(pod.ranks),
            older={rank: before.older[rank] for rank in going_on} if before else NO_RANKS,
            stop_siblings=order.run.stop_siblings,
            starts_at=at,
        )
    pod.processes = shared[start_args]
    state.note(f"start {pod.name} (g{order.generation})")
    state.touch(pod.job)
    if order.kept_ranks or going_on:
        to_keep = [rank for rank in pod.ranks if rank in order.kept_ranks]
        if why := kept_rank_mismatch(to_keep, going_on):
            _fail_start(state, pod, pod.processes, why)
            return
        for rank in going_on:
            state.note(f"rebuild rank {rank} of {pod.job.id} (g{order.generation})")
    if at not in training.starts_at:
        training.starts_at.add(at)
        state.time.after(start_s, lambda: _finish_starts(state, pod.job, training, at))


def _finish_starts(state: FakeState, job: Job, training: Training, at: float) -> None:
    """Mark the pods as started that were to start at this time and were not ended since."""
    training.starts_at.discard(at)
    coming = [
        (pod, processes)
        for pod, processes in members(job, training)
        if processes.starts_at == at and not processes.is_ended and processes.started_at is None
    ]
    if (why := training.script.cannot_start) is not None:
        for pod, processes in sorted(coming, key=lambda member: member[0].slot):
            _fail_start(state, pod, processes, why)
        return
    started = {p: replace(p, started_at=state.now) for p in {p for _, p in coming}}
    for pod, processes in coming:
        pod.processes = started[processes]
    state.touch(job)
    training.starts += len(coming)
    if training.starts < len(training.slots):
        return  # without this, a large job would look at all slots after each start
    living = [p for _, p in members(job, training) if p.is_alive and p.started_at is not None]
    if len(living) == len(training.slots) and training.halted_at is None:
        _begin_steps(state, job, training)


def _training_for(state: FakeState, job: Job, order: StartOrder) -> Training:
    if job.training is not None and job.training.generation == order.generation:
        return job.training
    begin = _begin_of(state, job, order)
    job.checkpoints_path, job.checkpoints_of = order.run.checkpoints_path, order.run.checkpoints_of
    job.training = Training(
        generation=order.generation,
        script=begin.script,
        resume=begin.step,
        warmup_s=begin.warmup_s,
        is_loaded=begin.is_loaded,
        restored=begin.restored,
        slots=frozenset(order.slots),
        node_ranks={slot: start.node_rank for slot, start in order.slots.items()},
        ranks_per_slot=order.processes_per_node,
        path=order.run.checkpoints_path,
        phase=order.phase,
        prefetch=() if order.prefetch is None else order.prefetch.nodes,
        saved_to=begin.step,
    )
    save(state, job)
    job.trainings = [t for t in job.trainings if any(members(job, t))] + [job.training]
    return job.training


class _Begin(NamedTuple):
    """From where the ranks of a start go on, and how long that takes them."""

    script: Script
    step: int
    warmup_s: float
    is_loaded: bool = False  # from a checkpoint
    restored: InMemory | None = None


def _begin_of(state: FakeState, job: Job, order: StartOrder) -> _Begin:
    """Ranks that outlived the fault give their state to the others; else snapshots, else a checkpoint."""
    script, before = script_of(order.env), job.training
    if order.kept_ranks and before is not None:
        step = before.step_at(state.now)
        return _Begin(script, step, _seconds(script.rebuild_s, script))
    if order.snapshot is not None:
        step = order.snapshot.step
        held = () if before is None else before.in_memory(state.now)
        restored = next((one for one in held if one.step == step), None)
        return _Begin(script, step, _seconds(script.restore_s, script), restored=restored)
    step = (order.resume.step if order.resume else None) or 0
    return _Begin(script, step, script.warmup_s, is_loaded=True)


def _seconds(own_s: float | None, script: Script) -> float:
    return script.warmup_s if own_s is None else own_s


def _fail_start(state: FakeState, pod: Pod, processes: Processes, why: str) -> None:
    pod.processes = replace(processes, failed=why)
    end(state, pod)
    message = f"cannot be started: {why}"
    fact = state.pod_fact(pod, "start.failed", generation=processes.generation)
    state.report(pod.job, replace(fact, message=message), through=pod.node)


def _begin_steps(state: FakeState, job: Job, training: Training) -> None:
    """Set a timer for everything that is to come, as all ranks have started."""
    script = training.script
    training.first_at = state.now + training.warmup_s
    can_load = state.storage.can_be_loaded(training.path, training.resume)
    if training.is_loaded and not can_load:
        _set_timer(state, training, training.first_at, lambda: _fail_load(state, job, training))
        return
    _set_timer(state, training, training.first_at, lambda: state.touch(job))
    coming = [c for c in script.crashes if training.resume < c.step <= script.steps]
    for step, crashes in groupby(sorted(coming, key=lambda c: c.step), key=lambda c: c.step):
        _set_crash(state, job, training, step, tuple(crashes))
    for awaited in tuple(state.awaited):
        _set_awaited(state, job, training, awaited)
    for number, nodes in enumerate(training.prefetch, start=1):
        at = training.first_at + number * script.prefetch_s
        _set_timer(state, training, at, partial(_report_prefetch, state, job, training, nodes))
    end_at = training.time_of(max(script.steps, training.resume + 1))
    _set_timer(state, training, end_at, lambda: _finish(state, job, training))
    state.steps_began(job)


def _report_prefetch(state: FakeState, job: Job, training: Training, nodes: int) -> None:
    """Report the result of a prefetch, as the agent of the lowest slot does."""
    pod = job.pods[min(training.slots)]
    kind = PREFETCH_FAILED if nodes in training.script.prefetch_fails else PREFETCH_DONE
    fact = state.pod_fact(
        pod, kind, generation=training.generation, nodes=nodes, phase=training.phase
    )
    message = (
        f"prefetch for {nodes} nodes: {'exit code 1' if kind == PREFETCH_FAILED else 'it works'}"
    )
    state.report(job, replace(fact, message=message), through=pod.node)


def await_step(state: FakeState, awaited: AwaitedStep) -> None:
    """Let something happen as soon as the job has completed the step; at once if it has."""
    state.awaited.append(awaited)
    job = state.job(awaited.job)
    if job.training is not None and job.training.is_stepping:
        _set_awaited(state, job, job.training, awaited)


def _set_awaited(state: FakeState, job: Job, training: Training, awaited: AwaitedStep) -> None:
    if awaited.job != job.id or awaited.step > training.script.steps:
        return

    def reached() -> None:
        state.awaited.remove(awaited)
        awaited.do()

    at = training.time_of(max(awaited.step, training.resume + 1))
    if at <= state.now:
        reached()
    else:
        _set_timer(state, training, at, reached)


def _set_timer(state: FakeState, training: Training, at: float, do: Callback) -> None:
    training.timers.append(state.time.at(at, do))


def _set_crash(
    state: FakeState, job: Job, training: Training, step: int, crashes: tuple[Crash, ...]
) -> None:
    # Set before the faults that wait for this step: a step that crashes is never completed.
    at = training.time_of(step)
    _set_timer(state, training, at, lambda: _crash(state, job, training, crashes))


def _crash(state: FakeState, job: Job, training: Training, crashes: tuple[Crash, ...]) -> None:
    halt(state, job, training, step=crashes[0].step - 1)
    for crash in crashes:
        pod = pod_of_rank(job, crash.rank, training)
        if pod is not None:
            exit_rank(state, pod, crash.rank, Exit(code=crash.code))


def _fail_load(state: FakeState, job: Job, training: Training) -> None:
    """End every rank, as the checkpoint to resume from cannot be read; report the checkpoint as bad."""
    assert training.path is not None
    halt(state, job, training, step=training.resume)
    report_bad_checkpoint(state, job, training.path, training.resume)
    for pod, _ in tuple(members(job, training)):
        for rank in pod.ranks:
            exit_rank(state, pod, rank, Exit(code=1), exception="CheckpointError")


def report_bad_checkpoint(state: FakeState, job: Job, path: str, step: int) -> None:
    state.storage.spoil(path, step, hidden=False)
    details: dict[str, Detail] = {"step": step, "path": f"{path}/step-{step}"}
    state.report(job, state.fact("checkpoint.bad", job=job.id, details=details))


def _finish(state: FakeState, job: Job, training: Training) -> None:
    halt(state, job, training)
    for pod, _ in tuple(members(job, training)):
        for rank in pod.ranks:
            exit_rank(state, pod, rank, Exit(code=training.script.exit_code))


# --- ending -------------------------------------------------------------------------------------


def halt(state: FakeState, job: Job, training: Training, *, step: int | None = None) -> None:
    """Stop making steps: no rank can go on without the others."""
    if training.halted_at is None:
        training.halt(state.now, step=step)
        save(state, job)


def save(state: FakeState, job: Job) -> None:
    """Bring the checkpoints that were completed by now to the storage."""
    for training in job.trainings:
        saves = training.take_saves(state.now)
        if training.path is not None and job.unwritable is None:
            state.storage.save(training.path, saves)


def pod_of_rank(job: Job, rank: int, training: Training | None = None) -> Pod | None:
    """The pod whose living or dead processes hold the rank, of the newest training unless given."""
    searched = training or job.training
    if searched is None:
        return None
    return next((pod for pod, _ in members(job, searched) if rank in pod.ranks), None)


def exit_rank(
    state: FakeState,
    pod: Pod,
    rank: int,
    how: Exit,
    *,
    exception: str | None = None,
    log: str | None = None,
) -> None:
    """End the rank, by itself. The pod shows every end; one that is not good is a fact too."""
    processes = pod.processes
    if processes is None or not processes.is_alive or rank in processes.exits:
        return
    exits = {**processes.exits, rank: RankExit(rank, state.now, how)}
    if not how.is_good and processes.stop_siblings:
        # The pod shows ends that the agent caused itself, and they are no facts.
        killed = {r: RankExit(r, state.now, Exit(signal=SIGKILL)) for r in pod.ranks}
        exits = {**killed, **exits}
    pod.processes = replace(processes, exits=exits)
    halt(state, pod.job, processes.training)
    if not how.is_good:
        script = processes.training.script
        fact = state.pod_fact(
            pod,
            "process.exit",
            generation=processes.generation,
            rank=rank,
            **how.details,
            exception=exception or (None if how.code is None else script.exception),
            at_step=processes.training.shown_at(state.now),
            log=log or (None if how.code is None else script.log),
        )
        state.report(pod.job, fact, through=pod.node)
    state.touch(pod.job)


def hang_rank(state: FakeState, pod: Pod, *, does_io: bool = False, is_idle: bool = False) -> None:
    """Let the rank stay alive and do nothing, or only I/O; the others wait for it."""
    if pod.processes is not None and pod.processes.is_alive:
        training = pod.processes.training
        training.hang(pod.slot, state.now, does_io=does_io, is_idle=is_idle)
        halt(state, pod.job, pod.processes.training)
        state.touch(pod.job)


def end(state: FakeState, pod: Pod) -> None:
    """End the processes of the pod at once: not by themselves, so nothing is reported."""
    if pod.processes is not None and pod.processes.is_alive:
        _end_at_once(state, pod, pod.processes)


def _end_at_once(state: FakeState, pod: Pod, living: Processes) -> None:
    pod.processes = living.ended
    if living.ending is not None:
        living.ending.cancel()
    halt(state, pod.job, living.training)
    state.touch(pod.job)


def stop(
    state: FakeState,
    pod: Pod,
    generation: int,
    *,
    grace_s: float,
    keep: Collection[int] = (),
) -> bool:
    """Carry out an order to stop; False while an end with grace goes on."""
    processes = pod.processes
    if processes is None or not processes.is_alive:
        return True
    if pod.slot in processes.training.hangs:
        keep = ()  # what hangs answers no hold, and is ended
    if processes.ending is None:
        state.note(f"stop slot {pod.slot} of {pod.job.id} (g{processes.generation})")
    if grace_s <= 0 and not keep:
        _end_at_once(state, pod, processes)
        return True
    if grace_s <= 0 or set(pod.living) <= set(keep):
        _end_others(state, pod, generation, keep)
        return True
    if processes.ending is None:
        _end_with_grace(
            state, pod, processes, grace_s, lambda: _end_others(state, pod, generation, keep)
        )
    return False


def _end_others(state: FakeState, pod: Pod, generation: int, keep: Collection[int]) -> None:
    """Move the living ranks in `keep` to the generation; end all others."""
    processes = pod.processes
    assert processes is not None
    survivors = [rank for rank in pod.living if rank in keep] if keep else []
    if not survivors:
        end(state, pod)
        return
    halt(state, pod.job, processes.training)
    pod.ranks = survivors
    pod.processes = replace(
        processes,
        older={rank: processes.older.get(rank, processes.generation) for rank in survivors},
        generation=generation,
        count=len(survivors),
        started_at=None,
        exits=NO_RANKS,
        ending=None,
    )
    state.touch(pod.job)


def _end_with_grace(
    state: FakeState, pod: Pod, processes: Processes, grace_s: float, then: Callback
) -> None:
    training = processes.training
    if training.is_stepping:
        training.saves_at_end = True
    halt(state, pod.job, training)
    # A rank that hangs does not save, and is killed when the grace is over.
    needs_s = training.script.stop_s if training.saves_at_end else grace_s
    if needs_s > grace_s:
        training.saves_at_end = False
    timer = state.time.after(
        min(needs_s, grace_s), lambda: _grace_ended(state, pod, training, then)
    )
    pod.processes = replace(processes, ending=timer)


def _grace_ended(state: FakeState, pod: Pod, training: Training, then: Callback) -> None:
    step = training.halted_step
    can_save = training.path is not None and pod.job.unwritable is None
    if training.saves_at_end and can_save and training.script.checkpoint_every > 0:
        assert training.path is not None
        state.storage.save(training.path, [(step, state.now)])
        training.saves_at_end = False
    then()
