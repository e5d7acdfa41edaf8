"""Whether a save is so small beside the ones before it that it may have been cut off, as on a full disk.

Sizes differ legitimately, so the result is a doubt and no verdict. A second save of the smaller size is none:
then the script saves less from now on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

ELDERS_MOST = 3
"""The number of saves before it that are compared."""
LEAST_SHARE = 0.5
SAME_SHARE = 0.02
"""Sizes that differ by no more are one size."""


def doubt(paths: Sequence[Path], elders: Sequence[Sequence[Path]]) -> str:
    """The doubt about the save with these files, in words; empty: none.

    `elders`: the files of the saves before it, the newest first. Only names of the same form count.
    Raises OSError.
    """
    if len(paths) != 1 or not paths[0].is_file():
        return ""
    size = paths[0].stat().st_size
    if size == 0:
        return "it is empty"
    comparable = [one[0] for one in elders if len(one) == 1 and _form(one[0]) == _form(paths[0])]
    sizes = {path: path.stat().st_size for path in comparable[:ELDERS_MOST] if path.is_file()}
    largest = max(sizes, key=lambda path: sizes[path], default=None)
    if largest is None or size >= LEAST_SHARE * sizes[largest]:
        return ""
    before = next(iter(sizes.values()))
    if abs(size - before) <= SAME_SHARE * before:
        return ""
    return f"it has {size:,} bytes where {largest.name} has {sizes[largest]:,}"


def _form(path: Path) -> str:
    """The name without its numbers."""
    return re.sub(r"\d+", "#", path.name)
