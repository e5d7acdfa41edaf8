"""Images for containerd, made by hand: nothing is pulled. Each is one layer in a tar of the OCI layout."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LINKS = ("bin", "lib", "lib32", "lib64", "sbin")  # into /usr, as on every Debian of these years
_FOLDERS = ("dev", "etc", "proc", "storage", "sys", "tmp", "usr", "var")
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"


def machine(name: str) -> bytes:
    """The root of a machine without its /usr, which pods mount from the machine they run on."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in _FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for link in _LINKS:
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(entry)
        _add(tar, "etc/passwd", b"root:x:0:0::/:/bin/sh\nrank:x:1000:1000::/tmp:/bin/sh\n", 0o644)
    return _image(name, layer.getvalue(), command=["/bin/sh"])


def pause(name: str, busybox: Path) -> bytes:
    """What a pod's sandbox runs: it sleeps, and ends at once at SIGTERM."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, "busybox", busybox.read_bytes(), 0o755)
    script = "trap 'exit 0' TERM INT; while :; do /busybox sleep 1000 & wait; done"
    return _image(name, layer.getvalue(), command=["/busybox", "sh", "-c", script])


def _image(name: str, layer: bytes, *, command: Sequence[str]) -> bytes:
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    described = blob(layer, "layer.v1.tar")
    config = blob(
        _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Cmd": list(command), "Env": [_PATH]},
                "rootfs": {"type": "layers", "diff_ids": [described["digest"]]},
            }
        ),
        "config.v1+json",
    )
    manifest = blob(
        _json({"schemaVersion": 2, "config": config, "layers": [described]}), "manifest.v1+json"
    )
    manifest["annotations"] = {"io.containerd.image.name": name}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), 0o644)
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [manifest]}), 0o644)
        for digest, content in blobs.items():
            _add(tar, f"blobs/sha256/{digest}", content, 0o644)
    return packed.getvalue()


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
