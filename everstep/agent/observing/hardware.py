"""Which devices a machine has, by its vendors' tools and device files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from everstep.agent.processes.tool import ask

TOOL_S = 10.0
PLACES = ("/usr/local/bin", "/usr/local/sbin", "/usr/bin")
"""Where tools are searched if they are not on the PATH."""


class DeviceKind(NamedTuple):
    """How devices of one kind are found: by their tool, and without it by their files."""

    tool: str
    words: tuple[str, ...]
    mark: str  # at the beginning of each line that lists a device
    files: str


KINDS: Mapping[str, DeviceKind] = {
    "nvidia": DeviceKind(tool="nvidia-smi", words=("-L",), mark="GPU ", files="nvidia[0-9]*"),
    "ascend": DeviceKind(
        tool="npu-smi", words=("info", "-l"), mark="NPU ID", files="davinci[0-9]*"
    ),
}


def find(program: str) -> str | None:
    """The path of the program, also if it is not on the PATH; None if it is not installed."""
    return which(program) or which(program, path=os.pathsep.join(PLACES))


def which(program: str, path: str | None = None) -> str | None:
    """The path of the program; None if it is not in the folders of `path`, by default those of PATH."""
    import shutil  # with three compressors, of which no start has a use

    return shutil.which(program, path=path)


def count(kind: DeviceKind) -> int:
    """Count the devices of this kind. Raises OSError."""
    path = find(kind.tool)
    return _files(kind) if path is None else listed(path, kind)


def _files(kind: DeviceKind) -> int:
    return len(list(Path("/dev").glob(kind.files)))


def listed(path: str, kind: DeviceKind) -> int:
    """Count the devices that their tool lists. Raises OSError."""
    answer = ask((path, *kind.words), within_s=TOOL_S, running=set())
    if answer.returncode:
        raise OSError(f"{path} ended with exit code {answer.returncode}")
    return sum(line.strip().startswith(kind.mark) for line in answer.stdout.splitlines())


# -- A machine and its devices ------------------------------------------------------------------

AUTO = "auto"
SIMULATED = 8
"""Number of simulated devices on a machine that has none."""


class Devices:
    """The devices of each node of a machine, and why these are assumed."""

    def __init__(self, kind: str, count: int, why: str) -> None:
        self.kind = kind
        self.count = count
        self.why = why

    def __str__(self) -> str:
        return f"{self.count} {self.kind} device{'' if self.count == 1 else 's'}"


def devices(kind: str = AUTO, count: int | None = None) -> Devices:
    """The devices of this machine: of the configured kind and number, else those that are found."""
    detected = _here(KINDS) if kind == AUTO else _devices_of(kind)
    return detected if count is None else Devices(detected.kind, count, detected.why)


def _devices_of(kind: str) -> Devices:
    if kind not in KINDS:
        return Devices(kind, 0 if kind == "none" else SIMULATED, "as configured")
    detected = _here({kind: KINDS[kind]})
    if detected.kind == kind:
        return detected
    return Devices(kind, detected.count, f"as configured, though {KINDS[kind].tool} lists none")


def _here(kinds: Mapping[str, DeviceKind]) -> Devices:
    for name, kind in kinds.items():
        try:
            many, why = count(kind), f"{kind.tool} lists them"
        except OSError:  # it is installed, but does not answer
            many, why = _files(kind) or 1, f"{kind.tool} is here and does not answer"
        if many:
            return Devices(name, many, why)
    tools = " nor ".join(kind.tool for kind in kinds.values())
    return Devices("simulated", SIMULATED, f"neither {tools} lists any")
