"""The quarantine ended by hand, or silent: docs/operations/troubleshooting.md has the rules."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import WorkflowHandle

from activities.quarantine_client import TemporalQuarantine
from everstep.core import names
from tests.support.byhand import BODY, NODE, at, isolated_nodes, reset, shown
from tests.support.devserver import DevServer
from tests.support.moments import Call, Incident, isolated
from tests.support.playing.durable import until
from tests.support.stage import Stage
from workflows import options

TWO_NODES = Incident(body=BODY, faults=["at 35s node-down n2", "at 50s node-down n3"], begins_s=34)
LATER = Call("ensure_isolated", "before", 2)
"""The second node is to be isolated; the first one has been for a while."""


def quarantine(stage: Stage) -> WorkflowHandle[object, object]:
    return stage.client.get_workflow_handle(names.quarantine_id(stage.cluster))


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

        assert shown(report) == [("pod", "success", {"hardware": 1})]
        assert report["phases"][0]["isolated_nodes"] == ["n2"]
        assert report["phases"][0]["restarts"][0]["notes"] == []
        assert [name for name, _ in await isolated_names(stage)] == ["n2"]


@pytest.mark.parametrize("end", ["terminate", "cancel"])
async def test_a_new_quarantine_reads_the_marks_of_the_cluster(
    server: DevServer, namespace: str, tmp_path: Path, end: str
) -> None:
    moment = Call("ensure_generation", "after", 2)
    async with at(server, namespace, tmp_path, TWO_NODES, moment) as (stage, job):
        old = quarantine(stage)
        await (old.terminate("by hand") if end == "terminate" else old.cancel())
        await stage.admin.release()
        report = await job.result()

        assert report["phases"][0]["isolated_nodes"] == ["n2", "n3"]
        assert await isolated_names(stage) == [("n2", "cluster"), ("n3", "demo")]
        assert await isolated_nodes(stage) == ["n2", "n3"]


async def test_a_quarantine_that_is_reset_remembers_everything(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
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
    """Its workflow is there, but nobody works for it: it is on a queue that no worker serves."""
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
    """It asks again after a minute; a job that is over by then has to hand over what it knows."""

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
