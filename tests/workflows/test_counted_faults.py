"""Faults of a device are counted over jobs, in virtual time over days, whatever is restarted in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from everstep.backends.fake.settings import EPOCH
from everstep.chronicle.shapes import moment
from everstep.core import names
from tests.support.devserver import DevServer
from tests.support.moments import Incident, StandingClock, isolated, until_incident
from tests.support.scene import tell
from tests.support.stage import Handle, Stage, StageOfProcesses
from workflows import options
from workflows.node_quarantine import Opening

HOUR_S = 3_600.0
HBM = "80E01801"
"""Twice within 24 hours isolates its device."""


def manifest(name: str) -> dict[str, Any]:
    """An AscendJob on two nodes that goes on after a chip fault in its pods, for some 17 hours."""
    script = {"STEPS": "60", "STEP_S": "1000", "CHECKPOINT_EVERY": "20"}
    container = {
        "name": "ascend",
        "command": ["python", "train.py"],
        "env": [{"name": key, "value": value} for key, value in script.items()],
        "resources": {"limits": {"huawei.com/Ascend910": 8}},
    }
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {
            "name": name,
            "labels": {"fault-scheduling": "force", "fault-retry-times": "9"},
            "annotations": {"recover-strategy": "recover-in-place"},
        },
        "spec": {
            "replicaSpecs": {
                "Master": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
                "Worker": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
            }
        },
        "everstep": {"model_dir": f"out/{name}", "checkpoints": {"path": f"out/{name}/ckpt"}},
    }


async def after_a_fault(stage: Stage, name: str, at_s: float) -> dict[str, Any]:
    """The report of a job of this name that has the device 1 of n1 as it shows a fault at this time."""
    fault = f"at {at_s:g}s device n1 1 {HBM}"
    begins_s = await stage.fake.clock() - EPOCH + 60.0
    incident = Incident(body=manifest(name), faults=[fault], begins_s=begins_s)
    job, clock = await until_incident(stage, incident)
    await clock.let_go()
    report: dict[str, Any] = await job.result()
    return report


def levels(report: dict[str, Any]) -> list[tuple[str, str, bool]]:
    rows = report["phases"][0]["restarts"]
    return [(row["level"], row["recover_result"], row["isolated"]) for row in rows]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_two_jobs_count_together_though_worker_and_server_were_killed(
    tmp_path: Path,
) -> None:
    """That counts outlive the server. That they outlive a run of the quarantine, the quick ones find."""
    async with (
        await DevServer.start(db_file=tmp_path / "temporal.db") as server,
        StageOfProcesses(server, await server.new_namespace("counts"), tmp_path, nodes=4) as stage,
    ):
        assert levels(await after_a_fault(stage, "first", 2 * HOUR_S)) == [
            ("in_place", "success", False)
        ]
        stage.worker.kill9()
        await server.restart()
        await stage.worker.restart()
        await stage.admin.fault("clear n1 1")
        report = await after_a_fault(stage, "second", 22 * HOUR_S)
        assert levels(report) == [("job", "success", True)]
        assert "counted over all jobs" in report["phases"][0]["restarts"][0]["reason"]
        assert [row["name"] for row in await isolated(stage)] == ["n1/1", "n1"]


@pytest.fixture
def soon_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quarantine goes on as a new run every few updates."""
    monkeypatch.setattr(options, "EVENTS_KEPT", 10)


