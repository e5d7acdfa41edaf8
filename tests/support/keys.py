"""Folders with keys of payloads, as an operator makes them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from everstep.encryption.keys import CURRENT


def key_text(seed: str) -> str:
    """A key, always the same for the same seed."""
    return base64.b64encode(hashlib.sha256(seed.encode()).digest()).decode()


def write_key(folder: Path, name: str, text: str | None = None) -> None:
    """Add a key to the folder, which is made if it is not there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    path.touch(mode=0o600)
    path.write_text(f"{key_text(name) if text is None else text}\n")


def choose(folder: Path, name: str) -> None:
    """Have this key write from now on."""
    (folder / CURRENT).write_text(f"{name}\n")


def key_folder(folder: Path, *names: str) -> Path:
    """A folder with keys of these names; the first one writes."""
    for name in names:
        write_key(folder, name)
    choose(folder, names[0])
    return folder
