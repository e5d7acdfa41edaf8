"""The command line over the real workflows: one job's life, as an operator follows it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from everstep.backends.local.database import nodes
from everstep.backends.local.database.store import Store
from everstep.backends.local.settings import LocalSettings
from everstep.chronicle import shapes
from everstep.client.jobs.report_sources import NO_ISOLATION
from tests.cli.conftest import AsyncCli
from tests.support.devserver import DevServer
from tests.support.stage import Stage, document

STATUS_KEYS = {"id", "state", "phase", "phases", "pods", "budgets", "series", "restarts", "ui"}


async def until_state(served: AsyncCli, state: str, *, job: str = "demo") -> None:
    while (await served("status", job, "--json")).json["state"] != state:
        await asyncio.sleep(0.05)


async def until_it_waits_for_room(served: AsyncCli, job: str) -> dict[str, Any]:
    while True:
        status: dict[str, Any] = (await served("status", job, "--json")).json
        assert status["state"] != "failed", status["reason"]
        if "room for" in (status["waiting_for"] or ""):
            return status
        await asyncio.sleep(0.05)


async def test_a_job_is_followed_from_submit_to_its_end(
    served: AsyncCli, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.fault("at 35s kill demo 2 exit 1")
        await stage.admin.fault("at 80s node-down n2")
        phases = [{"name": "warmup", "env": {"STEPS": "20"}}, {"name": "main"}]
        labels = {"team": "nlp"}
        demo_document = document(phases=phases) | {"metadata": {"name": "demo", "labels": labels}}
        body = json.dumps(demo_document).encode()
        first = (await served("submit", "-", "--json", stdin=body)).json["run_id"]
        begun = await stage.client.get_workflow_handle("demo", run_id=first).describe()
        report = await stage.client.get_workflow_handle("demo").result()
        assert report["status"] == "Completed"
        (isolated,) = (await served("nodes", "--json")).json
        assert (isolated["name"], isolated["state"]) == ("n2", "isolated")
        assert (await served("release", "n2")).code == 0
        assert (await served("nodes", "--json")).json == []
        assert (await served("release", "n2")).code == 3
        assert (await served("isolate", "n1/3", "--reason", "hot")).code == 0
        (device,) = (await served("nodes", "--json")).json
        assert (device["name"], device["reason"], device["by"]) == ("n1/3", "hot", "operator")
        (n1,) = [node for node in await stage.fake.nodes() if node.name == "n1"]
        assert n1.devices[3].isolated == "hot"
        assert (await served("release", "n1/3")).code == 0

    status = (await served("status", "demo", "--json")).json
    assert status.keys() >= STATUS_KEYS
    assert status["state"] == "completed"
    assert (status["restarts"], status["reschedules"]) == (2, 1)
    assert "2 (1 rescheduled)" in (await served("status", "demo")).out
    restarts = (await served("restarts", "demo", "--json")).json
    assert [(r["n"], r["level"], r["recover_result"]) for r in restarts] == [
        (1, "in_place", "success"),
        (2, "pod", "success"),
    ]
    assert (await served("restarts", "demo", "--all", "--json")).json == restarts
    assert "decided  pod" in (await served("why", "demo", "2")).out
    await looks_like_modelarts(served, report)
    await is_reported(served, restarts, tmp_path)
    (listed,) = (await served("list", "--json")).json
    assert (listed["id"], listed["state"], listed["phase"]) == ("demo", "completed", "main")
    assert (listed["restarts"], listed["reschedules"]) == (2, 1)
    assert (listed["labels"], listed["step"]) == (
        labels,
        report["phases"][-1]["last_checkpoint_step"],
    )
    assert listed["started_at"] == shapes.moment(begun.start_time.timestamp())


async def is_reported(served: AsyncCli, restarts: list[dict[str, Any]], tmp_path: Path) -> None:
    """The report of a job that is over, without a worker, in each format."""
    made = (await served("report", "demo", "--json")).json
    records = [{key: r[key] for key in restarts[0]} for r in made["restarts"]]
    assert records == restarts
    assert [row["life"] for row in made["lives"]] == [1]
    assert {row["class"]: row["restarts"] for row in made["causes"]} == {"crash": 1, "node": 1}
    assert [phase["ended_at"] is not None for phase in made["phases"]] == [True, True]
    assert len(made["runs"]) == 4
    assert made["gaps"] == [NO_ISOLATION]
    assert made["document"]["metadata"]["labels"] == {"team": "nlp"}
    page = tmp_path / "demo.html"
    for _ in range(2):  # the second one replaces the first
        assert made["summary"][0] in (await served("report", "demo", "-o", str(page))).out
        assert made["summary"][1] in page.read_text()
    assert [path.name for path in tmp_path.glob("*demo.html*")] == ["demo.html"]
    assert made["summary"][2] in (await served("report", "demo")).out
    assert "has to end in .html" in (await served("report", "demo", "-o", "demo.pdf")).sentence
    assert "is no folder" in (await served("report", "demo", "-o", "nowhere/a.html")).sentence
    assert (await served("report", "nobody")).code == 3
    week = (await served("report", "--since", "900w", "--json")).json
    assert [(row["id"], row["restarts"]) for row in week["jobs"]] == [("demo", 2)]
    assert week["time"] == made["time"]
    assert [row["node"] for row in week["nodes"]] == ["n2"]
    assert week["summary"][0] in (await served("report", "--since", "900w")).out
    for wrong in ((), ("demo", "--since", "7d"), ("--since", "soon")):
        assert (await served("report", *wrong)).code == 2


async def looks_like_modelarts(served: AsyncCli, report: dict[str, Any]) -> None:
    """Of a job that is over, without a worker."""
    details = (await served("status", "demo", "--modelarts")).json
    assert (details["kind"], details["metadata"]["id"]) == ("job", "demo")
    assert details["status"]["phase"] == "Completed"
    records = details["status"]["running_records"]
    assert records == report["running_records"]
    assert [record["end_recover"] for record in records] == [
        None,
        "proc_restart",
        "pod_reschedule",
        None,
    ]
    events = (await served("events", "demo", "--json")).json
    assert events == [{**event, "life": 1} for event in report["events"]]
    names = [event["event"] for event in events if event["event"]]
    assert names == ["JobStarted", "JobRestarted", "JobRestarted", "JobCompleted"]
    part = await served("events", "demo", "--offset", "2", "--limit", "3", "--json")
    assert part.json == events[2:5]
    assert "JobCompleted" in (await served("events", "demo")).out
    assert (await served("events", "demo", "--limit", "101")).code == 2
    assert (await served("events", "demo", "--limit", "0")).code == 2


async def test_a_node_that_was_released_is_isolated_for_no_job(
    served: AsyncCli, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.fault("at 35s node-down n2")
        await stage.submit(document(env={"STEPS": "100000000"}))
        while (await served("status", "demo", "--json")).json["isolated_nodes"] != ["n2"]:
            await asyncio.sleep(0.05)
        assert (await served("release", "n2")).code == 0
        assert (await served("status", "demo", "--json")).json["isolated_nodes"] == []
        assert (await served("stop", "demo")).code == 0


async def test_what_a_job_avoids_is_shown_everywhere_and_released(
    served: AsyncCli, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.fault("at 35s maintenance n2")
        await stage.submit(document(env={"STEPS": "100000000"}))
        while not (status := (await served("status", "demo", "--json")).json)["avoided_nodes"]:
            await asyncio.sleep(0.05)
        (avoided,) = status["avoided_nodes"]
        assert avoided["node"] == "n2"
        assert avoided["why"] == "maintenance: n2 is about to be serviced"
        assert avoided["until"] == "its cordon or taint is removed"
        assert "n2 until its cordon or taint" in (await served("status", "demo")).out
        assert "avoids n2 since" in (await served("why", "demo")).out
        (row,) = (await served("nodes", "--json")).json
        assert (row["name"], [of["job"] for of in row["avoided_by"]]) == ("n2", ["demo"])
        assert "demo avoids it until" in (await served("nodes")).out
        checks = (await served("doctor", "--json")).json["checks"]
        assert any(check["what"].startswith("demo avoids n2") for check in checks)
        await until_state(served, "running")
        assert (await served("release", "n2", "--job", "demo")).code == 0
        assert (await served("status", "demo", "--json")).json["avoided_nodes"] == []
        assert (await served("nodes", "--json")).json == []
        refusal = await served("release", "n2", "--job", "demo")
        assert (refusal.code, "does not avoid 'n2'" in refusal.sentence) == (2, True)
        assert (await served("stop", "demo")).code == 0


async def test_a_release_of_a_node_is_one_for_the_jobs_that_avoid_it(
    served: AsyncCli, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.fault("at 35s maintenance n2")
        await stage.submit(document(env={"STEPS": "100000000"}))
        while not (await served("nodes", "--json")).json:
            await asyncio.sleep(0.05)
        await until_state(served, "running")
        released = (await served("release", "n2", "--json")).json
        assert (released["released"], released["jobs"]) == (True, ["demo"])
        assert (await served("status", "demo", "--json")).json["avoided_nodes"] == []
        assert (await served("stop", "demo")).code == 0


async def test_a_fault_of_a_device_that_no_node_has_is_refused(
    served: AsyncCli, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    settings = LocalSettings(home=Path(os.environ["EVERSTEP_HOME"]), nodes=2, devices=1)
    store = Store(settings.database)
    await store.run(lambda db: nodes.set_up(db, settings))
    store.close()
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.submit(document(env={"STEPS": "100000000"}))
        await until_state(served, "running")
        where = ("--node", "n1", "--code", "80E01801", "--device")
        ended = await served("report-fault", "demo", "device.fault", *where, "3")
        assert (ended.code, ended.sentence) == (3, "n1 has no device 3; it has 1")
        assert (await served("report-fault", "demo", "device.fault", *where, "0")).code == 0
        assert (await served("stop", "demo")).code == 0


async def test_a_job_is_paused_asked_and_stopped(
    served: AsyncCli, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        body = json.dumps(document(env={"STEPS": "100000000"})).encode()
        assert (await served("submit", "-", stdin=body)).code == 0
        await until_state(served, "running")
        status = (await served("pause", "demo", "--reason", "a look", "--json")).json
        assert status["accepted"] is True
        await until_state(served, "paused")
        again = await served("pause", "demo")
        assert again.code == 2
        assert "paused already" in again.sentence
        assert (await served("status", "demo", "--json")).json.keys() >= STATUS_KEYS
        details = (await served("status", "demo", "--modelarts")).json
        assert (details["status"]["phase"], details["status"]["tasks"][0]) == (
            "Pending",
            "worker-0",
        )
        assert details["status"]["running_records"][-1]["end_reason"] == "paused: a look"
        assert "a look" in (await served("events", "demo")).out
        assert "no restart" in (await served("why", "demo")).out
        assert (await served("restart", "demo", "--level", "everything")).code == 2
        assert (await served("stop", "demo", "--reason", "enough")).code == 0
        report = await stage.client.get_workflow_handle("demo").result()
        assert report["status"] == "Terminated"
        row = "demo/main/recovery-1-in_place-crash-n0"
        assert (await served("status", row)).code == 3
        assert (await served("submit", "-", "--again", stdin=body)).code == 0


async def test_why_says_what_a_job_without_a_place_waits_for_since_when_and_how_long(
    served: AsyncCli, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.submit(document("first", env={"STEPS": "100000000"}))
        await until_state(served, "running", job="first")
        await stage.submit(document())
        status = await until_it_waits_for_room(served, "demo")
        waits = ["no restart yet", f"waits for {status['waiting_for']}"]
        since = status["waiting_since"]
        lines = (await served("why", "demo")).out.splitlines()
        assert lines == [*waits, f"  since    {since}"], "queue_s has no limit"
        page = (await served("status", "demo")).out
        assert f"since {since[:10]} {since[11:19]}Z" in page
        assert (await served("stop", "demo")).code == 0

        limits = {"queue_s": 1_000_000}
        await stage.submit(document("limited", limits=limits))
        status = await until_it_waits_for_room(served, "limited")
        until = status["waiting_until"]
        assert (
            f"until {until[:10]} {until[11:19]}Z at most" in (await served("status", "limited")).out
        )
        last = (await served("why", "limited")).out.splitlines()[-1]
        assert (
            last
            == f"  until    {until} at most: then this try fails, and the job decides what follows"
        )
        assert (await served("stop", "limited")).code == 0
        assert (await served("stop", "first")).code == 0
