"""Archives whose bytes depend on their content alone."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

Files = Mapping[str, bytes]
"""Path in the archive to content."""

CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def tar(files: Files) -> bytes:
    """A tar with these files, in the order of their names, of no time and of no user."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(files[name]), 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    return target.getvalue()


def tar_gz(files: Files) -> bytes:
    return gzip.compress(tar(files), mtime=0)


def oci_archive(config: Mapping[str, Any], chart: bytes, *, tag: str) -> bytes:
    """The packed chart as an OCI image layout, as tools for registries copy one."""
    settings = _json(config)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _described(settings, CONFIG),
            "layers": [_described(chart, CONTENT)],
        }
    )
    place = {
        **_described(manifest, MANIFEST),
        "annotations": {"org.opencontainers.image.ref.name": tag},
    }
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [place]}
    blobs = {f"blobs/sha256/{digest(blob)}": blob for blob in (settings, chart, manifest)}
    layout = {"imageLayoutVersion": "1.0.0"}
    return tar({"oci-layout": _json(layout), "index.json": _json(index), **blobs})


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _described(content: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{digest(content)}", "size": len(content)}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
