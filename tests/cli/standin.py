"""A stand-in TrainingJob whose end a test chooses, and a quarantine: what the commands may meet, quickly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from everstep.chronicle.shapes import moment
from everstep.core.loop import commands
from everstep.core.recovering.quarantine import checked_request
from everstep.core.state import JobState
from everstep.dialects import job_memo
from tests.support.builders import running

STATE = SearchAttributeKey.for_keyword("TrainState")
PHASE = SearchAttributeKey.for_keyword("TrainPhase")
JOB = SearchAttributeKey.for_keyword("TrainJob")
CLUSTER = SearchAttributeKey.for_keyword("TrainCluster")
RESTARTS = SearchAttributeKey.for_int("Restarts")


def document(
    name: str = "demo",
    *,
    end: str = "",
    phases: tuple[str, ...] = (),
    steps: str = "",
    cluster: str = "",
) -> dict[str, Any]:
    """A native document; the stand-in ends as its label says, or waits to be stopped.

    `steps`, as in `40-60`, are those of its run: the first one and the newest.
    """
    spec: dict[str, Any] = {"command": ["python", "train.py"]}
    if phases:
        spec["phases"] = [{"name": phase} for phase in phases]
    values = {"end": end, "steps": steps, "cluster": cluster}
    labels = {key: value for key, value in values.items() if value}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}


def record(n: int, *, result: str = "success") -> dict[str, Any]:
    """A restart in the pinned shape."""
    stages = ("detect", "decide", "stop", "heal", "place", "start", "first_step")
    return {
        "n": n,
        "incident": n,
        "phase": "main",
        "at": f"2026-01-31T12:00:{n:02}.000Z",
        "fault": {
            "class": "device_fatal",
            "kind": "device.fault",
            "node": "gpu-07",
            "slot": 1,
            "rank": None,
            "device": 3,
            "code": "XID 79",
            "owner": "infra",
        },
        "level": "pod",
        "isolated": True,
        "recover": "pod_reschedule",
        "recover_before_downgrade": None,
        "fault_scenario": "chip_fault",
        "recover_result": result,
        "start_type": "init_or_rescheduled",
        "bills": {"pod": 1},
        "reason": "XID 79 on gpu-07/3: the device cannot repair itself",
        "generation": {"from": n, "to": n + 1},
        "nodes": {"before": {"1": "gpu-07"}, "after": {"1": "gpu-08"}},
        "resume_step": 40,
        "evidence": None,
        "stages_s": {**dict.fromkeys(stages), "stop": 1.5, "place": 2.0},
        "seen": ["device.fault XID 79 gpu-07/3"],
        "passed_over": [],
        "refused_by": None,
        "notes": [],
    }


def status(job_id: str, state: str) -> dict[str, Any]:
    return {
        "id": job_id,
        "state": state,
        "phase": "main",
        "phases": [{"name": "main", "state": state}],
        "generation": 3,
        "step": 41,
        "checkpoint_step": 40,
        "waiting_for": None,
        "recovery": None,
        "pods": [
            {
                "slot": 0,
                "node": "gpu-01",
                "uid": "a",
                "state": "running",
                "schedule_count": 1,
                "process_start_count": 3,
            }
        ],
        "budgets": {"pod": {"limit": 3, "used": 2}},
        "series": {"no_progress": 1},
        "restarts": 2,
        "reschedules": 1,
        "isolated_nodes": ["gpu-07"],
        "ui": None,
    }


def run_of(document: dict[str, Any], began: str | None) -> dict[str, Any]:
    """The run of all processes, with the steps of the label."""
    first, _, newest = document["metadata"]["labels"].get("steps", "-").partition("-")
    return {
        "phase": "main",
        "generation": 3,
        "started_at": began,
        "first_step_at": began,
        "ended_at": began,
        "nodes": 1,
        "starting_step": int(first) if first else None,
        "step": int(newest) if newest else None,
        "why": None,
        "paused_at": None,
    }


EVENT = {
    "number": 1,
    "time": "2026-01-31T12:00:00.000Z",
    "level": "Info",
    "source": "Job",
    "event": "JobStarted",
    "message": "started",
}

CHANGE = {
    "at": "2026-01-31T12:00:07.000Z",
    "what": ["limits.hang_s=600"],
    "when": "now",
    "by": "ada@node",
}
"""A change of the document."""
IN_FORCE = {"spec": {"nodes": 4}}
"""The document in force."""
REFUSED = "it is too old"
"""The message of a fault that the job refuses."""


DEVICE = {"index": 0, "percent": 97.4, "memory_mb": 71_840.0, "memory_total_mb": 81_920.0}
USE = {"device_use": [{"slot": 0, "node": "gpu-01", "devices": [DEVICE]}]}


@activity.defn(name="monitor")
async def monitor() -> None:
    while True:
        activity.heartbeat({"now": 100.0, "step": 57, "checkpoint_step": 50, **USE})
        await asyncio.sleep(0.2)


CLOSING_S = 1.0
"""The time for which a job with the label `closes: late` shows its end before it closes."""

ENDS = {"completed": "Completed", "stopped": "Terminated", "failed": "Failed"}


@workflow.defn(name="TrainingJob")
class StandIn:
    """Answers and ends like the real one, without a cluster."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.end = ""

    @workflow.run
    async def run(self, document: dict[str, Any]) -> dict[str, Any]:
        workflow_id = workflow.info().workflow_id
        workflow.upsert_search_attributes(
            [
                JOB.value_set(workflow_id),
                STATE.value_set("running"),
                PHASE.value_set("main"),
                RESTARTS.value_set(2),
            ]
        )
        if cluster := document["metadata"]["labels"].get("cluster"):
            workflow.upsert_search_attributes([CLUSTER.value_set(cluster)])
        if labels := {k: v for k, v in document["metadata"]["labels"].items() if k != "end"}:
            workflow.upsert_memo({"labels": labels})
        if labels.get("runs") == "2" and workflow.info().continued_run_id is None:
            workflow.continue_as_new(document)
        self.end = self.end or document["metadata"]["labels"].get("end", "")
        if self.end == "invalid":
            raise ApplicationError("spec.nodes: must be a whole number", type="InvalidSpec")
        if self.end == "broken":
            raise RuntimeError("a worker\nwith a bug")  # fails the task, not the workflow
        if self.end == "unreplayable":
            await workflow.sleep(timedelta(milliseconds=1))
            if workflow.unsafe.is_replaying():
                workflow.upsert_memo({"another": "order of commands"})
            await workflow.sleep(timedelta(milliseconds=1))
        if not self.end:
            await self._train()
        if document["metadata"]["labels"].get("closes") == "late":
            workflow.upsert_search_attributes([STATE.value_set(self.end)])
            await workflow.sleep(CLOSING_S)
        return self._close(document)

    async def _train(self) -> None:
        watching = workflow.start_activity(
            monitor,
            start_to_close_timeout=timedelta(hours=1),
            heartbeat_timeout=timedelta(seconds=2),
        )
        await workflow.wait_condition(lambda: bool(self.end))
        watching.cancel()

    def _close(self, document: dict[str, Any]) -> dict[str, Any]:
        state = self.end
        began = moment(workflow.info().start_time.timestamp())
        report = {
            "status": ENDS[state],
            "start_phase": document["spec"].get("start_phase"),
            "reason": "because",
            "created_at": began,
            "started_at": began,
            "phases": [{"name": "main", "restarts": [record(1), record(2)]}],
            "events": [EVENT],
            "runs": [run_of(document, began)],
        }
        workflow_id = workflow.info().workflow_id
        memo = {
            "report": report,
            "status": job_memo.packed({**status(workflow_id, state), "reason": "because"}),
            "changes": [CHANGE],
        }
        workflow.upsert_memo(memo)
        workflow.upsert_search_attributes([STATE.value_set(state)])
        if state == "failed":
            raise ApplicationError("no level is left", report, type="JobFailed", non_retryable=True)
        return report

    @workflow.query(name="status")
    def status(self) -> dict[str, Any]:
        return status(workflow.info().workflow_id, "running")

    @workflow.query(name="state")
    def state(self) -> JobState:
        """That of a job whose script makes snapshots, and does not outlive faults."""
        return replace(running(nodes=2).state, can=("restore", "snapshot"))

    @workflow.query(name="document")
    def document(self, _argument: Any = None) -> dict[str, Any]:
        workflow_id = workflow.info().workflow_id
        return {"id": workflow_id, "document": IN_FORCE, "changes": [CHANGE]}

    @workflow.query(name="restarts")
    def restarts(self) -> list[dict[str, Any]]:
        return [record(3), record(4, result="recovering")]

    @workflow.query(name="events")
    def events(self) -> list[dict[str, Any]]:
        return [EVENT]

    @workflow.query(name="explain")
    def explain(self, argument: Any = None) -> dict[str, Any]:
        n = (argument or {}).get("n", 4)
        workflow_id = workflow.info().workflow_id
        restart = record(n) if n in (3, 4) else None
        return {"id": workflow_id, "restart": restart, "text": f"the story of {n}"}

    @workflow.query(name="told")
    def received_commands(self) -> list[dict[str, Any]]:
        return self.updates

    @workflow.update(name="pause")
    async def pause(self, argument: dict[str, Any]) -> dict[str, Any]:
        return self._take("pause", argument)

    @pause.validator
    def _pause_is_sensible(self, argument: dict[str, Any]) -> None:
        if self.updates and "id" in argument:
            raise ApplicationError("the job is paused already")

    @workflow.update(name="resume")
    async def resume(self, argument: dict[str, Any]) -> dict[str, Any]:
        return self._take("resume", argument)

    @workflow.update(name="restart")
    async def restart(self, argument: dict[str, Any]) -> dict[str, Any]:
        return self._take("restart", argument)

    @workflow.update(name="stop")
    async def stop(self, argument: dict[str, Any]) -> dict[str, Any]:
        reason = argument.get("reason", "stopped")
        self.end = reason if reason in ENDS else "stopped"
        return self._take("stop", argument)

    @workflow.update(name="report_fault")
    async def report_fault(self, argument: dict[str, Any]) -> dict[str, Any]:
        return self._take("report_fault", argument)

    @report_fault.validator
    def _fault_is_sensible(self, argument: dict[str, Any]) -> None:
        if argument.get("message") == REFUSED:
            raise ApplicationError(REFUSED)

    @workflow.update(name="hot_update")
    async def hot_update(self, argument: dict[str, Any]) -> dict[str, Any]:
        return self._take("hot_update", argument)

    @workflow.update(name="set_budget")
    async def set_budget(self, argument: dict[str, Any]) -> dict[str, Any]:
        return self._take("set_budget", argument)

    @workflow.update(name="checkpoint")
    async def checkpoint(self, argument: dict[str, Any]) -> dict[str, Any]:
        is_saved = argument["within_s"] > 1
        text = "step 140 was saved (step_140)" if is_saved else "no new checkpoint was seen"
        return {**self._take("checkpoint", argument), "saved": is_saved, "text": text}

    @workflow.update(name="adopt")
    async def adopt(self, argument: dict[str, Any]) -> dict[str, Any]:
        return self._take("adopt", argument)

    def _take(self, name: str, argument: dict[str, Any]) -> dict[str, Any]:
        commands.parse_arguments(name, argument)  # as the real one reads it
        self.updates.append({"update": name, **argument})
        return {"accepted": True, "again": False, "state": "running"}