@pytest.mark.usefixtures("soon_full")
async def test_a_count_goes_on_in_each_new_run_of_the_quarantine(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        opening = Opening(cluster="local")
        workflow_id = names.quarantine_id("local")
        first = await stage.client.start_workflow(
            names.NODE_QUARANTINE, opening, id=workflow_id, task_queue=names.TASK_QUEUE
        )
        book: Handle = stage.client.get_workflow_handle(workflow_id)
        rule = {"times": 6, "window_s": 24 * HOUR_S}
        for n in range(6):
            fault = {"node": "n1", "device": 1, "code": HBM, "at": EPOCH + n, **rule}
            for _again in range(2):
                answer = await tell(book, "note_faults", faults=[fault], now=EPOCH + 100)
                assert [count["times"] for count in answer["counts"]] == [n + 1]
            rows = [row for row in await book.query("nodes", {"counts": True}) if "counts" in row]
            counts = [
                (one["device"], one["code"], one["times"], one["limit"]) for one in counts_of(rows)
            ]
            assert {one["until"] for one in counts_of(rows)} <= {moment(EPOCH + n + 24 * HOUR_S)}
            # The count begins again once it has isolated the device.
            assert counts == ([(1, HBM, n + 1, 6)] if n < 5 else [])
        (entry,) = await book.query("nodes")
        assert (entry["name"], entry["by"]) == ("n1/1", "fault counts")
        newest = await book.describe()
        assert newest.run_id != first.first_execution_run_id


async def test_a_count_whose_window_is_over_is_left_out_with_the_next_call_of_the_janitor(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        book: Handle = await stage.client.start_workflow(
            names.NODE_QUARANTINE,
            Opening(cluster="local"),
            id=names.quarantine_id("local"),
            task_queue=names.TASK_QUEUE,
        )
        rule = {"times": 6, "window_s": HOUR_S}
        fault = {"node": "n1", "device": 1, "code": HBM, "at": EPOCH, **rule}
        await tell(book, "note_faults", faults=[fault], now=EPOCH)
        for now, rows in ((EPOCH + HOUR_S - 1, 1), (EPOCH + HOUR_S, 0)):
            await tell(book, "expire", now=now)
            assert len(await book.query("nodes", {"counts": True})) == rows


def counts_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [count for row in rows for count in row["counts"]]


LINK = "81078603"
LINK_RULE = {"times": 5, "window_s": 24 * HOUR_S, "release_s": 48 * HOUR_S}
LINK_LASTS = {"longer_than_s": 20.0, "sound_for_s": 60.0}
LINK_DEVICE = {"node": "n1", "device": 1}


async def link_down(book: Handle, at: float, lasts_s: float) -> str | None:
    """What keeps the device from new pods as its link comes back."""
    fault = {**LINK_DEVICE, "code": LINK, "at": at, **LINK_RULE, **LINK_LASTS}
    await tell(book, "note_faults", faults=[fault], now=at)
    now = at + lasts_s
    await tell(book, "note_faults", faults=[], sound=[{**LINK_DEVICE, "at": now}], now=now)
    return await kept_by(book)


async def kept_by(book: Handle) -> str | None:
    return next((row["by"] for row in await book.query("nodes")), None)


@pytest.mark.usefixtures("soon_full")
async def test_case_57_a_link_that_is_down_for_long(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Over days, while the quarantine goes on as a new run every few updates."""
    async with Stage(server, namespace, tmp_path) as stage:
        workflow_id = names.quarantine_id("local")
        await stage.client.start_workflow(
            names.NODE_QUARANTINE,
            Opening(cluster="local"),
            id=workflow_id,
            task_queue=names.TASK_QUEUE,
        )
        book: Handle = stage.client.get_workflow_handle(workflow_id)
        assert await link_down(book, EPOCH + 1_000, 19) is None
        for n in range(1, 5):
            began = EPOCH + 1_000 + n * HOUR_S
            assert await link_down(book, began, 21) == "fault duration"
            marked = [
                f"{m.name}/{d.index}"
                for m in await stage.fake.nodes()
                for d in m.devices
                if d.isolated
            ]
            assert marked == ["n1/1"]
            assert (await tell(book, "expire", now=began + 80))["released"] == []
            assert (await tell(book, "expire", now=began + 81))["released"] == ["n1/1"]
        last = EPOCH + 1_000 + 5 * HOUR_S
        assert await link_down(book, last, 21) == "fault counts"
        assert (await tell(book, "expire", now=last + 48 * HOUR_S))["released"] == []
        assert (await tell(book, "expire", now=last + 20 + 48 * HOUR_S))["released"] == ["n1/1"]
        assert await kept_by(book) is None


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_case_57_is_the_same_though_worker_and_server_are_killed_in_between(
    tmp_path: Path,
) -> None:
    """Each hour the worker is killed, each second one the server too, and at last for the two quiet days."""
    async with (
        await DevServer.start(db_file=tmp_path / "temporal.db") as server,
        StageOfProcesses(server, await server.new_namespace("links"), tmp_path, nodes=4) as stage,
    ):
        workflow_id = names.quarantine_id("local")
        await stage.client.start_workflow(
            names.NODE_QUARANTINE,
            Opening(cluster="local"),
            id=workflow_id,
            task_queue=names.TASK_QUEUE,
        )
        book: Handle = stage.client.get_workflow_handle(workflow_id)

        async def killed(*, with_server: bool) -> None:
            stage.worker.kill9()
            if with_server:
                await server.restart()
            await stage.worker.restart()

        for n in range(4):
            began = EPOCH + 1_000 + n * HOUR_S
            assert await link_down(book, began, 21) == "fault duration"
            await killed(with_server=bool(n % 2))
            assert (await tell(book, "expire", now=began + 80))["released"] == []
            assert (await tell(book, "expire", now=began + 81))["released"] == ["n1/1"]
        last = EPOCH + 1_000 + 4 * HOUR_S
        assert await link_down(book, last, 21) == "fault counts"
        await killed(with_server=True)
        assert (await tell(book, "expire", now=last + 48 * HOUR_S))["released"] == []
        assert await kept_by(book) == "fault counts"
        await killed(with_server=True)
        assert (await tell(book, "expire", now=last + 20 + 48 * HOUR_S))["released"] == ["n1/1"]
        assert await kept_by(book) is None


async def test_the_quarantine_finds_out_by_itself_that_a_fault_lasts_and_that_a_device_is_sound(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """The cluster's clock alone goes on: no job reports anything between."""
    async with Stage(server, namespace, tmp_path) as stage:
        clock = StandingClock(stage.fake)
        await clock.hold()
        await stage.client.start_workflow(
            names.NODE_QUARANTINE,
            Opening(cluster="local"),
            id=names.quarantine_id("local"),
            task_queue=names.TASK_QUEUE,
        )
        book: Handle = stage.client.get_workflow_handle(names.quarantine_id("local"))
        device = {"node": "n1", "device": 1}

        async def until_kept_by(*by: str) -> None:
            """The quarantine looks at the clock once a second or later: nothing shows when it has."""
            while [row["by"] for row in await book.query("nodes")] != [*by]:
                await asyncio.sleep(0.02)

        at = await stage.fake.clock()
        short = {"longer_than_s": 2.0, "sound_for_s": 3.0}
        fault = {**device, "code": LINK, "at": at, **LINK_RULE, **short}
        await tell(book, "note_faults", faults=[fault], now=at)
        await clock.pass_to(at - EPOCH + 1.9)
        assert await book.query("nodes") == []
        await clock.pass_to(at - EPOCH + 2.1)
        await until_kept_by("fault duration")
        sound = [{**device, "at": at + 4.0}]
        await clock.pass_to(at - EPOCH + 4.0)
        await tell(book, "note_faults", faults=[], sound=sound, now=at + 4.0)
        await until_kept_by("fault duration")
        await clock.pass_to(at - EPOCH + 7.1)
        await until_kept_by()
