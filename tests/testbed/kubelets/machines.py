"""Nodes with real kubelets: each has a containerd, a cgroup and a network of its own on this machine.

They need root, cgroups of version 1 or 2 that may be written, and the programs `containerd`, `ctr`, `runc`,
`containerd-shim-runc-v2`, `busybox` and the network plugins `bridge`, `host-local` and `loopback`: on Debian
`apt-get install containerd runc containernetworking-plugins busybox-static`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.processes import free_port
from tests.support.child import Child
from tests.support.patience import HUNG_S
from tests.testbed.build import KUBELET
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.kubelets import image

PROGRAMS = (
    "containerd",
    "ctr",
    "runc",
    "containerd-shim-runc-v2",
    "busybox",
    "unshare",
    "nsenter",
    "ip",
)
PLUGINS = ("bridge", "host-local", "loopback")
CGROUPS = Path("/sys/fs/cgroup")
MACHINE, PAUSE = "docker.io/library/machine:1", "localhost/pause:1"
_PACKAGES = "apt-get install containerd runc containernetworking-plugins busybox-static"


class CannotRun(Exception):
    """This machine cannot run real kubelets; the message says what it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The programs of the machine, and its network plugins."""

    path: str
    plugins: Path

    @classmethod
    def installed(cls) -> Tools:
        """Raises CannotRun with everything that is missing."""
        roots = [Path(one) for one in os.environ.get("EVERSTEP_KUBELET_TOOLS", "/").split(":")]
        folders = [root / name for root in roots for name in ("usr/bin", "usr/sbin", "bin", "sbin")]
        path = ":".join([*map(str, folders), os.environ["PATH"]])
        lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
        every = [root / "usr/lib/cni" for root in roots] + [root / "opt/cni/bin" for root in roots]
        plugins = [one for one in every if all((one / name).exists() for name in PLUGINS)]
        if not plugins:
            lacking.append(f"the network plugins {', '.join(PLUGINS)}")
        if os.geteuid() != 0:
            lacking.append("the rights of root")
        if not os.access(CGROUPS / "pids", os.W_OK) and not _is_unified():
            lacking.append(f"cgroups that may be written below {CGROUPS}")
        if lacking:
            raise CannotRun(f"real kubelets need {', '.join(lacking)}; on Debian: {_PACKAGES}")
        return cls(path=path, plugins=plugins[0])

    def program(self, name: str) -> str:
        tool = shutil.which(name, path=self.path)
        assert tool is not None
        return tool


def _is_unified() -> bool:
    return (CGROUPS / "cgroup.controllers").exists()


@dataclass(slots=True)
class Node:
    """One machine: a containerd that outlives its kubelet, as on a real one."""

    name: str
    folder: Path
    number: int
    containerd: Child
    kubelet: Child | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "c.sock"

    @property
    def cgroup(self) -> str:
        return f"/everstep-{self.folder.parent.name}-{self.number}"


@dataclass(slots=True)
class RealMachines:
    """What `Machines` is for the process kubelet, as far as real kubelets can do it."""

    access: ClusterAccess
    folder: Path  # of a short name: sockets in it have names of at most 107 characters
    tools: Tools
    nodes: dict[str, Node] = field(default_factory=dict)

    @classmethod
    def at(cls, access: ClusterAccess, folder: Path) -> RealMachines:
        folder.mkdir(parents=True)
        return cls(access, folder, Tools.installed())

    async def add_node(self, name: str, *, labels: Mapping[str, str]) -> None:
        """Return when the kubelet answers that it is well."""
        used = {node.number for node in self.nodes.values()}
        number = secrets.choice([*{*range(1, 250)} - used])
        folder = self.folder / f"n{len(self.nodes)}"
        folder.mkdir()
        containerd = Child(
            ["unshare", "--mount", "sh", "-c", self._boot(folder, number)],
            name="containerd",
            log=folder / "containerd.log",
            env={"PATH": self.tools.path},
        )
        node = Node(name, folder, number, containerd)
        self.nodes[name] = node
        await containerd.until(lambda: self._answers(node), within_s=HUNG_S)
        for ref, content in self._images().items():
            file = folder / "image.tar"
            file.write_bytes(content)
            self._ctr(node, "images", "import", "--snapshotter", "overlayfs", str(file))
            assert ref in self._ctr(node, "images", "ls", "-q")
        _make_cgroups(node.cgroup)
        await self._start_kubelet(node, labels)

    def _boot(self, folder: Path, number: int) -> str:
        """A script that becomes containerd. Folders that no setting moves are the node's own."""
        lines = []
        for name in ("/var/log", "/var/lib/kubelet"):
            target = folder / name.strip("/")
            target.mkdir(parents=True)
            lines.append(f"mkdir -p {name} && mount --bind {target} {name}")
        config = self._containerd(folder, number)
        lines.append(f"exec {self.tools.program('containerd')} --config {config}")
        return " && ".join(lines)

    async def _start_kubelet(self, node: Node, labels: Mapping[str, str]) -> None:
        (node.folder / "kubelet").mkdir(exist_ok=True)
        config = node.folder / "kubelet.json"
        config.write_text(json.dumps(self._kubelet(node, port=free_port(), health=free_port())))
        words = ",".join(f"{key}={value}" for key, value in labels.items())
        node.kubelet = Child(
            [
                # Its volumes are mounts, which the containers of containerd are to see.
                "nsenter",
                f"--target={node.containerd.pid}",
                "--mount",
                str(KUBELET.binaries_folder() / "kubelet"),
                f"--config={config}",
                f"--kubeconfig={self.access.kubeconfig}",
                f"--hostname-override={node.name}",
                f"--root-dir={node.folder / 'kubelet'}",
                f"--cert-dir={node.folder / 'certificates'}",
                f"--node-labels={words}",
            ],
            name="kubelet",
            log=node.folder / "kubelet.log",
            env={"PATH": self.tools.path},
        )
        log = node.folder / "kubelet.log"

        async def is_registered() -> bool:
            return "Successfully registered node" in log.read_text(errors="replace")

        await node.kubelet.until(is_registered, within_s=HUNG_S)

    # -- faults ----------------------------------------------------------------------------------

    def kill_container(self, uid: str) -> None:
        """SIGKILL to every process of a pod's own."""
        mark = f"EVERSTEP_POD_UID={uid}".encode()
        for pid in _processes():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)

    def kill_kubelet(self, name: str) -> None:
        """What it started lives on."""
        kubelet = self.nodes[name].kubelet
        assert kubelet is not None
        kubelet.kill()

    def power_off(self, name: str) -> None:
        """Everything of the node is gone at once, and nothing is reported."""
        node = self.nodes[name]
        self.kill_kubelet(name)
        _kill_group(node.cgroup)
        node.containerd.kill()

    def stop(self) -> None:
        """End everything, in an order that leaves nothing behind. Safe to repeat."""
        for node in self.nodes.values():
            if node.kubelet is not None:
                node.kubelet.kill()
            _kill_group(node.cgroup)
            if node.containerd.returncode is None:
                for name in self._ctr(node, "tasks", "ls", "-q").split():
                    self._ctr(node, "tasks", "rm", "--force", name)
                for name in self._ctr(node, "containers", "ls", "-q").split():
                    self._ctr(node, "containers", "rm", name)
            node.containerd.kill()
            _end_shims(node.socket)
            for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
                target = line.split()[1]
                if target.startswith(str(node.folder)):
                    subprocess.run(["umount", "--lazy", target], check=False)
            subprocess.run(
                [self.tools.program("ip"), "link", "delete", _bridge(node.number)],
                check=False,
                capture_output=True,
            )
            _remove_cgroups(node.cgroup)
        self.nodes.clear()

    # -- settings --------------------------------------------------------------------------------

    def _containerd(self, folder: Path, number: int) -> Path:
        network = folder / "network"
        network.mkdir()
        (network / "10-bridge.conflist").write_text(json.dumps(_network(number, folder)))
        config = folder / "containerd.toml"
        config.write_text(f"""
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
address = "{folder}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{self.tools.program("runc")}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{self.tools.plugins}"
conf_dir = "{network}"
""")
        return config

    def _kubelet(self, node: Node, *, port: int, health: int) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": port,
            "healthzPort": health,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{node.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": node.cgroup,
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {
                "memory.available": "1Mi",
                "nodefs.available": "0%",
                "imagefs.available": "0%",
            },
            "localStorageCapacityIsolation": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "resolvConf": "",
        }

    def _images(self) -> Mapping[str, bytes]:
        busybox = Path(self.tools.program("busybox"))
        return {MACHINE: image.machine(MACHINE), PAUSE: image.pause(PAUSE, busybox)}

    async def _answers(self, node: Node) -> bool:
        return node.socket.exists() and bool(self._ctr(node, "version"))

    def _ctr(self, node: Node, *words: str) -> str:
        ended = subprocess.run(
            [
                self.tools.program("ctr"),
                "--address",
                str(node.socket),
                "--namespace",
                "k8s.io",
                *words,
            ],
            env={"PATH": self.tools.path},
            capture_output=True,
            text=True,
            timeout=HUNG_S,
            check=False,
        )
        return ended.stdout


