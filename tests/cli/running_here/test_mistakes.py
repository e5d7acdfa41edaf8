"""Mistakes of commands that serve or break this machine: each ends in one sentence and starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.machine import ROOT


@pytest.fixture(autouse=True)
def here(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in the folder of the examples, perhaps as root of a shared machine."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("EVERSTEP_ALLOW_OTHER_USERS", "true")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("fault", "node-down", "n0"), 2, "there is no local cluster in"),
        (("fault", "earthquake"), 2, "names no fault"),
        (("logs", "nothing"), 3, "and no server answers whether this job exists"),
        (("run", "no/such.yaml"), 2, "No such file"),
        (("run", "examples/first.json", "--nodes", "0"), 2, "--nodes"),
        (("dev", "--port", "99999"), 2, "--port"),
        (("dev", "--ui-port", "0"), 2, "--ui-port"),
    ],
)
def test_mistakes_end_in_one_sentence(
    cli: Cli, words: tuple[str, ...], code: int, sentence: str
) -> None:
    ended = cli(*words)
    assert ended.code == code
    assert sentence in ended.sentence


def test_run_brings_no_server_in_place_of_one_elsewhere(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commands of the same shell would not find the job."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.2:9")
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    ended = cli("run", "examples/single/job.yaml")
    assert ended.code == 4
    assert "no Temporal server answers at 127.0.0.2:9" in ended.sentence
    assert "without TEMPORAL_ADDRESS `run` brings its own" in ended.sentence
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("words", [("dev",), ("run", "examples/single/job.yaml")])
@pytest.mark.parametrize("place", ["file", "file/in it", "/proc/nope"])
def test_a_home_that_cannot_be_one_ends_in_one_sentence(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    place: str,
) -> None:
    (tmp_path / "file").touch()
    home = str(tmp_path / place)
    monkeypatch.setenv("EVERSTEP_HOME", home)
    ended = cli(*words)
    assert ended.code == 2
    assert ended.sentence.startswith(f"EVERSTEP_HOME is {home} and cannot be made: ")


def test_what_no_command_expected_ends_in_one_sentence_too(cli: Cli, tmp_path: Path) -> None:
    lock = tmp_path / "home" / "server.lock"
    lock.mkdir(parents=True)
    ended = cli("dev")
    assert (ended.code, ended.sentence) == (2, f"{lock}: Is a directory")
