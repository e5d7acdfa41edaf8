"""Memory that a process may still take. Standard library, Python 3.9: agents and train library use it too."""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def free_bytes(*, cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int | None:
    """Memory that is free on the machine and within the limit of the container; None: unknown."""
    limits = [
        free for free in (_free_of_machine(meminfo), _free_of_container(cgroup)) if free is not None
    ]
    return min(limits, default=None)


def _free_of_machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(available[0]) * 1024 if available else None


def _free_of_container(cgroup: Path) -> int | None:
    """What its limit leaves; the kernel takes back cached files, so they count as free."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return int(limit) - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return None
