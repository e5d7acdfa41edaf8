"""The demo on Kubernetes, as `make demo-kubernetes` runs it."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.demos import (
    assert_ended,
    assert_nothing_is_left,
    demo,
    processes_of,
    whole_output,
)
from tests.support.machine import until_printed
from tests.support.patience import HUNG_S

DEMO = [sys.executable, "-m", "examples.demo_kubernetes"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of a short name: sockets below it have names of at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="everstep-") as name:
        Path(name).chmod(0o755)  # the ranks are another user
        yield Path(name)


def mounts(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


@pytest.mark.long
def test_three_faults_of_a_cluster_cost_the_demo_no_bit_of_its_weights(folder: Path) -> None:
    with demo(DEMO, folder) as process:
        printed = whole_output(process)
    assert process.returncode == 0, printed
    assert "Traceback" not in printed
    _, _, table = printed.partition("FROM STEP")
    rows = [line for line in table.splitlines() if line[:1].isdigit()]
    # A rank that misses its peer may be seen to end first. Its restart in place gives way then.
    done = [row for row in rows if "in_place  downgrade" not in row]
    levels = ["in_place  started", "pod       started", "pod       started"]
    assert len(done) == len(levels), printed
    for row, level in zip(done, levels, strict=True):
        assert level in row
    # Restarted in place: the second look shows the pods of the first one.
    looks = [part.splitlines()[1:6] for part in printed.split("  look ")[1:]]
    assert len(looks) == 5, printed  # the last one shows that no pod is left
    names = [[line.split()[0] for line in look[1:]] for look in looks[:4]]
    assert names[0] == names[1]
    for look, slot in ((2, 1), (3, 3)):
        replaced = {*names[look]} - {*names[look - 1]}
        assert len(replaced) == 1, printed
        assert replaced.pop().startswith(f"demo-{slot}-g"), printed
    assert "They are equal, to the last bit." in printed
    assert "no pod of the job is left" in printed
    assert_nothing_is_left(folder)
    assert mounts(folder) == []


def test_a_signal_ends_every_process_of_the_cluster(folder: Path) -> None:
    with demo(DEMO, folder) as process:
        until_printed(process, "main running")
        assert processes_of(folder)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 130, printed
    assert_ended(printed, folder=folder)
    assert mounts(folder) == []
