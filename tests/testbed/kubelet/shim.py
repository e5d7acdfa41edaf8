"""Runs one container and writes down how it ended, also when the kubelet is gone.

`python -I -S shim.py FOLDER` reads `FOLDER/spec.json`. It uses only the standard library. The container gets
namespaces of its own for processes, mounts and the host name. Its root is the machine's root under a
writable layer in FOLDER: every program of the machine is in the "image", mount paths exist exactly as the
pod names them, and nothing is written to the machine.

Files in FOLDER: `running.json` once the command runs, `exit.json` when no process of the container is left.
The container dies with this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID = 0x0002_0000, 0x0400_0000, 0x2000_0000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x4_0000
PR_SET_PDEATHSIG = 1
CANNOT_START = 128
"""Exit code that a kubelet reports for a command that could not be started."""

Spec = dict[str, Any]
"""Fields of `ContainerSpec`."""

libc = ctypes.CDLL(None, use_errno=True)


def main(folder: Path) -> None:
    spec = json.loads((folder / "spec.json").read_text())
    error_reader, error_writer = os.pipe()  # closes by itself when the command is executed
    try:
        make_root(folder, spec)
        pid = os.fork()
    except OSError as error:
        write(folder, "exit", {"code": CANNOT_START, "at": time.time(), "error": str(error)})
        return
    if pid == 0:
        os.close(error_reader)
        become_container(folder, spec, error_writer)
    os.close(error_writer)
    with os.fdopen(error_reader) as reader:
        failure = reader.read()
    if not failure:
        write(folder, "running", {"pid": pid, "at": time.time()})
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    ending: dict[str, float | str] = {"code": code if code >= 0 else 128 - code, "at": time.time()}
    if failure:
        ending = {**ending, "code": CANNOT_START, "error": failure}
    write(folder, "exit", ending)


def make_root(folder: Path, spec: Spec) -> None:
    """Enter new namespaces and mount the container's root at FOLDER/root."""
    call(libc.unshare, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    root = folder / "root"
    for name in ("upper", "work", "root"):
        (folder / name).mkdir()
    layers = f"lowerdir=/,upperdir={folder}/upper,workdir={folder}/work"
    mount("overlay", root, "overlay", 0, layers)
    for name in ("dev", "sys"):
        mount(f"/{name}", root / name, None, MS_BIND | MS_REC)


def enter_root(root: Path, spec: Spec) -> None:
    """Make the root that of this process, with the pod's volumes in it.

    A target is looked up only then: on the way to it may be links, as `/var/run` is one.
    """
    sources = [os.open(one["source"], os.O_PATH) for one in spec["mounts"]]
    mount("proc", root / "proc", "proc", 0)
    os.chroot(root)
    os.chdir("/")
    for path, text in spec["files"].items():
        Path(path).write_text(text)
    for source, one in sorted(
        zip(sources, spec["mounts"], strict=True), key=lambda pair: pair[1]["target"]
    ):
        bind(Path(f"/proc/self/fd/{source}"), Path(one["target"]), read_only=one["read_only"])
        os.close(source)
    Path(spec["cwd"]).mkdir(parents=True, exist_ok=True)
    if spec["read_only_root"]:
        mount("none", "/", None, MS_REMOUNT | MS_RDONLY)
    os.chdir(spec["cwd"])


def bind(source: Path, target: Path, *, read_only: bool) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)


def become_container(folder: Path, spec: Spec, error_writer: int) -> NoReturn:
    """Never returns. An error before the command runs goes to `error_writer`."""
    try:
        enter_root(folder / "root", spec)
        hostname = spec["hostname"].encode()
        call(libc.sethostname, hostname, len(hostname))
        if spec["gid"] is not None:
            os.setgroups(spec["groups"])
            os.setgid(spec["gid"])
        if spec["uid"] is not None:
            os.setuid(spec["uid"])
        call(libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of the user clears it
        for number in (signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        os.write(error_writer, f"{spec['argv'][0]}: {error}".encode())
    os._exit(CANNOT_START)


def mount(
    source: Path | str, target: Path | str, kind: str | None, flags: int, data: str | None = None
) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    call(libc.mount, *words[:3], flags, words[3], about=str(target))


def call(
    function: Callable[..., int], *arguments: bytes | int | None, about: str | None = None
) -> None:
    if function(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), about)


def write(folder: Path, name: str, content: dict[str, float | str]) -> None:
    with contextlib.suppress(FileNotFoundError):  # the kubelet has removed the pod
        (folder / f"{name}.new").write_text(json.dumps(content))
        (folder / f"{name}.new").rename(folder / f"{name}.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
