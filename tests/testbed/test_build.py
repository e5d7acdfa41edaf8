"""Builds of the control plane, with a stand-in for `go` that writes down its calls."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.support.child import Child
from tests.support.patience import HUNG_S
from tests.testbed.build import HERE, PACKAGES, cache, kubernetes_version, locked

STAND_IN = """#!/bin/sh
if [ "$1" = env ]; then echo go1.26.8; exit; fi
while [ "$1" != -o ]; do shift; done
echo "$3" >> calls
echo $$ > pid
printf half > "$2"
while [ -e hold ]; do sleep 0.02; done
if [ -e fail ]; then echo "no such module" >&2; exit 1; fi
printf whole > "$2"
"""
"""`go build ... -o FILE PACKAGE`. Where the file `hold` is, it stays in the middle."""


class Machine:
    """A user's cache and a PATH with the stand-in first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        script = STAND_IN
        for word in ("calls", "pid", "hold", "fail"):
            script = script.replace(f" {word}", f" {folder / word}")
        (bin_folder / "go").write_text(script)
        (bin_folder / "go").chmod(0o755)
        self._env = {
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def build(self, name: str = "build") -> Child:
        return Child(
            [sys.executable, "-m", "tests.testbed.build"],
            name=name,
            log=self.folder / f"{name}.log",
            env=self._env,
            cwd=HERE.parents[1],
        )

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().split() if file.exists() else []

    async def until_building(self) -> None:
        async with asyncio.timeout(HUNG_S):
            while not list((self.folder / "cache").glob("everstep/testbed/*/tmp-*/*")):
                await asyncio.sleep(0.01)

    def built(self) -> dict[str, str]:
        """The programs and their content; a folder left by a killed build counts as one."""
        (folder,) = (self.folder / "cache" / "everstep" / "testbed").iterdir()
        return {
            path.name: path.read_text() if path.is_file() else ""
            for path in folder.iterdir()
            if path.name != "lock"
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_every_pinned_part_of_kubernetes_is_of_one_version() -> None:
    """A newer Kubernetes is a change of every line: one left behind builds, and behaves oddly."""
    lines = [
        line.split() for line in (HERE / "go.mod").read_text().splitlines() if "=> k8s" in line
    ]
    minor_and_patch = kubernetes_version().removeprefix("v1.")
    assert len(lines) == 33
    assert {(words[2], words[3]) for words in lines} == {
        (words[0], f"v0.{minor_and_patch}") for words in lines
    }


async def test_a_second_build_builds_nothing(machine: Machine) -> None:
    for _ in range(2):
        assert await machine.build().ended(within_s=HUNG_S) == 0
    assert machine.calls() == list(PACKAGES.values())
    assert machine.built() == dict.fromkeys(PACKAGES, "whole")


def test_a_source_is_found_on_a_machine_that_has_built_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no Go on its PATH either, so one is installed into the cache, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with locked(cache() / "go.lock"):
        assert cache().is_dir()


async def test_two_builds_at_once_build_each_program_once(machine: Machine) -> None:
    (machine.folder / "hold").touch()
    builds = [machine.build("first"), machine.build("second")]
    await machine.until_building()
    (machine.folder / "hold").unlink()
    assert [await build.ended(within_s=HUNG_S) for build in builds] == [0, 0]
    assert machine.calls() == list(PACKAGES.values())


async def test_a_killed_build_leaves_no_process_and_nothing_that_looks_whole(
    machine: Machine,
) -> None:
    (machine.folder / "hold").touch()
    build = machine.build()
    await machine.until_building()
    build.kill()
    go = int((machine.folder / "pid").read_text())
    async with asyncio.timeout(HUNG_S):
        while is_alive(go):
            await asyncio.sleep(0.01)
    assert PACKAGES.keys().isdisjoint(machine.built())
    (machine.folder / "hold").unlink()
    assert await machine.build().ended(within_s=HUNG_S) == 0
    assert machine.built() == dict.fromkeys(PACKAGES, "whole")


async def test_a_failed_build_is_one_line(machine: Machine) -> None:
    (machine.folder / "fail").touch()
    build = machine.build()
    assert await build.ended(within_s=HUNG_S) == 1
    *_, output_of_go, last = build.output().splitlines()
    assert output_of_go == "no such module"
    assert last.startswith("error: kube-apiserver was not built")
    assert machine.built() == {}


def is_alive(pid: int) -> bool:
    """Whether a process runs; a dead one may wait for the machine's first process to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
