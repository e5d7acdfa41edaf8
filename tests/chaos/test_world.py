"""A process that lives sees its wall clock step and its storage fail, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.world import HAS_COMPILER, World, Worlds, built

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the rows that need it are left out then, too"
)

COARSE = "time.CLOCK_REALTIME + 5"  # which is left alone
PROCESS = f"""
import datetime, os, sys, time
for line in sys.stdin:
    try:
        with open(line.strip(), "w") as file:
            file.write("x")
        end = "written"
    except OSError as error:
        end = error.strerror
    true = time.clock_gettime({COARSE})
    times = time.time(), datetime.datetime.now().timestamp()
    print(*(f"{{one - true:.0f}}" for one in times), end, flush=True)
"""


@contextmanager
def living(command: list[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **env}
    ) as one:
        yield one


def answer(process: subprocess.Popen[str], path: Path) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{path}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_the_world_of_a_living_process_changes_and_changes_back(tmp_path: Path) -> None:
    world, library = World.new(tmp_path / "world"), built(tmp_path)
    (tmp_path / "disk").mkdir()
    inside, outside = tmp_path / "disk" / "a", tmp_path / "b"
    with living([sys.executable, "-c", PROCESS], world.variables(library)) as process:
        assert answer(process, inside) == "0 0 written"
        with world.ahead(3600.0):
            assert answer(process, inside) == "3600 3600 written"
        with world.ahead(-60.5), world.without_storage(tmp_path / "disk"):
            assert answer(process, inside) in {
                "-60 -60 Input/output error",
                "-61 -61 Input/output error",
            }
            assert answer(process, outside).endswith("written")
        assert answer(process, inside) == "0 0 written"


def test_an_agent_is_in_the_world_of_its_node(tmp_path: Path) -> None:
    nodes = ("n0", "n1")
    worlds = Worlds.new(tmp_path / "worlds", nodes)
    with worlds["n1"].ahead(60.0):
        ends = []
        for node in nodes:
            command = [worlds.python(), "-c", PROCESS, "--slot", "0", "--node", node]
            with living(command, {}) as process:
                ends.append(answer(process, tmp_path / "file"))
    assert ends == ["0 0 written", "60 60 written"]