@workflow.defn(name="Recovery")
class Restart:
    """A row of an old restart, with its record in the memo. It leaves this outcome, if one is given."""

    @workflow.run
    async def run(self, outcome: dict[str, Any] | None) -> None:
        if outcome is not None:
            workflow.upsert_memo({"outcome": outcome})


COUNT = {
    "device": 3,
    "code": "80E01801",
    "at": "2026-01-01T12:00:00.000Z",
    "until": "2026-01-02T12:00:00.000Z",
    "times": 1,
    "limit": 2,
}
"""A counted fault of n0, as the quarantine reports it, at a time of a fake cluster."""


@workflow.defn(name="NodeQuarantine")
class Quarantine:
    """One isolated node."""

    def __init__(self) -> None:
        self.nodes_known = ["gpu-07"]

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query(name="nodes")
    def nodes(self, argument: Any = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {
                "name": node,
                "state": "isolated",
                "reason": "XID 79",
                "by": "demo",
                "since": None,
                "failing": "no route to host" if node == SLOW else None,
            }
            for node in self.nodes_known
        ]
        return [*rows, *([{"name": "n0", "counts": [COUNT]}] if argument else ())]

    @workflow.update(name="isolate")
    async def isolate(self, argument: dict[str, Any]) -> dict[str, Any]:
        checked_request(argument, now=workflow.time())  # as the real one reads it
        self.nodes_known.append(argument["node"])
        if argument["node"] == SLOW:
            await workflow.wait_condition(lambda: False)
        note = NOTE if argument["node"] == ONE_OF_MANY else ""
        return {"verdict": "isolated", "why": "", "note": note}

    @workflow.update(name="release")
    async def release(self, argument: dict[str, Any]) -> dict[str, Any]:
        has_node = argument["node"] in self.nodes_known
        self.nodes_known = [node for node in self.nodes_known if node != argument["node"]]
        return {"released": has_node}


SLOW = "slow"
"""A node whose isolation the stand-in stores nowhere."""
ONE_OF_MANY, NOTE = "n1249", "1249 nodes and devices are isolated"
"""A node, and what the stand-in of the quarantine says as it isolates this one."""


@asynccontextmanager
async def working(client: Client, *, is_forgetful: bool = False) -> AsyncIterator[None]:
    """A worker with the stand-ins, in this process; a forgetful one replays at each task."""
    async with Worker(
        client,
        task_queue="everstep",
        workflows=[StandIn, Restart, Quarantine],
        activities=[monitor],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_heartbeat_throttle_interval=timedelta(milliseconds=200),
        max_cached_workflows=0 if is_forgetful else 1000,
    ):
        yield
