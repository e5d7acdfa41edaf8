"""Checks of the machine before a run starts there. They change nothing.

Each check runs in a thread of its own, for a limited time. If a name server does not answer, or a mount is
dead, that check fails and no other one waits for it.
"""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from everstep.agent.observing import hardware
from everstep.agent.storage import space
from everstep.protocol import wire

GB = 2**30
KB = 2**10
SHM = "/dev/shm"  # where data loaders pass their batches
INFINIBAND = Path("/sys/class/infiniband")

NAMES = ("dns", "disk-size-root", "disk-size-shm", "disk-size-cache", "ulimit", "gpu-check")
"""Every check that a command may request (`checks_of`)."""

HARDWARE = frozenset({"gpu-check"})
"""Checks that fail because of the machine; for the others it only is not as this job needs it."""


class Measured(NamedTuple):
    """The value that one check measured, and the value it needs."""

    ok: bool
    measured: str
    needed: str


Check = Callable[[], Measured]


def checks_of(command: wire.CheckCommand) -> dict[str, Check]:
    """The checks that this command requests, by name."""
    least = wire.Thresholds(**command["thresholds"])
    checks_by_name: dict[str, Check] = {
        "dns": lambda: names(command["hosts"]),
        "disk-size-root": lambda: room("/", least.root_gb),
        "disk-size-shm": lambda: room(SHM, least.shm_gb),
        "disk-size-cache": lambda: room(least.cache, least.cache_gb),
    }
    if has_infiniband() if least.ulimits is None else least.ulimits:
        checks_by_name["ulimit"] = lambda: limits(least)
    if command["accelerator"] != "none" and command["devices"] > 0:
        checks_by_name["gpu-check"] = lambda: devices(command["accelerator"], command["devices"])
    return checks_by_name


class RunningChecks:
    """The checks of one generation, all started at once. A result never changes once it was returned."""

    def __init__(self, generation: int, checks: Mapping[str, Check], *, within_s: float) -> None:
        self.generation = generation
        self._within_s = within_s
        self._began = time.monotonic()
        self._names = (*checks,)
        self._results: dict[str, wire.CheckSeen] = {}
        self._changed = threading.Condition()
        for name, check in checks.items():
            threading.Thread(target=self._run, args=(name, check), daemon=True).start()

    def state(self, wait_s: float) -> wire.CheckState:
        """The results of all checks as soon as they are done, or of those that are after that time."""
        left_s = self._began + self._within_s - time.monotonic()
        with self._changed:
            self._changed.wait_for(self._are_done, max(0.0, min(wait_s, left_s)))
        if time.monotonic() >= self._began + self._within_s:
            for name in self._names:
                self._store(name, _failed(f"no answer within {self._within_s:g} s"))
        with self._changed:
            done = [self._results[name] for name in self._names if name in self._results]
            return {"generation": self.generation, "done": self._are_done(), "checks": done}

    def _are_done(self) -> bool:
        return len(self._results) == len(self._names)

    def _run(self, name: str, check: Check) -> None:
        try:
            measured = check()
        except Exception as error:  # noqa: BLE001  # whatever it is, this check did not succeed
            measured = _failed(repr(error))
        self._store(name, measured)

    def _store(self, name: str, measured: Measured) -> None:
        """Store a result. The first one counts: a check that ends too late changes nothing."""
        result: wire.CheckSeen = {
            "name": name,
            "ok": measured.ok,
            "measured": measured.measured,
            "needed": measured.needed,
            "hardware": name in HARDWARE,
            "took_s": round(time.monotonic() - self._began, 3),
        }
        with self._changed:
            self._results.setdefault(name, result)
            self._changed.notify_all()


def _failed(measured: str) -> Measured:
    return Measured(ok=False, measured=measured, needed="an answer")


# -- Each check ---------------------------------------------------------------------------------


def names(hosts: list[str]) -> Measured:
    """Whether every name is found."""
    missing = [host for host in hosts if not _is_found(host)]
    summary = f"{', '.join(missing)} not found" if missing else f"{', '.join(hosts)} found"
    return Measured(ok=not missing, measured=summary, needed="every host name is found")


def _is_found(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):  # the second: no name at all
        return False
    return True


def room(path: str, least_gb: float) -> Measured:
    """Measure the free space at the path, or at the folder in which it would be created."""
    there = space.nearest(Path(path))
    free_gb = space.free_bytes(there) / GB
    where = path if str(there) == path else f"{there} (there is no {path})"
    return Measured(
        ok=free_gb > least_gb,
        measured=f"{free_gb:.1f} GB free in {where}",
        needed=f"more than {least_gb:g} GB",
    )


def limits(least: wire.Thresholds) -> Measured:
    """The limits that a process of this place has."""
    rows = (
        ("locked memory", _limit(resource.RLIMIT_MEMLOCK, KB), least.locked_kb, " KB"),
        ("open files", _limit(resource.RLIMIT_NOFILE, 1), least.open_files, ""),
        ("stack", _limit(resource.RLIMIT_STACK, KB), least.stack_kb, " KB"),
        ("user processes", _limit(resource.RLIMIT_NPROC, 1), least.user_processes, ""),
    )
    here = (f"{name} {_amount(amount, unit)}" for name, amount, _, unit in rows)
    needed = (f"{name} {_amount(number, unit)}" for name, _, number, unit in rows)
    return Measured(
        ok=all(amount is None or amount > number for _, amount, number, _ in rows),
        measured=", ".join(here),
        needed=f"more than {', '.join(needed)}",
    )


def _amount(number: int | None, unit: str) -> str:
    return "unlimited" if number is None else f"{number}{unit}"


def _limit(kind: int, unit: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft // unit


def has_infiniband() -> bool:
    return INFINIBAND.is_dir() and any(INFINIBAND.iterdir())


# -- Devices ------------------------------------------------------------------------------------


def devices(accelerator: str, least: int) -> Measured:
    """Whether so many devices of this kind are found; simulated ones are there by being named."""
    kind = hardware.KINDS.get(accelerator)
    count = least if kind is None else hardware.count(kind)
    return Measured(
        ok=count >= least,
        measured=f"{count} {accelerator} devices",
        needed=f"at least {least}",
    )
