"""The questions of a night shift about a job with six different incidents, each answered by one command.

What the commands print, what the metrics count and what the records say is the same to the second.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from everstep.chronicle.fleet_totals import FleetSum
from everstep.core import names
from tests.cli.conftest import AsyncCli, until
from tests.support.devserver import DevServer
from tests.support.stage import Stage, document

FAULTS = (
    "at 38s kill demo 2 exit 1 exception=ValueError",
    "at 80s node-down n2",
    "at 120s hang demo 1",
    "at 250s preempt demo",
    "at 300s device n3 3 80E01801 heals",
    'at 350s fact demo numeric.nan rank=1 node=n1 message="loss is NaN"',
)
SPARED_UNTIL = "2090-01-01T00:00:00.000Z"
LOST = "n2"
METRICS = {"EVERSTEP_METRICS_ADDRESS": "127.0.0.1:9464"}  # on; only a whole worker listens


async def totals(client: Client) -> FleetSum:
    fleet_totals: FleetSum = await client.get_workflow_handle(names.totals_id("local")).query(
        "totals", result_type=FleetSum
    )
    return fleet_totals


@pytest.mark.long
async def test_each_question_is_answered_by_one_command(
    served: AsyncCli, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one has six incidents of one job; test_with_a_worker.py has two."""
    body = document(env={"STEPS": "100000000"})
    async with Stage(server, namespace, tmp_path, env=METRICS) as stage:
        for line in FAULTS:
            await stage.admin.fault(line)
        job = await stage.submit(body)

        async def had_all() -> bool:
            done = (await served("restarts", "demo", "--json")).json
            return len(done) == len(FAULTS) and done[-1]["recover_result"] == "success"

        async def is_paused() -> bool:
            return bool((await served("status", "demo", "--json")).json["state"] == "paused")

        await until(had_all)
        what_happens_if_it_fails_again(
            (await served("explain", "--job", "demo")).out,
            (await served("explain", "--job", "demo", "--json")).json,
        )
        assert (await served("pause", "demo", "--reason", "look at n1")).code == 0
        await until(is_paused)
        what_is_it_doing_now((await served("status", "demo")).out)
        assert (await served("stop", "demo")).code == 0
        await job.result()
        until_when = ("--until", SPARED_UNTIL, "--reason", "hot")
        assert (await served("isolate", "n5", *until_when)).code == 0
        isolated = {node["name"]: node for node in (await served("nodes", "--json")).json}
        which_node_who_isolated_it_until_when((await served("nodes")).out, isolated)
        fleet_totals = await totals(stage.client)

    records = (await served("restarts", "demo", "--all", "--json")).json
    classes = ["crash", "node", "hang", "preempted", "device", "numeric"]
    assert [record["fault"]["class"] for record in records] == classes
    await why_did_it_restart(served)
    assert "owner user" in (await served("why", "demo", "6")).out, "its own code, not a machine"
    owners = {record["fault"]["class"]: record["fault"]["owner"] for record in records}
    assert (owners["crash"], owners["node"], owners["device"]) == ("unknown", "infra", "infra")

    target = tmp_path / "demo.json"
    assert (await served("report", "demo", "-o", str(target))).code == 0
    report = json.loads(target.read_text())
    lost = report["time"]
    assert lost["down_s"] == pytest.approx(sum(lost["stages_s"].values()), abs=0.1)
    assert {row["class"] for row in report["causes"]} == set(classes)
    the_metrics_agree(fleet_totals, report, records)
    budgets = (await served("status", "demo", "--json")).json["budgets"]
    used = {name: budget["used"] for name, budget in budgets.items() if budget["used"]}
    assert used == dict(fleet_totals.totals.budgets)

    explained = (await served("explain", "-", stdin=json.dumps(body).encode())).out
    assert all(f"{cls} " in explained for cls in classes), explained
    fleet = (await served("report", "--since", "104w", "--json")).json
    broke = Counter(
        r["fault"]["node"] for r in records if r["fault"]["class"] in ("node", "device")
    )
    assert {row["node"]: row["faults"] for row in fleet["nodes"]} == broke
    assert broke.keys() == {"n2", "n3"}, "a crash, a hang and a bad number are the script's"
    assert LOST in (await served("report", "--since", "104w")).out
    assert {row["class"] for row in fleet["causes"]} == set(classes)


def what_is_it_doing_now(status: str) -> None:
    assert "paused" in status
    assert "look at n1" in status
    assert "waits for" in status or "step" in status


def which_node_who_isolated_it_until_when(page: str, nodes: dict[str, dict[str, Any]]) -> None:
    """One by the job, until it is released; one by hand, until a time."""
    quarantines = {name: (node["by"], node["until"]) for name, node in nodes.items()}
    assert quarantines == {"n2": ("demo", None), "n5": ("operator", SPARED_UNTIL)}
    rows = {line.split()[0]: line for line in page.splitlines() if line.startswith("n")}
    assert "demo" in rows["n2"]
    assert "hot" in rows["n5"]


def what_happens_if_it_fails_again(page: str, value: dict[str, Any]) -> None:
    """By the rules, with all that the job has used and has in a row."""
    assert "restarts so far: 6" in page
    (phase,) = value["phases"]
    assert phase["counted"]["restarts"] == len(FAULTS)
    assert "no_progress" in phase["counted"]["series"]
    ladders = {row["class"]: [rung["level"] for rung in row["ladder"]] for row in phase["faults"]}
    assert ladders["node"][0] in {"pod", "elastic", "job"}
    assert all(ladder[-1] in {"fail", "note"} for ladder in ladders.values() if ladder)


async def why_did_it_restart(served: AsyncCli) -> None:
    why = (await served("why", "demo", "2")).out
    assert "named    node" in why
    assert "owner infra" in why
    assert "decided  pod" in why


def the_metrics_agree(
    fleet_totals: FleetSum, report: dict[str, Any], records: list[dict[str, Any]]
) -> None:
    counted = Counter(f"{r['fault']['class']}/{r['level']}/{r['recover_result']}" for r in records)
    assert fleet_totals.totals.restarts == counted
    assert fleet_totals.ends == {"Terminated": 1}
    time = report["time"]
    uses = {use: time[f"{use}_s"] for use in ("wait", "training", "down", "lost", "paused")}
    assert {use: fleet_totals.totals.time_s.get(use, 0.0) for use in uses} == pytest.approx(
        uses, abs=0.1
    )
    for row in report["causes"]:
        down, again = (
            fleet_totals.totals.lost_s.get(f"{row['class']}/{k}", 0) for k in ("down", "again")
        )
        assert (down, again) == pytest.approx((row["down_s"], row["lost_s"]), abs=0.1)
    for name in ("detect", "stop", "start", "first_step"):
        took = [r["stages_s"][name] for r in records if r["stages_s"][name] is not None]
        buckets = fleet_totals.totals.stages.get(name, {}).values()
        assert sum(count for count, _ in buckets) == len(took)
        assert sum(s for _, s in buckets) == pytest.approx(sum(took), abs=0.01)
