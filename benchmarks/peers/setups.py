"""Each launcher in each of its setups, ready to be started; or the reason why it cannot be."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from benchmarks.peers import launchers, ours
from benchmarks.peers.plan import LIMIT_S, STATE
from benchmarks.peers.pods import JOBSET
from benchmarks.peers.ranks import ROOT, Running
from tests.testbed.build import CONTROL_PLANE, kubernetes_version

BIN = ROOT / ".venv-peers" / "bin"
NEWEST_BIN = ROOT / ".venv-peers-3.12" / "bin"
PYTHON = BIN / "python3"

Start = Callable[[Path], AbstractAsyncContextManager[Running]]

_OUR = partial(ours.everstep, python=PYTHON)
_TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
_LIMIT = {"GROUP_TIMEOUT_S": str(LIMIT_S)}
_BEATS = {"HEARTBEATS": "1"}


def _nvrx(version: str, folder: Path) -> dict[tuple[str, str], Start]:
    one = launchers.ft_launcher(folder, LIMIT_S)
    two = launchers.ft_launcher_on_two(folder, LIMIT_S)
    return {
        (version, "plain"): partial(launchers.on_one_node, command=one, env=_BEATS),
        (version, "state"): partial(launchers.on_one_node, command=one, env=_BEATS | STATE),
        (version, "two nodes"): partial(launchers.on_two_nodes, command=two, env=_BEATS),
    }


def setups() -> Mapping[tuple[str, str], Start]:
    """The ways to start, by launcher and setup."""
    torchrun = launchers.torchrun(PYTHON)
    on_two = launchers.torchrun_on_two(PYTHON)
    return {
        ("everstep", "list"): partial(_OUR, env={}, spec={"prewarm": ["torch"]}),
        ("everstep", "auto"): partial(_OUR, env={}, spec={"prewarm": "auto"}),
        ("everstep", "off"): partial(_OUR, env={}, spec={"prewarm": "off"}),
        ("everstep", "process"): partial(
            _OUR, env={"HOW": "survivors"}, spec={"prewarm": ["torch", "torch._dynamo"]}
        ),
        ("everstep", "snapshots"): partial(
            _OUR, env={"HOW": "snapshots", **STATE}, spec={"prewarm": ["torch"]}
        ),
        ("everstep", "two nodes"): partial(
            _OUR, env={}, nodes=2, spec={"prewarm": ["torch"], "spares": 1}
        ),
        ("torchrun", "plain"): partial(launchers.on_one_node, command=torchrun, env=_TORCHRUN),
        ("torchrun", "state"): partial(
            launchers.on_one_node, command=torchrun, env=_TORCHRUN | STATE
        ),
        ("torchrun", "time limit"): partial(
            launchers.on_one_node, command=torchrun, env=_TORCHRUN | _LIMIT
        ),
        ("torchrun", "two nodes"): partial(launchers.on_two_nodes, command=on_two, env=_TORCHRUN),
        **_nvrx("NVRx 0.4.1", BIN),
        **_nvrx("NVRx 0.7.0", NEWEST_BIN),
        ("torchft", "plain"): partial(launchers.torchft, python=PYTHON, env=_LIMIT),
        ("torchft", "state"): partial(launchers.torchft, python=PYTHON, env=_LIMIT | STATE),
    }


def missing(launcher: str) -> str | None:
    """Why it cannot be run here; None: it can."""
    if launcher == "JobSet" or launcher.startswith("everstep and"):
        return _missing_in_pods(launcher)
    if launcher == "NVRx 0.7.0" and not (NEWEST_BIN / "ft_launcher").exists():
        return "its wheel needs Python 3.12, which was not found; name one: PYTHON312=/path/to/python3.12"
    program = {"torchft": "torchft_lighthouse", "NVRx 0.4.1": "ft_launcher"}.get(launcher)
    if program and not (BIN / program).exists():
        return "its package could not be installed"
    return None


def _missing_in_pods(launcher: str) -> str | None:
    if os.geteuid() != 0:
        return "the test cluster needs root"
    if CONTROL_PLANE.missing():
        return "the test cluster is not built: make testbed"
    if launcher == "JobSet" and JOBSET.missing():
        return "its controller could not be built from its Go module"
    return None


def versions() -> dict[str, str]:
    """The versions of all that is compared and is there."""
    found = {"PyTorch": _version(PYTHON, "torch"), "torchft": _version(PYTHON, "torchft")}
    found["NVRx 0.4.1"] = _version(PYTHON, "nvidia-resiliency-ext")
    found["NVRx 0.7.0"] = _version(NEWEST_BIN / "python3", "nvidia-resiliency-ext")
    module = (JOBSET.folder / "go.mod").read_text()
    jobset = [line.split()[1] for line in module.splitlines() if "sigs.k8s.io/jobset v" in line]
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return {
        "everstep": f"commit {commit}",
        **{name: version for name, version in found.items() if version},
        "JobSet": jobset[0],
        "Kubernetes": kubernetes_version(),
    }


def _version(python: Path, package: str) -> str:
    if not python.exists():
        return ""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    reply = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return reply.stdout.strip()
