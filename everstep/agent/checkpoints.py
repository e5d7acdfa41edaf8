"""Checkpoints in a folder: which ones are complete.

The name says which is newer: by its step, else by an epoch or another number; where it has none, its time
does. What a format says of itself counts first: torch's `.metadata`, the tracker files of Megatron and
DeepSpeed, `trainer_state.json`, the structure of safetensors, zip and JSON files. What says nothing is
complete once its size has not changed for a second and nobody has it open for writing.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from everstep.agent import structure, wire

SETTLED_S = 1.0
NOTICED_S = 1.0
"""So late an end may be noticed, or be written down in whole seconds."""
PACE_OF, GAPS_LEAST = 9, 2
UNFINISHED = (".tmp", ".part", ".partial", ".incomplete", ".lock")

MEGATRON_TRACKER = "latest_checkpointed_iteration.txt"
DEEPSPEED_TRACKER = "latest"
TRAINER_STATE = "trainer_state.json"
METADATA = ".metadata"

DCP, MEGATRON, HF = "dcp", "megatron", "hf"
"""A document may insist on these. With any other word a checkpoint is what it looks like."""

TRACKER_MAX = 256

_FILE = r"(?:\.(?:pt|pth|ckpt|bin|safetensors|tar|npz|pkl|h5|params|pdparams|msgpack))+$"

# The first that matches counts: `epoch=1-step=200.ckpt` is step 200. One whose name tells more is never
# passed over for one whose name tells less, so that the numbers of a folder are of one kind.
_NAMES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("step", r"step[-_=.]?(\d+)"),
        ("step", r"iter(?:ation)?[-_=.]?(\d+)"),
        ("epoch and step", rf"-(\d+)_(\d+){_FILE}"),  # MindSpore: the step counts within the epoch
        ("step", r"(?:checkpoint|ckpt)[-_=.]?(\d+)"),
        ("step", r"^(\d+)$"),
        ("epoch", r"epoch[-_=.]?(\d+)"),
        # Of other names nobody knows whether their number counts: `resnet_50.pt` is one for ever.
        (
            "number",
            rf"(?:^|[-_.])(?:model|net|network|weights|params|snapshot|saved?)[-_](\d+){_FILE}",
        ),
        ("time", rf"^(?!best)(?:.*[-_.])?(?:last|latest|checkpoint|ckpt|snapshot|model){_FILE}"),
    )
)
_KINDS = tuple(dict.fromkeys(kind for kind, _ in _NAMES))
STEPS_OF_AN_EPOCH = 10**9
"""More than any has."""
_SHARD = re.compile(rb"__\d+_\d+\.distcp")


@dataclass(frozen=True)
class Item:
    """One file, as it is now."""

    path: Path
    size: int
    at: float


Settled = Callable[[Item], bool]


class Name(NamedTuple):
    """What the name of a checkpoint says of it. The greater one is the newer."""

    kind: int  # how much it tells: the more the greater
    number: int  # without any, the time of its last change in nanoseconds

    @property
    def step(self) -> int | None:
        return self.number if self.kind == STEP else None

    @property
    def counts(self) -> int | None:
        """By which number it is newer than another, if by any."""
        return self.number if self.kind > TIME else None


STEP, TIME = len(_KINDS) - 1, 0


@dataclass(frozen=True)
class Candidate:
    """Everything in the folder that has one name, as far as that counts."""

    name: Name
    paths: tuple[Path, ...]


def scan(
    path: str | None,
    format: str = "auto",  # noqa: A002  # as the document says
    ended: Sequence[float] = (),
) -> list[wire.SavedState]:
    """The complete ones, newest first. For whoever looks once: time alone says what has settled.

    `ended`: when writers ended in the middle of something. What they had just touched never settles.
    """
    now = time.time()
    return list(
        _complete(path, format, lambda item: _is_old(item, now) and not _is_cut_off(item, ended))
    )


def _is_cut_off(item: Item, ended: Sequence[float]) -> bool:
    """Whether it may have been: it was not still for long enough when somebody ended."""
    return any(moment - SETTLED_S - NOTICED_S <= item.at <= moment + NOTICED_S for moment in ended)


def _is_old(item: Item, now: float) -> bool:
    # A storage's clock may be ahead of ours: then its files never seem to be old.
    return now - item.at >= SETTLED_S or item.at - now > 60.0


class Watch:
    """Looks again and again, so it sees for itself what has settled."""

    def __init__(self, path: str, format: str, is_open: Callable[[Path], bool]) -> None:  # noqa: A002
        self._path = path
        self._format = format
        self._is_open = is_open
        self._since: dict[Path, tuple[Item, float]] = {}

    def newest(self, ticks: float) -> wire.SavedState | None:
        """The newest complete one; `ticks` is a clock that nobody sets."""
        found = _complete(self._path, self._format, lambda item: self._has_settled(item, ticks))
        return next(found, None)

    def _has_settled(self, item: Item, ticks: float) -> bool:
        before = self._since.get(item.path)
        if before is None or before[0] != item:
            self._since[item.path] = (item, ticks)
            return False
        return ticks - before[1] >= SETTLED_S and not self._is_open(item.path)


class Pace:
    """How often checkpoints come: noticed by a clock of ours, whatever that of the storage says."""

    def __init__(self, known: wire.SavedState | None) -> None:
        self._newest = known
        self._times: list[float] = []

    def saw(self, newest: wire.SavedState | None, now: float) -> None:
        if newest is not None and newest != self._newest:
            self._newest = newest
            self._times = [*self._times[-PACE_OF:], now]

    @property
    def newest_at(self) -> float | None:
        return self._times[-1] if self._times else None

    @property
    def usual_s(self) -> float | None:
        """Between two of them; None as long as there were too few."""
        gaps = [later - earlier for earlier, later in itertools.pairwise(self._times)]
        return statistics.median_high(gaps) if len(gaps) >= GAPS_LEAST else None


def free_bytes(path: str) -> int | None:
    """What may still be written below this path, which need not be there yet; None: not known."""
    folder = Path(path)
    try:
        while not folder.exists():
            folder = folder.parent
        told = os.statvfs(folder)
    except OSError:
        return None
    return told.f_bavail * told.f_frsize


def _complete(path: str | None, format: str, settled: Settled) -> Iterator[wire.SavedState]:  # noqa: A002
    if path is None:
        return
    folder = Path(path)
    try:
        trackers = _trackers(folder)
        candidates = _candidates(folder)
    except OSError:
        return
    for candidate in candidates:
        try:
            items = _items(candidate.paths)
            if items and _is_complete(candidate, items, trackers, format, settled):
                yield _saved(candidate, items)
        except OSError:
            continue  # it is being removed, or the storage is out of reach


def _candidates(folder: Path) -> list[Candidate]:
    """Newest first."""
    found: dict[Name, list[Path]] = {}
    for entry in folder.iterdir():
        name = _read(entry.name)
        if name is not None and name.kind == TIME:
            try:
                name = name._replace(number=entry.stat().st_mtime_ns)
            except OSError:
                continue  # it went while we looked, or leads nowhere: that hides no other
        if name is not None:
            found.setdefault(name, []).append(entry)
    return [Candidate(name, tuple(sorted(found[name]))) for name in sorted(found, reverse=True)]


def _read(name: str) -> Name | None:
    if name.startswith(".") or _is_unfinished(name):
        return None
    for kind, pattern in _NAMES:
        match = pattern.search(name)
        if match is not None:
            epoch, number = ("0", "0", *match.groups())[-2:]
            return Name(STEP - _KINDS.index(kind), int(epoch) * STEPS_OF_AN_EPOCH + int(number))
    return None


def _is_unfinished(name: str) -> bool:
    return name.endswith(UNFINISHED)


def _items(paths: Iterable[Path]) -> list[Item]:
    """Every file of it, those in folders included."""
    found = []
    open_ones = list(paths)
    while open_ones:
        path = open_ones.pop()
        told = path.stat()
        if stat.S_ISDIR(told.st_mode):
            open_ones += path.iterdir()
        else:
            found.append(Item(path, told.st_size, told.st_mtime))
    return found


def _trackers(folder: Path) -> dict[str, int]:
    """What the tracker files say: up to this step everything is complete."""
    found = {}
    for name in (MEGATRON_TRACKER, DEEPSPEED_TRACKER):
        path = folder / name
        try:
            if path.is_dir() or path.stat().st_size > TRACKER_MAX:
                continue  # somebody else's `latest`
            text = path.read_text(errors="replace").strip()
        except FileNotFoundError:
            continue
        said = _read(text)
        if said is not None and said.step is not None:
            found[name] = said.step
    return found


def _is_complete(
    candidate: Candidate,
    items: list[Item],
    trackers: dict[str, int],
    format: str,  # noqa: A002
    settled: Settled,
) -> bool:
    if any(_is_unfinished(item.path.name) for item in items):
        return False
    names = {item.path.name for item in items}
    if METADATA in names or format == DCP:
        return all(_is_whole_dcp(path) for path in candidate.paths)
    if format == MEGATRON or (format != HF and trackers):
        step = candidate.name.step
        is_told = step is not None and any(step <= told for told in trackers.values())
        return is_told and all(structure.is_whole(item.path) is not False for item in items)
    if TRAINER_STATE in names or format == HF or _looks_like_hf(candidate, names):
        return _is_whole_hf(candidate, items)
    return all(_is_whole_file(item, settled) for item in items)


def _looks_like_hf(candidate: Candidate, names: set[str]) -> bool:
    """A trainer writes its state after the weights: until then the folder is not finished."""
    return candidate.paths[0].name.startswith("checkpoint-") and any(
        name.startswith(("model", "pytorch_model", "optimizer", "adapter_model")) for name in names
    )


def _is_whole_hf(candidate: Candidate, items: list[Item]) -> bool:
    try:
        told = json.loads((candidate.paths[0] / TRAINER_STATE).read_text())
        is_its_own = int(told["global_step"]) == candidate.name.step
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return False
    return is_its_own and all(structure.is_whole(item.path) is not False for item in items)


def _is_whole_dcp(folder: Path) -> bool:
    """torch writes `.metadata` last, at once; it names every other file."""
    try:
        told = (folder / METADATA).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    named = {name.decode() for name in _SHARD.findall(told)}
    is_pickle = told.endswith(b".")  # its last instruction
    return is_pickle and all(_has_bytes(folder / name) for name in named)


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _is_whole_file(item: Item, settled: Settled) -> bool:
    whole = structure.is_whole(item.path)
    return settled(item) if whole is None else whole


def _saved(candidate: Candidate, items: list[Item]) -> wire.SavedState:
    return {
        "step": candidate.name.step,
        "number": candidate.name.counts,
        "path": str(candidate.paths[0]),
        "bytes": sum(item.size for item in items),
        "at": max(item.at for item in items),
        "good": True,
    }
