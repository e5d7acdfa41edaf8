"""Plays the course of a scenario on this machine: a real worker, real agents, real processes.

Who breaks something waits until the job is where it was on the fake cluster: training stands at a gate,
pods are placed and held at the door, or the status says so. Nothing here waits for a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import MarkerRecordedEventAttributes
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)

from everstep.agent import wire
from everstep.agent_client.link import NoAnswer
from everstep.backends.fake import faults as fake_faults
from everstep.backends.fault_lines import FaultLine
from everstep.backends.local import clock
from everstep.backends.local.database import identity, placing, pods
from everstep.backends.local.database.placing import Transaction
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.faults import LocalScene, happen, parse_fault, ranks_of_all
from everstep.backends.local.reconciling.agents import AgentFolder, kill_agent
from everstep.backends.local.reconciling.liveness import Life, shut, sweep
from everstep.backends.local.settings import LocalSettings
from everstep.converter import DATA_CONVERTER
from everstep.core import names
from everstep.core.deciding.decision import Decision
from everstep.core.seeing.hang import FLOOR_S
from everstep.dialects import job_memo
from everstep.documents.merge import merged
from tests.support.at_work import submit
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.playing.course import ANY, Course, Deed, Door, Gate, Moment
from tests.support.playing.doors import held
from tests.support.playing.scenario import JOB, Cue, Played, Scenario, Told
from tests.support.playing.transcript import status_line
from tests.support.workerproc import WorkerProcess

POLL_S = 0.02
STILL_S = 10.0  # so long what is waited for in vain lasts here, where that was scaled
REQUEUE_S = 1_800.0  # the longest of it: half an hour for a place
SCRIPT = Path(__file__).parents[1] / "scripts" / "scripted.py"
EVERY = 10  # steps between two checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast the job goes here, and how long it waits for things; nothing of it is compared."""

    step_s: float = 0.01
    time_scale: float
    limits: Mapping[str, float]

    @classmethod
    def of(cls, scenario: Scenario, course: Course) -> Pace:
        spec, limits = scenario.document["spec"], {}
        wanted = spec["nodes"]["wanted"] if isinstance(spec["nodes"], dict) else spec["nodes"]
        if scenario.nodes <= wanted:
            limits["spare_s"] = 2.0  # there is no spare, or only one that is broken
        if hang_s := spec.get("limits", {}).get("hang_s"):
            # Ranks stand at gates while we break things, which takes its time on a busy machine.
            return cls(time_scale=hang_s / STILL_S, limits=limits)
        broken = " ".join(fault.text for fault in scenario.faults)
        if " silence " in broken and " hang " in broken:
            # That an agent of which nothing is expected fell silent is noticed after some seconds.
            return cls(time_scale=1.0, limits={**limits, "unreachable_s": 15.0})
        if " silence " in broken:
            # The others have to go on for longer than this, as they do on the fake cluster; so much
            # time, too, has whoever wants to see the job before it notices.
            step_s = STILL_S / 60
            return cls(step_s=step_s, time_scale=1.0, limits={**limits, "unreachable_s": STILL_S})
        if " hang " in broken:
            return cls(time_scale=FLOOR_S / STILL_S, limits=limits)
        # Nobody hangs here but whoever stands at a gate until we have done what we came for.
        scale = REQUEUE_S / STILL_S if course.ends_long_after else 10.0
        return cls(time_scale=scale, limits={**limits, "hang_s": scale * HUNG_S})


