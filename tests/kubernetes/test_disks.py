"""A disk that fails does so for every process of the machine, and for none any more once it is sound again.

Only root mounts disks, as it does the volumes of the other tests here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from everstep.protocol import wire
from tests.agent.pod import Pod
from tests.testbed.disk import Disk, mounted

WRITE = 'echo begun; read line; echo x >"$1/$line"; echo $?; read line; echo x >"$1/$line"; echo $?'
"""Twice, each time to the path of a line that comes."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path) as one:
        yield one


@pytest.mark.parametrize("failing", [Disk.read_only, Disk.full])
def test_a_namespace_that_begins_while_a_disk_fails_can_write_once_it_is_sound(
    disk: Disk, failing: Callable[[Disk], AbstractContextManager[None]]
) -> None:
    command = ["unshare", "--mount", "sh", "-c", WRITE, "sh", str(disk.folder)]
    pipe = subprocess.PIPE
    with failing(disk):
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.stdin.write("a\n")
        process.stdin.flush()
        assert process.stdout.readline() != "0\n"
    ends, _ = process.communicate("b\n")
    assert ends == "0\n"


def test_an_agent_names_a_disk_as_full_until_it_has_room_for_a_checkpoint(
    disk: Disk, pyz: Path, tmp_path: Path
) -> None:
    agent = Pod(pyz, tmp_path / "pod", "demo-0-1").start()
    try:
        with disk.full():
            problem = agent.ask("POST", wire.WRITABLE, {"path": str(disk.folder)})["problem"]
            assert problem == f"{disk.folder} is full, 0 bytes are free"
        assert agent.ask("POST", wire.WRITABLE, {"path": str(disk.folder)}) == {"problem": ""}
    finally:
        agent.end()
