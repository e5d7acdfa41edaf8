"""Checkpoints in a folder: which ones are complete.

The name says which is newer: by its step, else by an epoch or another number; where it has none, its time
does. What a format says of itself counts first: torch's `.metadata`, the tracker files of Megatron and
DeepSpeed, `trainer_state.json`, the structure of safetensors, zip and JSON files. What says nothing is
complete once its size has not changed for a second and nobody has it open for writing.

The folder may be a link. In it a link counts as what it leads to, if that is in the folder too; what leads
out of it is known by its name and its time alone and never opened, nor is anything but a plain file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from everstep.agent import wire
from everstep.agent.storage import file_formats, files

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
STATE_MAX = METADATA_MAX = 64 * 1024 * 1024

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
SPENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What whoever looks has run out of: that says nothing of a file."""
_SHARD = re.compile(rb"__\d+_\d+\.distcp")


@dataclass(frozen=True)
class Item:
    """One file, as it is now."""

    path: Path
    size: int
    at: float
    is_elsewhere: bool = False  # a link that leads out of the folder


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


def scan(
    path: str,
    format: str = "auto",  # noqa: A002  # as the document says
    ended: Sequence[float] = (),
) -> list[wire.SavedState]:
    """The complete ones, newest first. For whoever looks once: time alone says what has settled.

    `ended`: when writers ended in the middle of something. What they had just touched never settles.
    Raises OSError where it cannot be told: who takes that for no checkpoint begins anew.
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


class CheckpointWatch:
    """Looks again and again, so it sees for itself what has settled."""

    def __init__(self, path: str, format: str, is_open: Callable[[Path], bool]) -> None:  # noqa: A002
        self._path = path
        self._format = format
        self._is_open = is_open
        self._since: dict[Path, tuple[Item, float]] = {}

    def newest(self, ticks: float) -> wire.SavedState | None:
        """The newest complete one; `ticks` is a clock that nobody sets."""
        found = _complete(self._path, self._format, lambda item: self._has_settled(item, ticks))
        with contextlib.suppress(OSError):  # looked at again in a moment
            return next(found, None)
        return None

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


def _complete(path: str, format: str, settled: Settled) -> Iterator[wire.SavedState]:  # noqa: A002
    folder = Path(path)
    try:
        trackers = _trackers(folder)
        candidates = _candidates(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, entries in candidates:
        try:
            candidate = _Candidate(
                folder, name, entries[0], [_followed(e, folder) for e in entries]
            )
            items = _items(candidate.paths, folder)
            if items and candidate.is_complete(items, trackers, format, settled):
                yield candidate.saved(items)
        except OSError as error:
            if error.errno in SPENT:
                raise
            # It is being removed, or cannot be read.


def _candidates(folder: Path) -> list[tuple[Name, list[Path]]]:
    """Everything in the folder that has one name, as far as that counts; the newest first."""
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
    return [(name, sorted(found[name])) for name in sorted(found, reverse=True)]


def _followed(path: Path, folder: Path) -> Path:
    """What a link leads to, by its path in the folder; one that leads out of it stays as it is."""
    if not path.is_symlink():
        return path
    real, top = os.path.realpath(path), os.path.realpath(folder)
    return folder / os.path.relpath(real, top) if real.startswith(f"{top}/") else path


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


def _items(paths: Iterable[Path], folder: Path) -> list[Item]:
    """Every file of it, those in folders included."""
    found = []
    open_ones, seen = list(paths), set()
    while open_ones:
        path = open_ones.pop()
        if path in seen:
            continue
        seen.add(path)
        told = path.lstat()
        is_link = stat.S_ISLNK(told.st_mode)
        if is_link and (followed := _followed(path, folder)) != path:
            open_ones.append(followed)
            continue
        if is_link:
            told = path.stat()
        elif stat.S_ISDIR(told.st_mode):
            open_ones += path.iterdir()
        if stat.S_ISREG(told.st_mode) or (is_link and stat.S_ISDIR(told.st_mode)):
            found.append(Item(path, told.st_size, told.st_mtime, is_elsewhere=is_link))
    return found


def _trackers(folder: Path) -> dict[str, int]:
    """What the tracker files say: up to this step everything is complete."""
    found = {}
    for name in (MEGATRON_TRACKER, DEEPSPEED_TRACKER):
        try:
            text = files.read(folder / name, TRACKER_MAX, within=folder)
        except (FileNotFoundError, files.NotPlain, files.TooLarge):
            continue  # somebody else's `latest`
        said = _read(text.decode(errors="replace").strip())
        if said is not None and said.step is not None:
            found[name] = said.step
    return found


class _Candidate(NamedTuple):
    """What may be a checkpoint."""

    folder: Path
    name: Name
    named: Path
    paths: list[Path]  # no links, unless they lead out of the folder

    def is_complete(
        self,
        items: list[Item],
        trackers: dict[str, int],
        format: str,  # noqa: A002
        settled: Settled,
    ) -> bool:
        names = {item.path.name for item in items}
        if any(_is_unfinished(name) for name in names):
            return False
        if METADATA in names or format == DCP:
            return all(self._is_whole_dcp(path) for path in self.paths)
        if format == MEGATRON or (format != HF and trackers):
            step = self.name.step
            is_told = step is not None and any(step <= told for told in trackers.values())
            return is_told and self._has_nothing_cut(items)
        if TRAINER_STATE in names or format == HF or self._looks_like_hf(names):
            return self._is_whole_hf(items)
        return all(self._is_whole_file(item, settled) for item in items)

    def _looks_like_hf(self, names: set[str]) -> bool:
        """A trainer writes its state after the weights: until then the folder is not finished."""
        return self.named.name.startswith("checkpoint-") and any(
            name.startswith(("model", "pytorch_model", "optimizer", "adapter_model"))
            for name in names
        )

    def _is_whole_hf(self, items: list[Item]) -> bool:
        path = self.paths[0] / TRAINER_STATE
        try:
            told = files.read_json(path, STATE_MAX, within=self.folder)
            is_its_own = int(told["global_step"]) == self.name.step
        except (FileNotFoundError, NotADirectoryError, *file_formats.SAYS_NOTHING):
            return False
        return is_its_own and self._has_nothing_cut(items)

    def _is_whole_dcp(self, path: Path) -> bool:
        """torch writes `.metadata` last, at once; it names every other file."""
        try:
            told = files.read(path / METADATA, METADATA_MAX, within=self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        named = {name.decode() for name in _SHARD.findall(told)}
        is_pickle = told.endswith(b".")  # its last instruction
        return is_pickle and all(_has_bytes(path / name) for name in named)

    def _has_nothing_cut(self, items: list[Item]) -> bool:
        return all(self._structure(item) is not False for item in items)

    def _is_whole_file(self, item: Item, settled: Settled) -> bool:
        whole = self._structure(item)
        return settled(item) if whole is None else whole

    def _structure(self, item: Item) -> bool | None:
        return None if item.is_elsewhere else file_formats.is_whole(item.path, self.folder)

    def saved(self, items: list[Item]) -> wire.SavedState:
        return {
            "step": self.name.step,
            "number": self.name.counts,
            "path": str(self.named),
            "bytes": sum(item.size for item in items),
            "at": max(item.at for item in items),
            "good": True,
        }


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
