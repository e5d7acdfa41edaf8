"""Commands that change a running job or report what it cannot see: each is one update with its keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from everstep.cli import pages
from tests.cli.conftest import AsyncCli, Cli
from tests.cli.standin import REFUSED, document, working
from tests.documents.test_public_faults import message

FAULT = {"kind": "device.fault", "node": "gpu-07", "device": 3, "code": "XID 79"}
FAULT_OPTIONS = ("--node", "gpu-07", "--device", "3", "--code", "XID 79")

UPDATES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (
        ("report-fault", "demo", "device.fault", *FAULT_OPTIONS),
        {"update": "report_fault", **FAULT},
    ),
    (
        ("report-fault", "demo", "gas.leak", "--at", "2026-01-31T12:00:00Z", "--message", "smoke"),
        {
            "update": "report_fault",
            "kind": "gas.leak",
            "at": "2026-01-31T12:00:00Z",
            "message": "smoke",
        },
    ),
    (
        ("adopt", "demo", "--reason", "the disk is gone"),
        {"update": "adopt", "reason": "the disk is gone"},
    ),
    (("set-budget", "demo", "pod", "5"), {"update": "set_budget", "name": "pod", "limit": 5}),
    (
        ("set-budget", "demo", "pod", "none"),
        {"update": "set_budget", "name": "pod", "limit": None},
    ),
    (
        ("hot-update", "demo", "--set", "nodes={min: 2, wanted: 4}", "--set", "env.LR=1e-4"),
        {
            "update": "hot_update",
            "patch": {"nodes": {"min": 2, "wanted": 4}, "env": {"LR": "1e-4"}},
            "when": "next_restart",
        },
    ),
    (
        ("hot-update", "demo", "--set", "env.A='7'", "--set", "env.B=a: b # c"),
        {
            "update": "hot_update",
            "patch": {"env": {"A": "7", "B": "a: b # c"}},
            "when": "next_restart",
        },
    ),
    (
        ("hot-update", "demo", "patch.yaml", "--now", "--set", "limits.hang_s=60"),
        {
            "update": "hot_update",
            "patch": {"limits": {"grace_s": 5, "hang_s": 60}, "env": {"A": "b"}},
            "when": "now",
        },
    ),
]


async def test_each_command_is_its_update(
    served: AsyncCli, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patch.yaml").write_text("limits: {grace_s: 5}\nenv: {A: b}\n")
    async with working(client):
        await served("submit", "-", stdin=json.dumps(document()).encode())
        for words, _ in UPDATES:
            ended = await served(*words)
            assert (ended.code, "accepted" in ended.out) == (0, True), ended.err
        updates = await client.get_workflow_handle("demo").query("told")
        await client.get_workflow_handle("demo").terminate()
    ids = [command.pop("id") for command in updates]
    assert len(set(ids)) == len(UPDATES)
    by = [command.pop("by", None) for command in updates]
    changes = [command["update"] == "hot_update" for command in updates]
    assert [who is not None and "@" in who for who in by] == changes
    assert updates == [expected for _, expected in UPDATES]


async def test_a_checkpoint_that_is_not_seen_has_an_exit_code(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        await served("submit", "-", stdin=json.dumps(document()).encode())
        done = await served("checkpoint", "demo")
        assert (done.code, done.out) == (0, "demo: step 140 was saved (step_140)\n")
        late = await served("checkpoint", "demo", "--within-s", "1", "--json")
        assert (late.code, json.loads(late.out)["saved"]) == (1, False)
        updates = await client.get_workflow_handle("demo").query("told")
        await client.get_workflow_handle("demo").terminate()
    assert [command["within_s"] for command in updates] == [60.0, 1.0]


async def test_every_fault_of_a_file_is_an_update_and_twice_is_once(
    served: AsyncCli, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "faults.json"
    file.write_text(json.dumps(message({"nodeName": "gpu-01", "deviceIds": [0, 3]})))
    async with working(client):
        await served("submit", "-", stdin=json.dumps(document()).encode())
        for _ in range(2):
            ended = await served("report-fault", "demo", "--file", str(file), "--json")
            assert (ended.code, ended.json["reported"]) == (0, 2), ended.err
        updates = await client.get_workflow_handle("demo").query("told")
        await client.get_workflow_handle("demo").terminate()
    assert [(t["update"], t["node"], t["device"]) for t in updates[:2]] == [
        ("report_fault", "gpu-01", 0),
        ("report_fault", "gpu-01", 3),
    ]
    assert len({t["id"] for t in updates}) == 2
    file.write_text(json.dumps({**message(), "version": "2.0"}))
    ended = await served("report-fault", "demo", "--file", str(file))
    assert (ended.code, "version: must be 1.0" in ended.sentence) == (2, True)


async def test_faults_on_nodes_of_other_jobs_keep_none_of_a_message_from_the_job(
    served: AsyncCli, client: Client, tmp_path: Path
) -> None:
    """An observer's message names the nodes of many jobs. This one has gpu-01, and gpu-07 is isolated."""
    file = tmp_path / "faults.json"
    places = [{"nodeName": name} for name in ("other", "gpu-07", "another", "gpu-01")]
    file.write_text(json.dumps(message(*places)))
    async with working(client):
        await served("submit", "-", stdin=json.dumps(document()).encode())
        ended = await served("report-fault", "demo", "--file", str(file))
        file.write_text(json.dumps(message({"nodeName": "other"})))
        nothing = await served("report-fault", "demo", "--file", str(file), "--json")
        updates = await client.get_workflow_handle("demo").query("told")
        await client.get_workflow_handle("demo").terminate()
    assert ended.code == 0
    assert ended.out == "demo: 2 faults are reported; 2 are on nodes that it does not have\n"
    assert [each["node"] for each in updates] == ["gpu-07", "gpu-01"]
    assert (nothing.json["reported"], nothing.json["elsewhere"]) == (0, 1)


