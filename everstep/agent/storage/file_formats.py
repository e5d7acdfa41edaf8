"""Whether one file is complete, by its structure. No training library is needed.

None means that the format does not show it: then only its age and its writer do.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from everstep.agent.storage import files

HEADER_MAX = 100 * 1024 * 1024

NO_VERDICT = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)
"""What reading a file raises that is not as it should be: with `Infinity` or 100,000 brackets in it, say."""

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


def is_whole(path: Path, within: Path) -> bool | None:
    """Whether the file is complete; None: its format does not show it.

    `within`: the folder of the checkpoints. Raises OSError.
    """
    look = next((look for suffixes, look in _CHECKS.items() if path.suffix in suffixes), None)
    if look is None:
        return None
    with files.opened(path, within=within) as file:
        return look(file, os.fstat(file.fileno()).st_size)


def _safetensors(file: BinaryIO, size: int) -> bool:
    """The header says where the last tensor ends; the file must end there too."""
    head = file.read(8)
    if len(head) < 8:
        return False
    (length,) = struct.unpack("<Q", head)
    if length > min(HEADER_MAX, size - 8):
        return False
    try:
        header = json.loads(file.read(length))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors), default=0)
    except NO_VERDICT:
        return False
    return bool(size == 8 + length + end)


def _zip(file: BinaryIO, size: int) -> bool | None:
    """The directory stands at the end, so a file that was cut has none."""
    import zipfile  # some milliseconds of an agent's start

    magic = file.read(len(ZIP_MAGIC))
    if magic != ZIP_MAGIC:
        return False if ZIP_MAGIC.startswith(magic) else None
    try:
        with zipfile.ZipFile(_Bounded(file, size)) as archive:
            return bool(archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


class _Bounded(io.RawIOBase):
    """A file of which not very much is read at once, whatever it says of itself."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def read(self, count: int = -1) -> bytes:
        if min(count if count >= 0 else self._size, self._size - self._file.tell()) > HEADER_MAX:
            raise ValueError("its directory is larger than any")
        return self._file.read(count)

    def seek(self, to: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(to, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
HDF5_HEAD = 64
# By the version of the superblock: where its 'size of offsets' and its 'end of file address' are.
HDF5_END = {0: (13, 24 + 2 * 8), 1: (13, 28 + 2 * 8), 2: (9, 28), 3: (9, 28)}


def _hdf5(file: BinaryIO, size: int) -> bool | None:
    """The head says where the file ends; it is written again when the file is closed."""
    head = file.read(HDF5_HEAD)
    if not head.startswith(HDF5_MAGIC):
        file.seek(0)
        return False if HDF5_MAGIC.startswith(head) else _zip(file, size)
    if len(head) < HDF5_HEAD:
        return False
    width_at, end_at = HDF5_END.get(head[8], (9, 28))
    if head[width_at] != 8:
        return None
    (end,) = struct.unpack_from("<Q", head, end_at)
    return bool(size == end)


def _json(file: BinaryIO, size: int) -> bool:
    if size > files.JSON_MOST:
        file.seek(-64, os.SEEK_END)
        return file.read(64).rstrip()[-1:] in (b"}", b"]")
    try:
        json.loads(file.read(files.JSON_MOST))
    except NO_VERDICT:
        return False
    return True


_CHECKS: dict[tuple[str, ...], Callable[[BinaryIO, int], bool | None]] = {
    (".safetensors",): _safetensors,
    (".json",): _json,
    (".h5", ".hdf5", ".mdl"): _hdf5,  # Cerebras keeps its checkpoints in such files
    ZIPS: _zip,
}