class OnMachine:
    """One scenario, one state directory, one namespace, one worker."""

    def __init__(self, server: DevServer, client: Client, home: Path) -> None:
        self.server = server
        self.client = client
        self.home = home
        self.control = home / "control"
        self.settings = LocalSettings(home=home)
        self.store = Store(self.settings.database)
        self.held: dict[Path, int] = {}
        self.told: list[Told] = []
        self.fitting: Mapping[str, Any] = {}  # the status of a moment that came

    async def play(self, scenario: Scenario, course: Course) -> Played:
        pace = Pace.of(scenario, course)
        self.control.mkdir(parents=True)
        gates = json.dumps(course.gates)
        (self.control / "gates.json").write_text(gates)
        worker = WorkerProcess(
            address=self.server.address,
            namespace=self.client.namespace,
            home=self.home,
            backend="local",
            env={
                "EVERSTEP_NODES": str(scenario.nodes),
                "EVERSTEP_DEVICES": str(scenario.devices),
                "EVERSTEP_TIME_SCALE": str(pace.time_scale),
                "EVERSTEP_JANITOR": "false",
            },
        )
        try:
            async with worker:
                return await self._play(scenario, course, pace)
        finally:
            self._clean_up()

    async def _play(self, scenario: Scenario, course: Course, pace: Pace) -> Played:
        self.cluster = await self.store.run(identity.identity)
        await self._shorten_heals(scenario)
        for deed in course.deeds:
            if deed.moment is None:
                await self._break([fault.text for fault in deed.faults])
            else:
                self._hold(deed.moment.doors)
        job = await submit(self.client, self._document(scenario, pace), job_id=JOB)
        for deed in course.deeds:
            if deed.moment is not None:
                await self._do(job, deed, deed.moment)
        with contextlib.suppress(WorkflowFailureError):  # a failed job; its report is in the memo
            await asyncio.wait_for(job.result(), HUNG_S)
        return await self._played(job)

    def _document(self, scenario: Scenario, pace: Pace) -> dict[str, Any]:
        """The scenario's, with a script that really runs."""
        model_dir = self.home / "out"
        env = {
            "CONTROL": str(self.control),
            "CHECKPOINTS": str(model_dir / "ckpt"),
            "CHECKPOINT_EVERY": str(EVERY),
            "STEP_S": str(pace.step_s),
        }
        spec = scenario.document["spec"]
        changes = {
            "command": [sys.executable, "-I", "-S", str(SCRIPT)],
            "model_dir": str(model_dir),
            "checkpoints": {"path": str(model_dir / "ckpt")},
            "env": {**spec["env"], **env},
            "limits": {**pace.limits, **spec.get("limits", {})},
        }
        return {**scenario.document, "spec": merged(spec, changes)}

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
        self, job: WorkflowHandle[Any, Any], moment: Moment, deed: Deed
    ) -> Mapping[str, Any]:
        """Once it is so; with the status that says so."""
        if moment.gate is not None:
            gate = moment.gate
            await self._until(lambda: self._is_at(gate), gate)
            if not any(" hang " in fault.text for fault in deed.faults):
                await self._until(lambda: self._is_saved(gate.step), f"checkpoint before {gate}")
        for door in moment.doors:
            await self._until(lambda door=door: self._is_placed(door), door)  # type: ignore[misc]  # bound now
        await self._until(lambda: self._shows(moment), moment)
        await self._until(lambda: self._has_decided(job, moment.decisions), moment)
        await self._until(lambda: self._shows(moment), moment)
        return self.fitting

    async def _is_at(self, gate: Gate) -> bool:
        found = self.control.glob(f"at-g{gate.generation}-s{gate.step}-r*")
        return len(list(found)) == gate.ranks

    async def _is_saved(self, step: int) -> bool:
        """Whether some agent has seen the newest checkpoint there is at this step."""
        newest = step - step % EVERY
        return not newest or newest in [await self._saved(uid) for uid in await self._uids()]

    async def _saved(self, uid: str) -> int | None:
        try:
            said = await self.settings.folder(uid).ask("GET", f"{wire.STATE}?since=-1&wait_s=0")
        except NoAnswer:
            return None
        saved = said["run"] and said["run"]["checkpoint"]
        return int(saved["step"]) if saved else None

    async def _uids(self) -> list[str]:
        own = await self.store.run(lambda db: pods.of_job(db, JOB))
        return [pod.uid for pod in own]

    async def _is_placed(self, door: Door) -> bool:
        return self._uid(door) in await self._uids()

    async def _shows(self, moment: Moment) -> bool:
        status = await self._status()
        if moment.waiting_for is not None and (
            words(moment.waiting_for) != words(status["waiting_for"] or "")
        ):
            return False
        if status["generation"] != moment.generation:
            return False
        self.fitting = status
        records = await self.client.get_workflow_handle(JOB).query("restarts")
        return status["state"] == moment.state and moment.records in (ANY, len(records))

    async def _has_decided(self, job: WorkflowHandle[Any, Any], decisions: int) -> bool:
        return len([one async for one in self._decisions(job)]) >= decisions

    async def _status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = await self.client.get_workflow_handle(JOB).query("status")
        return status

    # -- doors -----------------------------------------------------------------------------------

    def _uid(self, door: Door) -> str:
        return f"{placing.pod_name(JOB, door.slot, door.generation)}-{self.cluster}"

    def _hold(self, doors: tuple[Door, ...]) -> None:
        """No agent begins in these pods."""
        for door in doors:
            folder = self.settings.folder(self._uid(door)).path
            if folder not in self.held:
                self.held[folder] = held(folder)

    def _let_in(self, doors: tuple[Door, ...]) -> None:
        for door in doors:
            lock = self.held.pop(self.settings.folder(self._uid(door)).path, None)
            if lock is not None:
                os.close(lock)

    # -- doing -----------------------------------------------------------------------------------

    async def _do(self, job: WorkflowHandle[Any, Any], deed: Deed, moment: Moment) -> None:
        status = await self._comes(job, moment, deed)
        if deed.cue is not None:
            await self._act(job, deed.cue, status)
        else:
            await self._break([fault.text for fault in deed.faults])
        self._let_in(moment.doors)
        if moment.gate is not None and moment.gate.opens:
            (self.control / f"open-g{moment.gate.generation}-s{moment.gate.step}").touch()

    async def _break(self, lines: list[str]) -> None:
        """All at one moment: in one transaction of the books, whatever is done to processes besides."""
        faults = [fake_faults.parse_fault(line) for line in lines]
        ours = [fault for fault in faults if _has_no_word(fault)]
        rest = [parse_fault(_without_time(fault.line)) for fault in faults if fault not in ours]
        offset = await self.store.run(clock.anchor)
        ranks = await ranks_of_all(self.settings, await self._uids())

        def work(db: Db) -> None:
            moment = Transaction(db=db, settings=self.settings, now=clock.now(offset))
            for fault in rest:
                happen(LocalScene(transaction=moment, ranks=ranks), fault)

        if rest:
            await self.store.run(work)
        for fault in ours:
            await (self._exit(fault) if fault.name == "kill" else self._silence(fault))

    async def _exit(self, fault: FaultLine) -> None:
        fresh = self.control / "exit.tmp"
        fresh.write_text(f"{fault.options['exit']}\n{fault.options.get('exception', '')}")
        fresh.replace(self.control / f"exit-{fault.words[1]}")

    async def _silence(self, fault: FaultLine) -> None:
        """Nobody reaches the agents of this node any more; they and their ranks go on.

        Without the token nobody asks over a connection that is open already.
        """
        for pod in await self.store.run(lambda db: pods.of_job(db, JOB)):
            if pod.node == fault.words[0]:
                for way in (wire.SOCKET, wire.TOKEN):
                    there = self.settings.folder(pod.uid).path / way
                    away = there.with_name(f"{way}.away")
                    ways = (there, away) if fault.name == "silence" else (away, there)
                    ways[0].rename(ways[1])

    async def _shorten_heals(self, scenario: Scenario) -> None:
        faults = [fake_faults.parse_fault(fault.text) for fault in scenario.faults]
        said = {fault.words[:2] for fault in faults if fault.name == "heal-takes"}
        broken = {fault.words[:2] for fault in faults if fault.name == "device"} - said
        await self._break([f"heal-takes {node} {index} 0.2s" for node, index in sorted(broken)])

    async def _act(
        self, job: WorkflowHandle[Any, Any], cue: Cue, status: Mapping[str, Any]
    ) -> None:
        match cue.verb:
            case "show":
                self.told.append(Told(at_s=cue.at_s, what="status", text=status_line(status)))
            case "lose":
                await self.client.get_workflow_handle(status["recovery"]).terminate()
            case "release":
                quarantine = self.client.get_workflow_handle(names.quarantine_id("local"))
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
            self.told.append(Told(at_s=cue.at_s, what="tell", text=refused))

    # -- afterwards ------------------------------------------------------------------------------

    async def _played(self, job: WorkflowHandle[Any, Any]) -> Played:
        left = await self.store.run(_still_there)
        assert not left, f"the job ended and left {left}"
        memo = await (await self.client.get_workflow_handle(JOB).describe()).memo()
        return Played(
            decisions=tuple([decision async for decision in self._decisions(job)]),
            restarts=tuple(job_memo.restarts_of(memo["report"])),
            status=job_memo.read("status", memo["status"], memo["report"]),
            report=memo["report"],
            effects=(),
            told=tuple(self.told),
        )

    async def _decisions(self, job: WorkflowHandle[Any, Any]) -> AsyncIterator[Decision]:
        """As they stand in the history, over all runs of the job."""
        run: str | None = job.first_execution_run_id
        while run:
            history = self.client.get_workflow_handle(JOB, run_id=run).fetch_history_events()
            run = None
            async for event in history:
                if event.HasField("marker_recorded_event_attributes"):
                    for decision in await _decided(event.marker_recorded_event_attributes):
                        yield decision
                going_on = event.workflow_execution_continued_as_new_event_attributes
                run = going_on.new_execution_run_id or run

    def _clean_up(self) -> None:
        for lock in self.held.values():
            os.close(lock)
        self.store.close()
        for path in self.settings.agents.glob("*"):
            folder = AgentFolder(path=path)
            shut(folder.path)
            while {folder.life(), sweep(path)} != {Life.GONE}:
                kill_agent(folder)


async def _decided(marker: MarkerRecordedEventAttributes) -> list[Decision]:
    told: Mapping[str, Payloads] = marker.details
    kinds = (
        [json.loads(payload.data) for payload in told["data"].payloads] if "data" in told else []
    )
    if not any(kind.get("activity_type") == "decide" for kind in kinds if isinstance(kind, dict)):
        return []
    return await DATA_CONVERTER.decode(list(told["result"].payloads), [Decision])


def _still_there(db: Db) -> list[str]:
    """Pods, but for those that nobody can reach."""
    return [pod.uid for pod in pods.all_pods(db) if pod.service != "cut_off"]


def _has_no_word(fault: FaultLine) -> bool:
    """What `everstep fault` does not do: an exit of a rank's own, an agent that falls silent."""
    return "exit" in fault.options or fault.name in ("silence", "unsilence")


def words(text: str) -> list[str]:
    """Whoever is named first: those that fall silent at once are heard of in any order."""
    return sorted(re.findall(r"[\w/-]+", text))


def _without_time(line: str) -> str:
    words = line.split()
    if words[:2] == ["at", "step"]:
        return " ".join(words[5:])
    return " ".join(words[2:]) if words[0] == "at" else line
