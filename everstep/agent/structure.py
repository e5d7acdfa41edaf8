"""Whether one file is whole, as far as its own structure tells. No training library is needed for that.

None means that the format tells nothing: then only time and its writer do.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path

HEADER_MAX = 100 * 1024 * 1024
JSON_MAX = 16 * 1024 * 1024

ZIPS = (
    ".pt",
    ".pth",
    ".ckpt",
    ".bin",
    ".npz",
    ".zip",
    ".tar",
)  # torch.save and numpy.savez write zip files
ZIP_MAGIC = b"PK\x03\x04"


def is_whole(path: Path) -> bool | None:
    """Raises OSError if it cannot be read."""
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix == ".json":
        return _json(path)
    if path.suffix in ZIPS:
        return _zip(path)
    return None


def _safetensors(path: Path) -> bool:
    """The header says where the last tensor ends; the file must end there too."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if len(head) < 8:
            return False
        (length,) = struct.unpack("<Q", head)
        if length > min(HEADER_MAX, size - 8):
            return False
        try:
            header = json.loads(file.read(length))
            tensors = [told for name, told in header.items() if name != "__metadata__"]
            end = max((int(told["data_offsets"][1]) for told in tensors), default=0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return False
    return bool(size == 8 + length + end)


def _zip(path: Path) -> bool | None:
    """The directory stands at the end, so a file that was cut has none."""
    with path.open("rb") as file:
        magic = file.read(len(ZIP_MAGIC))
    if magic != ZIP_MAGIC:
        return None if magic else False
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def _json(path: Path) -> bool:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > JSON_MAX:
            file.seek(-64, os.SEEK_END)
            return file.read().rstrip()[-1:] in (b"}", b"]")
        try:
            json.load(file)
        except (ValueError, RecursionError):
            return False
    return True
