"""The quarantine ended by hand, or silent: docs/operations/troubleshooting.md has the rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle

from activities import earlier_quarantine
from activities.quarantine_client import TemporalQuarantine
from everstep.backends.fake.settings import EPOCH
from everstep.core import names
from tests.support.byhand import BODY, NODE, at, isolated_nodes, reset, restarts_of
from tests.support.devserver import DevServer
from tests.support.moments import Call, Incident, isolated
from tests.support.playing.durable import until
from tests.support.scene import tell
from tests.support.stage import Handle, Stage
from workflows import options

TWO_NODES = Incident(body=BODY, faults=["at 35s node-down n2", "at 50s node-down n3"], begins_s=34)
LATER = Call("ensure_isolated", "before", 2)
"""The second node is to be isolated; the first one has been for a while."""


def quarantine(stage: Stage) -> WorkflowHandle[object, object]:
    return stage.client.get_workflow_handle(names.quarantine_id(stage.cluster))


async def started(stage: Stage, *, task_queue: str = names.TASK_QUEUE) -> Handle:
    opening = {"cluster": stage.cluster}
    workflow_id = names.quarantine_id(stage.cluster)
    return await stage.client.start_workflow(
        names.NODE_QUARANTINE, opening, id=workflow_id, task_queue=task_queue
    )


FAULT = {"node": "n1", "device": 1, "code": "80E01801", "times": 3, "window_s": 86_400.0}
UNTIL = "2027-01-01T00:00:00Z"


async def no_runs(*_: object) -> list[str]:
    """As once the retention of the namespace is over."""
    return []


async def isolated_names(stage: Stage) -> list[tuple[str, str]]:
    return sorted((row["name"], row["by"]) for row in await isolated(stage) or ())


async def test_a_quarantine_terminated_while_it_isolates_is_started_again(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    moment = Call("ensure_isolated", "before")
    async with at(server, namespace, tmp_path, NODE, moment) as (stage, job):
        await quarantine(stage).terminate("by hand")
        await stage.admin.release()
        report = await job.result()

        assert restarts_of(report) == [("pod", "success", {"hardware": 1})]
        assert report["phases"][0]["isolated_nodes"] == ["n2"]
        assert report["phases"][0]["restarts"][0]["notes"] == []
        assert [name for name, _ in await isolated_names(stage)] == ["n2"]


READABLE, UNREADABLE = (True, "demo"), (False, "cluster")


@pytest.mark.parametrize(
    ("end", "is_readable", "by"),
    [
        (WorkflowHandle.terminate, *READABLE),
        pytest.param(WorkflowHandle.cancel, *UNREADABLE, marks=pytest.mark.long),
        pytest.param(WorkflowHandle.cancel, *READABLE, marks=pytest.mark.long),
        pytest.param(WorkflowHandle.terminate, *UNREADABLE, marks=pytest.mark.long),
    ],
)
async def test_a_new_quarantine_reads_the_run_before_or_else_the_marks_of_the_cluster(
    server: DevServer,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    end: Callable[[WorkflowHandle[object, object]], Awaitable[None]],
    is_readable: bool,
    by: str,
) -> None:
    """The long rows have the other end, and a run before that cannot be read any more."""
    if not is_readable:
        monkeypatch.setattr(earlier_quarantine, "_earlier_runs", no_runs)
    moment = Call("ensure_generation", "after", 2)
    async with at(server, namespace, tmp_path, TWO_NODES, moment) as (stage, job):
        await end(quarantine(stage))
        with pytest.raises(WorkflowFailureError):  # a cancellation may come beside the next request
            await quarantine(stage).result()
        await stage.admin.release()
        report = await job.result()

        assert report["phases"][0]["isolated_nodes"] == ["n2", "n3"]
        assert await isolated_names(stage) == [("n2", by), ("n3", "demo")]
        assert await isolated_nodes(stage) == ["n2", "n3"]


@pytest.mark.parametrize(
    "between",
    [*(pytest.param(b, marks=pytest.mark.long) for b in (None, "never taken")), "reading"],
)
async def test_counts_isolations_and_their_ends_outlive_a_quarantine(
    server: DevServer, namespace: str, tmp_path: Path, *, between: str | None
) -> None:
    """A run between is passed by that no worker took, or that was terminated while it read the marks."""
    async with Stage(server, namespace, tmp_path) as stage:
        book = await started(stage)
        for n in range(2):
            await tell(book, "note_faults", faults=[{**FAULT, "at": EPOCH + n}], now=EPOCH + 10)
        await tell(book, "isolate", node="n3", reason="it smokes", by="me", until=UNTIL)
        rows = await book.query("nodes", {"counts": True})
        await quarantine(stage).terminate("by hand")
        if between == "never taken":
            await started(stage, task_queue="no worker")
            await quarantine(stage).terminate("by hand")
        elif between == "reading":
            await stage.admin.hold("nodes")
            await started(stage)
            await stage.admin.wait_held()
            await quarantine(stage).terminate("by hand")
            await stage.admin.release()
        await stage.fake.ensure_released("n3")  # as a kill just before the mark leaves it

        book = await started(stage)
        await tell(book, "note_faults", faults=[], now=EPOCH + 10)
        assert await book.query("nodes", {"counts": True}) == rows

        async def is_marked() -> bool:
            return await isolated_nodes(stage) == ["n3"]

        await until(is_marked)  # requests are answered before the marks are set again
        third = await tell(book, "note_faults", faults=[{**FAULT, "at": EPOCH + 9}], now=EPOCH + 10)
        assert third["isolated"] == ["n1/1"]


@pytest.mark.long
async def test_a_quarantine_that_is_reset_remembers_everything(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one resets a quarantine."""
    moment = Call("ensure_generation", "after", 2)
    async with at(server, namespace, tmp_path, TWO_NODES, moment) as (stage, job):
        await reset(quarantine(stage))
        await stage.admin.release()
        report = await job.result()

        assert report["phases"][0]["isolated_nodes"] == ["n2", "n3"]
        assert {name for name, _ in await isolated_names(stage)} == {"n2", "n3"}
        assert await isolated_nodes(stage) == ["n2", "n3"]


