"""Plays the course of a scenario on real processes: a real worker, real agents, real ranks.

An action is done once the job is where it was on the fake cluster: training stands at a gate, pods have
places and their agents are held back, or the status is the same. Nothing here waits for a time. Subclasses
decide where the ranks run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import MarkerRecordedEventAttributes
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)

from everstep.backends.fake import faults as fake_faults
from everstep.backends.fault_lines import FaultLine
from everstep.converter import DATA_CONVERTER
from everstep.core import names
from everstep.core.deciding.decision import Decision
from everstep.dialects import job_memo
from everstep.documents.merge import merged
from tests.support.at_work import submit
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.playing.course import ANY, Action, Course, Gate, Moment, UnstartedPod
from tests.support.playing.scenario import JOB, Cue, Note, Played, Scenario
from tests.support.playing.transcript import status_line
from tests.support.workerproc import WorkerProcess

POLL_S = 0.02
STILL_S = 10.0  # so long what is waited for in vain lasts here
SCRIPT = Path(__file__).parents[1] / "scripts" / "scripted.py"
EVERY = 10  # steps between two checkpoints


class OnProcesses(ABC):
    """One scenario, one folder that its ranks see, one namespace, one worker."""

    cluster_name: ClassVar[str]  # as the job and its worker call the cluster

    def __init__(self, server: DevServer, client: Client, home: Path) -> None:
        self.server = server
        self.client = client
        self.home = home
        self.control = home / "control"
        self.notes: list[Note] = []
        self.fitting: Mapping[str, Any] = {}  # the status of a moment that came

    # -- where the ranks run ---------------------------------------------------------------------

    @abstractmethod
    def _worker(self, scenario: Scenario, course: Course) -> WorkerProcess:
        """The one that runs the job, not yet started."""

    @abstractmethod
    async def _prepare(self, scenario: Scenario) -> None:
        """What is there before the job."""

    @abstractmethod
    def _spec(self, scenario: Scenario, course: Course) -> Mapping[str, Any]:
        """What of a document's spec is another one here: a script that really runs, for one."""

    @abstractmethod
    async def _newest_saved(self) -> Sequence[int | None]:
        """The steps of the newest checkpoints seen so far."""

    @abstractmethod
    async def _is_placed(self, pod: UnstartedPod) -> bool:
        """Whether that pod is there."""

    @abstractmethod
    async def _hold(self, unstarted: tuple[UnstartedPod, ...]) -> None:
        """No agent begins in these pods, which are yet to come. Repeatable."""

    @abstractmethod
    async def _let_in(self, unstarted: tuple[UnstartedPod, ...]) -> None:
        """Agents begin there now. Repeatable."""

    @abstractmethod
    async def _happen(self, faults: Sequence[FaultLine]) -> None:
        """Let these faults happen at one moment, as far as this can be."""

    @abstractmethod
    async def _left(self) -> Sequence[str]:
        """The pods of a job that ended."""

    @abstractmethod
    async def _clean_up(self) -> None:
        """End everything of the cluster. The worker is gone."""

    # -- playing ---------------------------------------------------------------------------------

    async def play(self, scenario: Scenario, course: Course) -> Played:
        self.control.mkdir(parents=True)
        (self.control / "gates.json").write_text(json.dumps(course.gates))
        try:
            async with self._worker(scenario, course):
                return await self._play(scenario, course)
        finally:
            await self._clean_up()

    async def _play(self, scenario: Scenario, course: Course) -> Played:
        await self._prepare(scenario)
        later = [action for action in course.actions if action.moment is not None]
        for action in course.actions:
            if action.moment is None:
                await self._break([fault.text for fault in action.faults])
        job = await self._submitted(scenario, course, later)
        for number, action in enumerate(later):
            await self._do(job, action, _unstarted_pods(later[number + 1 : number + 2]))
        with contextlib.suppress(WorkflowFailureError):  # a failed job; its report is in the memo
            await asyncio.wait_for(job.result(), HUNG_S)
        return await self._played(job)

    async def _submitted(
        self, scenario: Scenario, course: Course, actions: Sequence[Action]
    ) -> WorkflowHandle[Any, Any]:
        await self._hold(_unstarted_pods(actions[:1]))
        spec = merged(scenario.document["spec"], self._spec(scenario, course))
        return await submit(self.client, {**scenario.document, "spec": spec}, job_id=JOB)

    # -- waiting ---------------------------------------------------------------------------------

    async def _until(self, claim: Callable[[], Awaitable[bool]], what: object) -> None:
        try:
            async with asyncio.timeout(HUNG_S):
                while not await claim():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            status = await self._status()
            raise AssertionError(f"{what} never came; {status_line(status)}") from None

    async def _comes(
        self, job: WorkflowHandle[Any, Any], moment: Moment, action: Action
    ) -> Mapping[str, Any]:
        """Once it is so; with the status that says so."""
        if moment.gate is not None:
            gate = moment.gate
            await self._until(lambda: self._is_at(gate), gate)
            if not any(" hang " in fault.text for fault in action.faults):
                await self._until(lambda: self._is_saved(gate.step), f"checkpoint before {gate}")
        for pod in moment.unstarted:
            await self._until(lambda pod=pod: self._is_placed(pod), pod)  # type: ignore[misc]  # bound now
        await self._until(lambda: self._shows(moment), moment)
        await self._until(lambda: self._has_decided(job, moment.decisions), moment)
        await self._until(lambda: self._shows(moment), moment)
        return self.fitting

    async def _is_at(self, gate: Gate) -> bool:
        files = self.control.glob(f"at-g{gate.generation}-s{gate.step}-r*")
        return len(list(files)) == gate.ranks

    async def _is_saved(self, step: int) -> bool:
        """Whether some agent has seen the newest checkpoint there is at this step."""
        newest = step - step % EVERY
        return not newest or newest in await self._newest_saved()

    async def _shows(self, moment: Moment) -> bool:
        status = await self._status()
        if not self._waits_as(moment, status):
            return False
        if status["generation"] != moment.generation:
            return False
        self.fitting = status
        records = await self.client.get_workflow_handle(JOB).query("restarts")
        return status["state"] == moment.state and moment.records in (ANY, len(records))

    def _waits_as(self, moment: Moment, status: Mapping[str, Any]) -> bool:
        waiting_for = status["waiting_for"] or ""
        return moment.waiting_for is None or words(moment.waiting_for) == words(waiting_for)

    async def _has_decided(self, job: WorkflowHandle[Any, Any], decisions: int) -> bool:
        return len([one async for one in self._decisions(job)]) >= decisions

    async def _status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = await self.client.get_workflow_handle(JOB).query("status")
        return status

    # -- doing -----------------------------------------------------------------------------------

    async def _do(
        self,
        job: WorkflowHandle[Any, Any],
        action: Action,
        next_unstarted: tuple[UnstartedPod, ...],
    ) -> None:
        assert action.moment is not None
        moment = action.moment
        status = await self._comes(job, moment, action)
        await self._hold(next_unstarted)
        if action.cue is not None:
            await self._act(job, action.cue, status)
        else:
            await self._break([fault.text for fault in action.faults])
        await self._let_in(tuple(pod for pod in moment.unstarted if pod not in next_unstarted))
        if moment.gate is not None and moment.gate.opens:
            (self.control / f"open-g{moment.gate.generation}-s{moment.gate.step}").touch()

    async def _break(self, lines: list[str]) -> None:
        await self._happen([fake_faults.parse_fault(line) for line in lines])

    async def _exit(self, fault: FaultLine) -> None:
        fresh = self.control / "exit.tmp"
        fresh.write_text(f"{fault.options['exit']}\n{fault.options.get('exception', '')}")
        fresh.replace(self.control / f"exit-{fault.words[1]}")

    async def _act(
        self, job: WorkflowHandle[Any, Any], cue: Cue, status: Mapping[str, Any]
    ) -> None:
        match cue.verb:
            case "show":
                self.notes.append(Note(at_s=cue.at_s, what="status", text=status_line(status)))
            case "lose":
                await self.client.get_workflow_handle(status["recovery"]).terminate()
            case "release":
                quarantine = self.client.get_workflow_handle(names.quarantine_id(self.cluster_name))
                await quarantine.execute_update("release", {"node": cue.name})
            case "tell":
                await self._tell(job, cue)
            case _:
                raise AssertionError(f"{cue.verb} cannot be done here")

    async def _tell(self, job: WorkflowHandle[Any, Any], cue: Cue) -> None:
        try:
            await job.execute_update(cue.name, dict(cue.args))
        except WorkflowUpdateFailedError as error:
            refused = f"refused: {getattr(error.cause, 'message', error.cause)}"
            self.notes.append(Note(at_s=cue.at_s, what="tell", text=refused))

    # -- afterwards ------------------------------------------------------------------------------

    async def _played(self, job: WorkflowHandle[Any, Any]) -> Played:
        left = await self._left()
        assert not left, f"the job ended and left {left}"
        memo = await (await self.client.get_workflow_handle(JOB).describe()).memo()
        return Played(
            decisions=tuple([decision async for decision in self._decisions(job)]),
            restarts=tuple(job_memo.restarts_of(memo["report"])),
            status=job_memo.read("status", memo["status"], memo["report"]),
            report=memo["report"],
            effects=(),
            notes=tuple(self.notes),
        )

    async def _decisions(self, job: WorkflowHandle[Any, Any]) -> AsyncIterator[Decision]:
        """As they stand in the history, over all runs of the job."""
        run: str | None = job.first_execution_run_id
        while run:
            history = self.client.get_workflow_handle(JOB, run_id=run).fetch_history_events()
            run = None
            async for event in history:
                if event.HasField("marker_recorded_event_attributes"):
                    for decision in await decisions_in(event.marker_recorded_event_attributes):
                        yield decision
                going_on = event.workflow_execution_continued_as_new_event_attributes
                run = going_on.new_execution_run_id or run


async def decisions_in(marker: MarkerRecordedEventAttributes) -> list[Decision]:
    """The decision that a marker of a history records; none if it records something else."""
    details: Mapping[str, Payloads] = marker.details
    kinds = (
        [json.loads(payload.data) for payload in details["data"].payloads]
        if "data" in details
        else []
    )
    if not any(kind.get("activity_type") == "decide" for kind in kinds if isinstance(kind, dict)):
        return []
    return await DATA_CONVERTER.decode(list(details["result"].payloads), [Decision])


def _unstarted_pods(actions: Sequence[Action]) -> tuple[UnstartedPod, ...]:
    return tuple(
        pod for action in actions if action.moment is not None for pod in action.moment.unstarted
    )


def words(text: str) -> list[str]:
    """Sorted by name: agents that fall silent at once are reported in any order."""
    return sorted(re.findall(r"[\w/-]+", text))
