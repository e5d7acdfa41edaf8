"""The state directory is closed to other users, whatever the umask is; what a job makes is the user's.

Only real agents and ranks make the files that count.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.client.home import made_home, open_to_others
from tests.support.machine import Machine

SCRIPT = "touch made && mkdir -p of-mine && umask > umask && echo step 1"


@pytest.fixture
def generous() -> Iterator[None]:
    """A umask that lets every user read and write everything."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(top: Path) -> dict[str, int]:
    """The modes of everything in a folder, itself included."""
    paths = [top, *top.rglob("*")]
    return {str(p.relative_to(top)): stat.S_IMODE(p.lstat().st_mode) for p in paths}


def wide(home: Path) -> dict[str, str]:
    """What of a state directory is not ours alone; what a job writes is the job's."""
    file_modes = modes(home)
    return {n: oct(m) for n, m in file_modes.items() if m & 0o077 and not n.startswith("jobs/")}


def document(folder: Path) -> str:
    folder.mkdir()
    spec = {
        "command": SCRIPT,
        "workdir": str(folder),
        "progress": {"log_pattern": r"step (?P<step>\d+)"},
    }
    head = {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": {"name": "demo"}}
    path = folder / "job.json"
    path.write_text(json.dumps({**head, "spec": spec}))
    return str(path)


@pytest.mark.long
@pytest.mark.usefixtures("generous")
def test_what_a_run_leaves_is_closed_and_what_its_job_makes_goes_by_the_users_umask(
    machine: Machine, tmp_path: Path
) -> None:
    job = document(tmp_path / "job")
    first = machine.everstep("run", job)
    assert first.returncode == 0, first.stdout + first.stderr
    machine.fault("metric n0 0 37")
    assert {"temporal.db", "local.db", "agents", "sim", "jobs", "agent.pyz"} <= modes(
        machine.home
    ).keys()
    assert wide(machine.home) == {}
    made = modes(tmp_path / "job")
    assert (made["made"], made["of-mine"]) == (0o666, 0o777)
    assert (tmp_path / "job" / "umask").read_text().strip() == "0000"
    assert {
        oct(m) for n, m in modes(machine.home / "jobs" / "demo").items() if n.endswith("run.log")
    } == {"0o666"}
    assert modes(machine.home / "jobs" / "demo")["."] == 0o777

    for path in [machine.home, *machine.home.rglob("*")]:
        path.chmod(0o777)
    looked = machine.everstep("doctor", "--json")
    (storage,) = (c for c in json.loads(looked.stdout)["checks"] if "is open to other" in c["what"])
    assert (storage["state"], str(machine.home) in storage["what"]) == ("problem", True)
    again = machine.everstep("run", job, "--fresh")
    assert again.returncode == 0, again.stdout + again.stderr
    assert wide(machine.home) == {}
    assert modes(machine.home / "jobs" / "demo")["."] == 0o777, "the user's"


def test_a_folder_with_things_of_others_is_not_closed_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "shared"
    (home / "agents" / "one").mkdir(parents=True)
    (home / "theirs").mkdir()
    (home / "theirs" / "data").write_text("x")
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755)
    monkeypatch.setenv("EVERSTEP_HOME", str(home))
    made_home()
    assert "theirs in it does not belong to Everstep" in caplog.text
    assert wide(home).keys() == {".", "theirs", "theirs/data"}
    assert list(open_to_others(home)) == [home]


def test_a_link_is_not_followed_to_what_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("x")
    elsewhere.chmod(0o644)
    home = tmp_path / "home"
    home.mkdir()
    (home / "agents").symlink_to(elsewhere)
    (home / "worker.log").symlink_to(elsewhere)
    monkeypatch.setenv("EVERSTEP_HOME", str(home))
    made_home()
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o644
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
