"""A script that saves as training frameworks do, and is killed while it does. Standard library.

`python layouts.py LAYOUT FOLDER FROM KILL_AT`: saves steps FROM, FROM + 1, ... without end; after so many
writes, renames and new folders it kills itself with SIGKILL, with everything open. What a checkpoint of a
step must hold is `content`; `loads` reads it back as the framework would.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import pickle
import signal
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

PIECE = 512
SIZE = 2048
RANKS = 2


def content(step: int, part: int = 0) -> bytes:
    """All that has to be there of this part, and nothing that another step would have."""
    return hashlib.sha256(f"{step} {part}".encode()).digest() * (SIZE // 32)


# -- Files --------------------------------------------------------------------------------------


def zipped(data: bytes) -> bytes:
    """As torch.save makes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    return file.getvalue()


def unzipped(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None, path
        return archive.read("archive/data.pkl")


def tensors(data: bytes) -> bytes:
    """As safetensors are."""
    header = json.dumps(
        {"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}
    )
    return struct.pack("<Q", len(header)) + header.encode() + data


def hdf5(data: bytes) -> bytes:
    """The head of such a file, of the second version, and something behind it."""
    head = b"\x89HDF\r\n\x1a\n" + bytes([2, 8, 8, 0])
    return head + struct.pack("<QQQQI", 0, 2**64 - 1, 48 + len(data), 48, 0) + data


class Piece(NamedTuple):
    """What torch's metadata says of a tensor's place."""

    relative_path: str
    offset: int
    length: int


class Place:
    """Pickled as torch pickles it: by the names of its attributes."""

    def __init__(self, piece: Piece) -> None:
        self.relative_path, self.offset, self.length = piece


# -- Layouts ------------------------------------------------------------------------------------


class Writer:
    """Does one small thing after the other, and dies when it is time."""

    def __init__(self, folder: Path, kill_at: int) -> None:
        self.folder = folder
        self.left = kill_at

    def did(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, path: Path, data: bytes) -> None:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            self.did()
        with path.open("wb", buffering=0) as file:
            self.did()
            for start in range(0, len(data), PIECE):
                file.write(data[start : start + PIECE])
                self.did()

    def rename(self, path: Path, to: Path) -> None:
        path.replace(to)
        self.did()

    def deepspeed(self, step: int) -> None:
        folder = self.folder / f"global_step{step}"
        self.write(folder / "mp_rank_00_model_states.pt", zipped(content(step)))
        for rank in range(RANKS):
            name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            self.write(folder / name, zipped(content(step, rank + 1)))
        self.write(self.folder / "latest", folder.name.encode())

    def megatron(self, step: int) -> None:
        folder = self.folder / f"iter_{step:07d}"
        for rank in range(RANKS):
            path = folder / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
            self.write(path, zipped(content(step, rank)))
        self.write(self.folder / "latest_checkpointed_iteration.txt", str(step).encode())

    def torch(self, step: int) -> None:
        folder = self.folder / f"step-{step}"
        for rank in range(RANKS):
            self.write(folder / f"__{rank}_0.distcp", content(step, rank))
        places = [Place(Piece(f"__{rank}_0.distcp", 0, SIZE)) for rank in range(RANKS)]
        self.write(folder / ".metadata.tmp", pickle.dumps(places, protocol=4))
        self.rename(folder / ".metadata.tmp", folder / ".metadata")

    def trainer(self, step: int) -> None:
        folder = self.folder / f"checkpoint-{step}"
        names = [f"model-{n + 1:05d}-of-{RANKS:05d}.safetensors" for n in range(RANKS)]
        for number, name in enumerate(names):
            self.write(folder / name, tensors(content(step, number)))
        index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
        self.write(folder / "model.safetensors.index.json", json.dumps(index).encode())
        self.write(folder / "optimizer.pt", zipped(content(step, RANKS)))
        state = json.dumps({"epoch": 1.0, "global_step": step}, indent=2)
        self.write(folder / "trainer_state.json", state.encode())

    def lightning(self, step: int) -> None:
        path = self.folder / f"epoch=0-step={step}.ckpt"
        self.write(path, zipped(content(step)))
        if (last := self.folder / "last.ckpt").is_symlink():
            last.unlink()
            self.did()
        last.symlink_to(path.name)
        self.did()

    def cerebras(self, step: int) -> None:
        self.write(self.folder / f"checkpoint_{step}.mdl", hdf5(content(step)))
        state = self.folder / "cerebras_logs" / "1" / f"trainer_state_{step}.mdl"
        self.write(state.with_suffix(".tmp"), hdf5(content(step, 1)))
        self.rename(state.with_suffix(".tmp"), state)


# -- Reading them back --------------------------------------------------------------------------


def _deepspeed(path: Path) -> list[bytes]:
    names = [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(RANKS)]
    return [unzipped(path / name) for name in ("mp_rank_00_model_states.pt", *names)]


def _megatron(path: Path) -> list[bytes]:
    ranks = (path / f"mp_rank_{rank:02d}" for rank in range(RANKS))
    return [unzipped(rank / "model_optim_rng.pt") for rank in ranks]


def _torch(path: Path) -> list[bytes]:
    assert (path / ".metadata").is_file()
    return [(path / f"__{rank}_0.distcp").read_bytes() for rank in range(RANKS)]


def _trainer(path: Path) -> list[bytes]:
    json.loads((path / "trainer_state.json").read_text())
    weight_map = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    weights = [(path / weight_map[f"w{number}"]).read_bytes()[-SIZE:] for number in range(RANKS)]
    return [*weights, unzipped(path / "optimizer.pt")]


class Layout(NamedTuple):
    """How it is written, and how it is read."""

    save: Callable[[Writer, int], None]
    load: Callable[[Path], list[bytes]]


LAYOUTS: Mapping[str, Layout] = {
    "deepspeed": Layout(Writer.deepspeed, _deepspeed),
    "megatron": Layout(Writer.megatron, _megatron),
    "torch": Layout(Writer.torch, _torch),
    "trainer": Layout(Writer.trainer, _trainer),
    "lightning": Layout(Writer.lightning, lambda path: [unzipped(path)]),
    "cerebras": Layout(Writer.cerebras, lambda path: [path.read_bytes()[-SIZE:]]),
}


def save(layout: str, folder: Path, step: int) -> None:
    """One checkpoint, undisturbed."""
    LAYOUTS[layout].save(Writer(folder, 0), step)


def loads(layout: str, path: Path, step: int) -> bool:
    """Whether this checkpoint is the one of the step, to the last byte. Raises where it cannot be read."""
    return all(data == content(step, part) for part, data in enumerate(LAYOUTS[layout].load(path)))


def main() -> None:
    layout, folder, first, kill_at = sys.argv[1:]
    writer = Writer(Path(folder), int(kill_at))
    writer.folder.mkdir(parents=True, exist_ok=True)
    for step in itertools.count(int(first)):
        LAYOUTS[layout].save(writer, step)


if __name__ == "__main__":
    main()