def _bridge(number: int) -> str:
    return f"everstep{number}"


def _network(number: int, folder: Path) -> dict[str, Any]:
    """The network of the node's pods. Nothing leaves the machine: there is no gateway to anywhere else."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": f"10.213.{number}.0/24"}]],
        "dataDir": str(folder / "addresses"),
    }
    bridge = {"type": "bridge", "bridge": _bridge(number), "isGateway": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": f"pods-{number}", "plugins": [bridge]}


def _controllers() -> Iterator[Path]:
    if _is_unified():
        yield CGROUPS
        return
    for one in CGROUPS.iterdir():
        if one.is_dir() and not one.is_symlink():
            yield one


def _make_cgroups(name: str) -> None:
    for controller in _controllers():
        group = controller / name.strip("/")
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (group / setting).exists() and not _is_unified():
                (group / setting).write_text((controller / setting).read_text())


def _kill_group(name: str) -> None:
    """Send SIGKILL to the processes in the node's cgroup until there are none."""
    kill_until_none(lambda: _running_in(name), name, within_s=HUNG_S)


def kill_until_none(
    running: Callable[[], Iterable[int]], name: str, *, within_s: float, pause_s: float = 0.01
) -> None:
    """Send SIGKILL to what runs until nothing does. Raises TimeoutError with what is left then."""
    gives_up_at = time.monotonic() + within_s
    while pids := sorted(set(running())):
        if time.monotonic() >= gives_up_at:
            left = " ".join(map(str, pids))
            raise TimeoutError(f"{name} still has processes {left} {within_s:g} s after SIGKILL")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(pause_s)


def _running_in(name: str) -> Iterator[int]:
    for group in _groups_below(name):
        with contextlib.suppress(OSError):  # it has just been removed
            yield from map(int, (group / "cgroup.procs").read_text().split())


def _remove_cgroups(name: str) -> None:
    for group in _groups_below(name):
        with contextlib.suppress(OSError):
            group.rmdir()


def _groups_below(name: str) -> Iterator[Path]:
    """The node's cgroups of all controllers, the innermost first."""
    for controller in _controllers():
        for folder, _, _ in os.walk(controller / name.strip("/"), topdown=False):
            yield Path(folder)


def _end_shims(socket: Path) -> None:
    for pid in _processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"shim" in words[0] and str(socket).encode() in words:
                os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        yield int(entry.name)
