"""A variable that a job takes from the worker: its ranks have it, and nothing that is kept or shown does.

Only here is every place in which it could be left.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.client import Client

from everstep.processes import free_port
from tests.agent.pod import until
from tests.support.machine import Machine, until_printed
from tests.support.patience import HUNG_S

SECRET, LITERAL = "hf_5ecre7-of-ada", "7old-in-the-document"
SCRIPT = """
import hashlib, os, pathlib, time
first = os.environ["EVERSTEP_GENERATION"] == "1"
print("began", flush=True)
pathlib.Path("seen").write_text(hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest())
while not pathlib.Path("end-1" if first else "end-2").exists():
    time.sleep(0.02)
raise SystemExit(1 if first else 0)
"""


def holding(folder: Path, text: str) -> list[str]:
    """Files that have it anywhere in them."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def in_command_lines(text: str) -> list[str]:
    leaks = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it has ended
            continue
        if text.encode() in words:
            leaks.append(words.decode())
    return leaks


async def history(address: str) -> bytes:
    """Everything that the server stores of every workflow."""
    client = await Client.connect(address)
    rows = [row async for row in client.list_workflows()]
    events = []
    for row in rows:
        handle = client.get_workflow_handle(row.id, run_id=row.run_id)
        events += [event.SerializeToString() async for event in handle.fetch_history_events()]
    return b"".join(events)


@pytest.mark.long
def test_a_secret_of_the_worker_is_nowhere_but_in_the_environment_of_ranks(
    machine: Machine, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    spec = {
        "command": ["python3", "train.py"],
        "workdir": str(folder),
        "model_dir": str(folder / "out"),
        "env": {"TOKEN": {"from": "HF_TOKEN"}, "OTHER": LITERAL},
    }
    head = {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": {"name": "demo"}}
    document = tmp_path / "job.json"
    document.write_text(json.dumps({**head, "spec": spec}))
    address = machine.env["TEMPORAL_ADDRESS"]
    ports = ("--port", address.rpartition(":")[2], "--ui-port", str(free_port()))
    machine_with_token = replace(machine, env={**machine.env, "HF_TOKEN": SECRET})
    with machine_with_token.running("dev", *ports) as dev:
        until_printed(dev, "Ctrl-C ends")
        for words in (("validate", str(document)), ("explain", str(document))):
            ended = machine_with_token.everstep(*words)
            assert ended.returncode == 0, ended.stderr
            assert SECRET not in ended.stdout + ended.stderr
        assert machine.everstep("submit", str(document)).returncode == 0
        until((folder / "seen").exists, what="the first start")
        assert in_command_lines(SECRET) == []
        (folder / "end-1").touch()
        with machine.running("watch", "demo") as watch:
            until(lambda: "began" in _printed(machine, "--generation", "2"), what="a second start")
            (folder / "end-2").touch()
            shown_live, _ = watch.communicate(timeout=HUNG_S)
        pages = [
            machine.everstep(*words).stdout
            for words in (
                ("status", "demo", "--json"),
                ("restarts", "demo", "--json"),
                ("why", "demo", "1"),
                ("events", "demo", "--json"),
            )
        ]
        events = asyncio.run(history(address))
    assert (folder / "seen").read_text() == hashlib.sha256(SECRET.encode()).hexdigest()
    assert [text for text in (shown_live, *pages) if SECRET in text or not text] == []
    assert (LITERAL.encode() in events, SECRET.encode() in events) == (True, False)
    assert any("temporal.db" in name for name in holding(machine.home, LITERAL))
    assert holding(machine.home, SECRET) + holding(folder, SECRET) == []


def _printed(machine: Machine, *words: str) -> str:
    return machine.everstep("logs", "demo", *words).stdout
