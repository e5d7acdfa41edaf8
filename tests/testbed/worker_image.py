"""The image of the workers, built from deploy/Dockerfile, and containers of it. It takes root.

Its base is made from packages of Debian, as no registry of images is needed then: on Debian
`apt-get install buildah debootstrap runc`. Both are kept in the user's cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testbed.build import cache
from tests.testbed.python39 import mirror
from tests.testbed.shared import ROOT

PROGRAMS = ("buildah", "debootstrap", "runc")
BASE, IMAGE = "localhost/python:bookworm", "localhost/everstep:test"
"""In place of the image with which the Dockerfile begins, and what comes of it."""
_DEBIAN, _PACKAGES = "bookworm", "python3,python3-pip,ca-certificates"
_BASE_FILE = "FROM scratch\nADD . /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n"


class CannotBuild(Exception):
    """This machine cannot build images; the message says what it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What to start in a container."""

    args: Sequence[str] = ()  # none: what the image names
    env: Mapping[str, str] | None = None
    files: Mapping[str, Path] | None = None  # by their path inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A built one."""

    root: Path  # its files, mounted
    config: Mapping[str, Any]  # user, variables and command, as the Dockerfile has them

    def bundle(self, folder: Path, container: Container) -> Path:
        """A folder for `runc run --bundle`: as deploy/kubernetes starts it, on the machine's network."""
        folder.mkdir()
        uid, gid = map(int, self.config["User"].split(":"))
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
        ]
        mounts += [
            {"destination": inside, "type": "bind", "source": str(path), "options": ["bind", "ro"]}
            for inside, path in (container.files or {}).items()
        ]
        variables = [f"{name}={value}" for name, value in (container.env or {}).items()]
        process = {
            "user": {"uid": uid, "gid": gid},
            "args": list(container.args or self.config["Cmd"]),
            "env": [*self.config["Env"], *variables],
            "cwd": self.config["WorkingDir"],
            "noNewPrivileges": True,
            "capabilities": {},
        }
        content = {
            "ociVersion": "1.0.2",
            "process": process,
            "root": {"path": str(self.root), "readonly": True},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
        }
        (folder / "config.json").write_text(json.dumps(content))
        return folder


def _buildah(*words: str | Path) -> str:
    """What it prints. Raises CannotBuild."""
    storage = cache() / "images"
    command: list[str | Path] = ["buildah", "--root", storage / "root"]
    command += ["--runroot", storage / "run", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBuild(f"buildah {words[0]}: {done.stderr[-4_000:]}")
    return done.stdout.strip()


@contextmanager
def built() -> Iterator[Image]:
    """The image of this clone, mounted meanwhile. Raises CannotBuild."""
    if lacking := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise CannotBuild(
            f"there is no {', no '.join(lacking)}: apt-get install {' '.join(PROGRAMS)}"
        )
    if os.geteuid() != 0:
        raise CannotBuild("only root can build images here")
    _build_base()
    words: list[str | Path] = ["--isolation", "chroot", "--network", "host", "--pull-never"]
    for path in (Path("/etc/ssl/certs"), Path("/etc/pip.conf")):  # the way to the package index
        words += ["--volume", f"{path}:{path}:ro"] if path.exists() else []
    words += ["--build-arg", f"PYTHON={BASE}"]
    _buildah("build", *words, "--layers", "-f", ROOT / "deploy/Dockerfile", "-t", IMAGE, ROOT)
    config = json.loads(_buildah("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
    name = _buildah("from", "--pull-never", IMAGE)
    try:
        yield Image(root=Path(_buildah("mount", name)), config=config)
    finally:
        _buildah("rm", name)


def _build_base() -> None:
    """A Debian whose Python takes packages as that of the official image does."""
    if BASE in _buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
        return
    root = cache() / f"debian-{os.getpid()}"
    try:
        words = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _DEBIAN]
        done = subprocess.run([*words, root, mirror()], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotBuild(f"debootstrap: {done.stdout[-2_000:]}")
        for path in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            path.unlink()
        (root / "usr/bin/python").symlink_to("python3")
        (cache() / "Base").write_text(_BASE_FILE)
        _buildah("build", "-f", cache() / "Base", "-t", BASE, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
