"""`everstep run` on a disk that fills up while it watches. A real filesystem, so as root alone."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.local.commands.test_sharing import job_until
from tests.support.machine import Machine, until_printed
from tests.support.patience import HUNG_S

CHUNK = b"0" * 65_536


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """One whose state directory is on a small disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "everstep", disk], check=True)
    test_machine = Machine.at(disk / "home")
    test_machine.env["EVERSTEP_PATIENCE_S"] = "2"
    yield test_machine
    test_machine.end()
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(path: Path) -> None:
    """Write to the file until its disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(CHUNK):
            pass
    free = os.statvfs(path).f_bavail
    assert not free, errno.ENOSPC


@pytest.mark.long
def test_a_disk_that_fills_up_ends_the_run_and_the_same_run_goes_on_with_the_job(
    machine: Machine, tmp_path: Path
) -> None:
    end_file, filling = tmp_path / "end", machine.home.parent / "filling"
    document = job_until(end_file, tmp_path / "job")
    with machine.running("run", document) as process:
        until_printed(process, "main running")
        fill(filling)
        output, _ = process.communicate(timeout=HUNG_S)
    sentence = output.splitlines()[-1]
    assert process.returncode == 4, output
    assert f"less than 1 MB is left in {machine.home}" in sentence, output
    assert sentence.endswith("then the same `everstep run` goes on with single"), output
    assert "Traceback" not in output
    assert machine.servers() == machine.workers() == []
    filling.unlink()
    end_file.touch()
    again = machine.everstep("run", document)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "main completed" in again.stdout