@pytest.mark.long
async def test_a_job_isolates_for_itself_while_the_quarantine_does_not_answer(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Its workflow exists without a worker: it is on a queue that no worker serves."""
    moment = Call("ensure_generation", "before", 2)
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.client.start_workflow(
            names.NODE_QUARANTINE,
            {"cluster": stage.cluster},
            id=names.quarantine_id(stage.cluster),
            task_queue="nobody",
        )
        for fault in ("at 35s node-down n2", "at 50s node-down n3"):
            await stage.admin.fault(fault)
        await stage.admin.hold(moment.verb, nth=3, when=moment.when)  # launch, n2, n3
        job = await stage.submit(BODY)
        await moment.reached(stage)
        assert await isolated_nodes(stage) == []

        await quarantine(stage).terminate("by hand")
        await stage.admin.release()
        report = await job.result()
        first, second = report["phases"][0]["restarts"]
        assert (first["recover_result"], first["notes"]) == (
            "success",
            ["isolate: deferred for n2"],
        )
        assert first["nodes"]["after"] == {"2": "n4"}
        assert (second["recover_result"], second["notes"]) == ("success", [])
        assert await isolated_nodes(stage) == ["n2", "n3"]


async def test_a_job_that_ends_first_leaves_its_isolation_with_the_quarantine(
    server: DevServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again after a minute; a job that is over by then has to hand over its data."""

    async def lost(_quarantine: TemporalQuarantine, *_update: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(options, "QUARANTINE_PATIENCE", timedelta(seconds=0.1))
    monkeypatch.setattr(TemporalQuarantine, "_update_once", lost)
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.fault("at 35s node-down n2")
        report = await (await stage.submit(BODY)).result()
        assert report["phases"][0]["restarts"][0]["notes"] == ["isolate: deferred for n2"]

        async def is_isolated() -> bool:
            return await isolated_nodes(stage) == ["n2"]

        await until(is_isolated)
        assert await isolated_names(stage) == [("n2", "demo")]
