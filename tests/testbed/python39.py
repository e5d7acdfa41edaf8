"""A Python 3.9 for images of jobs: the oldest that an agent has to run with.

`python -m tests.testbed.python39` prints the folder with it, made once per machine. It is that of Debian 11:
the packages of `python39.txt`, from the mirror that this machine's own packages come from.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.testbed.build import cache

PACKAGES = Path(__file__).with_name("python39.txt")
"""Lines of a SHA-256 and the path below a mirror of Debian."""
BIN = "bin"
"""The folder with `python3`, in the one that is made."""
_DOWNLOAD_S = 60.0


class NoPython(Exception):
    """It could not be made; the message says why."""


def folder() -> Path:
    """Where it is, or is to be."""
    return cache() / f"python39-{hashlib.sha256(PACKAGES.read_bytes()).hexdigest()[:12]}"


def environment(root: str) -> Mapping[str, str]:
    """Of an image that has it at this path, and its libraries."""
    return {
        "PATH": f"{root}/{BIN}:/usr/bin:/bin",
        "LD_LIBRARY_PATH": f"{root}/usr/lib/x86_64-linux-gnu",
    }


def made() -> Path:
    """The folder, made if it is not there. Raises NoPython."""
    if (done := folder()).is_dir():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=done.parent) as temporary:
        root = Path(temporary) / "root"
        address = mirror()
        for line in PACKAGES.read_text().splitlines():
            checksum, path = line.split()
            package = Path(temporary) / "package.deb"
            package.write_bytes(_downloaded(f"{address}/{path}", checksum))
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        (root / BIN).mkdir()
        (root / BIN / "python3").symlink_to("../usr/bin/python3.9")
        root.chmod(0o755)
        try:
            root.rename(done)
        except OSError:
            if not done.is_dir():  # else another process was first
                raise
    return done


def mirror() -> str:
    """The address of the mirror of Debian itself."""
    if shutil.which("apt-get") is None:
        raise NoPython("Python 3.9 comes as packages of Debian, and this machine has no apt-get")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    command += ["Origin: Debian", "Component: main"]
    mirrors = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    for one in mirrors:
        if one.rstrip("/").endswith("/debian"):
            return one.rstrip("/")
    raise NoPython(
        "no source of packages of this machine is a mirror of Debian; try: apt-get update"
    )


def _downloaded(address: str, checksum: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=_DOWNLOAD_S) as reply:
            content: bytes = reply.read()
    except OSError as error:
        raise NoPython(f"{address}: {error}") from None
    if hashlib.sha256(content).hexdigest() != checksum:
        raise NoPython(f"{address} is not the package that {PACKAGES.name} names")
    return content


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{made()}\n")
    except NoPython as error:
        sys.exit(f"error: {error}")
