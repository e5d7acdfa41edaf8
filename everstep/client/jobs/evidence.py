"""What was kept of ranks before they were killed: stacks and last lines, if this machine has the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

STACKS, LINES = ".stacks", ".log"
RANKS_MOST, STACK_MOST, LINES_MOST = 4, 16, 4
"""Most ranks, lines of a stack and last lines of a log that are shown; the files have all."""


def evidence_lines(folder: str | None) -> Iterator[str]:
    """Stacks and last lines in this folder, rank by rank. Nothing if none was kept."""
    if folder is None:
        return
    yield f"  evidence {folder}"
    ranks = _ranks(Path(folder))
    for number in ranks[:RANKS_MOST]:
        yield from _of_rank(Path(folder), number)
    if len(ranks) > RANKS_MOST:
        yield f"    and {len(ranks) - RANKS_MOST} more ranks"


def _ranks(folder: Path) -> list[int]:
    """The ranks whose stacks are there, none if another machine has them."""
    names = (path.stem[1:] for path in folder.glob(f"r*{STACKS}"))
    return sorted(int(name) for name in names if name.isdecimal())


def _of_rank(folder: Path, number: int) -> Iterator[str]:
    for suffix, what, most in ((STACKS, "stack", STACK_MOST), (LINES, "last lines", LINES_MOST)):
        lines = _lines(folder / f"r{number}{suffix}")
        shown_lines = lines[:most] if suffix == STACKS else lines[-most:]
        if shown_lines:
            yield f"    rank {number}, {what}:"
            yield from (f"      {line}" for line in shown_lines)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
