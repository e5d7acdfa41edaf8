"""`everstep fault`: how it may be written, and what it refuses. The cluster is only a file."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.agent.observing import checks
from everstep.backends.local.database import nodes
from everstep.backends.local.database.store import Store
from everstep.backends.local.settings import LocalSettings
from everstep.client.machine import tools
from everstep.processes import Process
from everstep.protocol import wire
from tests.cli.conftest import Cli
from tests.support.patience import HUNG_S


@pytest.fixture
def settings(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> LocalSettings:
    """A cluster of two nodes, without a worker."""
    del cli  # first: it takes the machine's own settings away
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    settings = LocalSettings(home=tmp_path, nodes=2)
    store = Store(settings.database)
    asyncio.run(store.run(lambda db: nodes.set_up(db, settings)))
    store.close()
    return settings


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("node-down --partition n1", "node-down n1 partition"),
        ("device n1 0 C --severity=critical", "device n1 0 C critical"),
        ("device --severity critical n1 0 X", "device n1 0 X critical"),
        ("device n1 0 X --severity Critical --no-heals", "device n1 0 X critical no-heals"),
        ("metric n1 0 vary", "metric n1 0 vary"),
        ("precheck --hardware n1 gpu-check", "precheck n1 gpu-check hardware"),
    ],
)
@pytest.mark.usefixtures("settings")
def test_options_may_stand_anywhere(cli: Cli, words: str, line: str) -> None:
    ended = cli("fault", *words.split())
    assert (ended.code, ended.out) == (0, f"done: {line}\n"), ended.err


@pytest.mark.parametrize(
    "signal_name", ["--signal=9", "--signal 9", "--signal KILL", "--signal sigkill"]
)
@pytest.mark.usefixtures("settings")
def test_a_signal_may_be_named(cli: Cli, signal_name: str) -> None:
    ended = cli("fault", "kill", *signal_name.split(), "demo", "0")
    assert (ended.code, ended.sentence) == (2, "there is no job 'demo' on this cluster")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("precheck n1 nonsense", "names no check; known are dns, "),
        ("metric n1 0 150", "goes from 0 to 100"),
        ("kill demo 0 --signal LOUD", "should read: kill JOB RANK [signal N]"),
        ("device n1 0 X --severity", "should read: device NODE INDEX CODE"),
    ],
)
@pytest.mark.usefixtures("settings")
def test_what_would_have_no_effect_is_refused(cli: Cli, words: str, sentence: str) -> None:
    ended = cli("fault", *words.split())
    assert ended.code == 2
    assert sentence in ended.sentence


def test_clear_takes_the_simulated_value_of_the_device_alone(
    cli: Cli, settings: LocalSettings
) -> None:
    for words in ("metric n1 0 37", "metric n1 1 38", "clear n1 0"):
        assert cli("fault", *words.split()).code == 0
    metrics = json.loads(settings.metrics("n1").read_text())
    assert metrics == {"devices": {"1": {"utilisation": 38}}}


def test_books_that_cannot_be_read_are_one_sentence(cli: Cli, settings: LocalSettings) -> None:
    for path in settings.database.parent.glob(f"{settings.database.name}*"):
        path.write_bytes(b"this is no database " * 100)
    ended = cli("fault", "node-down", "n0")
    assert ended.code == 4
    assert "everstep doctor" in ended.sentence


@pytest.mark.parametrize("words", [("kill", "--help"), ("-h", "kill"), ("kill", "demo", "--help")])
def test_help_for_one_fault_says_how_it_is_written(cli: Cli, words: tuple[str, ...]) -> None:
    ended = cli("fault", *words)
    assert ended.code == 0
    assert ended.out.startswith("everstep fault kill JOB RANK [signal N]\n")


def test_the_names_of_checks_are_those_that_are_made() -> None:
    check_command: wire.CheckCommand = {
        "generation": 1,
        "thresholds": {"ulimits": True},
        "accelerator": "npu",
        "devices": 1,
        "hosts": [],
    }
    assert {*checks.checks_of(check_command)} == {*checks.NAMES}


@pytest.fixture
def fake(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fake cluster that listens, and the settings of a worker that would serve it."""
    del cli
    process = Process(
        [sys.executable, "-m", "everstep.backends.fake.server"],
        name="fake cluster",
        log=tmp_path / "fake.log",
    )
    address = asyncio.run(process.wait_for_line("everstep fake cluster ready", within_s=HUNG_S))
    monkeypatch.setenv("EVERSTEP_BACKEND", "fake")
    monkeypatch.setenv("EVERSTEP_FAKE_ADDRESS", address)
    yield address
    process.end(within_s=HUNG_S)


@pytest.mark.usefixtures("fake")
def test_a_fault_goes_to_the_cluster_that_a_worker_would_serve(cli: Cli) -> None:
    ended = cli("fault", "node-down", "n0")
    assert (ended.code, ended.out) == (0, "done: node-down n0\n"), ended.err
    nodes = {node.name: node.ready for node in asyncio.run(tools().nodes())}
    assert not nodes.pop("n0")
    assert all(nodes.values())
    assert cli("fault", "node-down", "nowhere").code == 2
    assert "nowhere" in cli("fault", "node-down", "nowhere").sentence


def test_a_cluster_of_which_nobody_knows_where_it_is_gets_no_fault(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_BACKEND", "fake")
    ended = cli("fault", "node-down", "n0")
    assert (ended.code, ended.sentence) == (
        2,
        "set EVERSTEP_FAKE_ADDRESS to where the fake cluster listens",
    )
    monkeypatch.setenv("EVERSTEP_BACKEND", "slurm")
    ended = cli("fault", "node-down", "n0")
    assert (ended.code, ended.sentence) == (
        2,
        "backend: there is no 'slurm'; try one of fake, kubernetes, local",
    )