async def test_a_fault_that_the_job_refuses_keeps_no_other_one_from_it(
    served: AsyncCli, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "faults.json"
    whole = message({"nodeName": "gpu-01"})
    (fault,) = whole["faults"]
    refused = {**fault, "faultId": "f0", "description": REFUSED}
    file.write_text(json.dumps({**whole, "faults": [refused, fault]}))
    async with working(client):
        await served("submit", "-", stdin=json.dumps(document()).encode())
        ended = await served("report-fault", "demo", "--file", str(file))
        updates = await client.get_workflow_handle("demo").query("told")
        await client.get_workflow_handle("demo").terminate()
    assert ended.code == 2
    assert ended.sentence == f"demo refuses: {REFUSED}; of the other faults 1 is reported"
    assert len(updates) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("hot-update", "demo"), "change what? Give a FILE with a fragment of `spec`, or --set"),
        (("hot-update", "demo", "--set", "nodes"), "--set nodes: write KEY=VALUE, for example"),
        (("hot-update", "demo", "--set", "nodes={"), "--set nodes={: "),
        (("hot-update", "demo", "--set", "env..A=1"), "write KEY=VALUE"),
        (("hot-update", "demo", "no/such.yaml"), "no/such.yaml: No such file"),
        (("hot-update", "demo", "/dev/null"), "/dev/null is empty; write a fragment of `spec`"),
        (("hot-update", "demo", "-"), "-: document: must be a mapping"),
        (("set-budget", "demo", "pod", "many"), "give a whole number from 0 on, or none"),
        (("set-budget", "demo", "pod", "-1"), "limit -1: give a whole number from 0 on, or none"),
        (("report-fault", "demo"), "Give a KIND, such as device.fault, or --file FILE"),
        (("report-fault", "demo", "node.down", "--file", "x"), "Give a KIND, such as device.fault"),
        (("report-fault", "demo", "--file", "no/such.json"), "no/such.json: No such file"),
    ],
)
def test_mistakes_end_in_one_sentence(cli: Cli, words: tuple[str, ...], sentence: str) -> None:
    ended = cli(*words, stdin=b"[1]")
    assert ended.code == 2
    assert sentence in ended.sentence


def test_a_restart_that_joins_another_one_names_it() -> None:
    answer = {"id": "demo", "command": "restart", "again": False, "state": "recovering"}
    (line,) = pages.command_result({**answer, "joined": "restart 3 (pod)"})
    assert line == "demo: restart joins restart 3 (pod), which is under way"
