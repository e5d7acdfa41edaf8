"""Replays a history with two neighbouring workflow tasks joined to one.

The SDK takes a task that gave no command for a heartbeat where the next one follows it at once, and a worker
that begins from the history is given both as one. Whether it does depends on what came later: a task that was
one for the worker that carried it out can be two for the next worker. Within a task, signals and updates come
before all ends, whenever they arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, WorkflowInstance, WorkflowInstanceDetails

from everstep.converter import DATA_CONVERTER
from everstep.plugin import WORKFLOWS
from everstep.sandbox import Sandbox, WithoutContexts, sandbox

FIRST_IN_A_TASK = ("signal_workflow", "do_update")


@dataclass(slots=True)
class Course:
    """The tasks of one replay, and which of them waits for the next one."""

    held: int | None = None
    commands: list[Sequence[str]] = field(default_factory=list)  # of each task
    jobs: list[WorkflowActivationJob] = field(default_factory=list)  # of the one that is held


class Joining(WithoutContexts):
    """A workflow that carries out the held task together with the next one."""

    def __init__(self, sandboxed: WorkflowInstance, course: Course) -> None:
        super().__init__(sandboxed)
        self._course = course

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        if any(job.HasField("remove_from_cache") for job in act.jobs):
            return super().activate(act)
        if len(self._course.commands) == self._course.held:
            self._course.jobs.extend(act.jobs)
            completion = WorkflowActivationCompletion()
            completion.successful.SetInParent()
        else:
            completion = super().activate(_with(self._course.jobs, act))
            self._course.jobs.clear()
        self._course.commands.append([*map(_name, completion.successful.commands)])
        return completion


def _with(held: Sequence[WorkflowActivationJob], act: WorkflowActivation) -> WorkflowActivation:
    joined = WorkflowActivation()
    joined.CopyFrom(act)
    del joined.jobs[:]
    joined.jobs.extend(
        sorted([*held, *act.jobs], key=lambda job: job.WhichOneof("variant") not in FIRST_IN_A_TASK)
    )
    return joined


def _name(command: WorkflowCommand) -> str:
    return command.WhichOneof("variant") or ""


@dataclass(frozen=True)
class JoiningSandbox(Sandbox):
    course: Course = field(default_factory=Course)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return Joining(super().create_instance(det), self.course)


async def replayed(history: WorkflowHistory, *, held: int | None = None) -> tuple[Course, str]:
    """The course of a replay, and what went wrong: nothing, if it is empty."""
    course = Course(held=held)
    runner = JoiningSandbox(restrictions=sandbox().restrictions, course=course)
    replayer = Replayer(
        workflows=WORKFLOWS,
        data_converter=DATA_CONVERTER,
        workflow_runner=runner,
        debug_mode=True,  # else a turn that takes 2 s, as on a busy machine, fails as a deadlock
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return course, str(result.replay_failure or "")


async def failures(history: WorkflowHistory, *, most: int | None = None) -> dict[int, str]:
    """What goes wrong if a task without commands is joined with the next, by its number; -1: if none is.

    With `most`, of so many of these tasks, spread over the history.
    """
    course, failure = await replayed(history)
    without_commands = [n for n, commands in enumerate(course.commands[:-1]) if not commands]
    every = 1 if most is None else -(-len(without_commands) // most) or 1
    replays = {n: (await replayed(history, held=n))[1] for n in without_commands[::every]}
    return {n: why for n, why in {-1: failure, **replays}.items() if why}
