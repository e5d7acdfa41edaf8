"""Checkpoints in a folder: which ones are complete, and which are bad.

Checkpoints are ordered by the step in their names, else by an epoch or another number, else by time. A
verdict comes first from the format: torch's `.metadata`, the tracker files of Megatron and DeepSpeed,
`trainer_state.json`, the structure of safetensors, zip, HDF5 and JSON files. A checkpoint of another format
is complete once its size has not changed for a second and no process has it open for writing.

The folder may be a link. A link in it stands for its target, if that is in the folder too. A target outside
of the folder is judged by its name and time alone and never opened; only plain files are opened.

Folders grow, so a look reads only the names, files and checkpoints that are needed to choose one, and a
verdict stays as long as no file of the checkpoint has changed.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import os
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, Optional

from everstep.agent.storage import (
    checkpoint_formats,
    checkpoint_names,
    fence,
    files,
    phase_mark,
    save_records,
    save_sizes,
)
from everstep.agent.storage.checkpoint_formats import Content, Item, Verdict
from everstep.agent.storage.checkpoint_names import Name
from everstep.agent.storage.save_states import CLOSED, OPEN, RENAMED
from everstep.protocol import wire

SETTLED_S = 1.0
"""A file of unknown format is complete after so long without a change."""
NOTICED_S = 1.0
"""Longest delay until an end is noticed, or the rounding of its time to whole seconds."""
GAPS_MOST, GAPS_LEAST = 9, 2
"""The newest times between two checkpoints that the usual time is the median of, and the fewest of them."""

TRACKER_MAX = 256

LISTED_MOST = 8
"""Most complete checkpoints that are listed: a job never goes back further than to one of these."""
NAMED_MOST = 1_000
"""Most names that are looked at, newest first: among so many, one is always complete."""
FILES_MOST = 100_000
"""A checkpoint of more files is judged by its name and its time alone."""
SPENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a process that has run out of something: they say nothing of a file."""

Doubt = str
"""Why a checkpoint does not count as good, in words; empty: it does."""
LEFT_OPEN: Doubt = "it was not closed before its writer ended"
CHANGED_JUST_NOW: Doubt = "it changed a moment ago"
CUT_OFF: Doubt = "its writer ended within moments of the last change"
NOT_TRACKED: Doubt = "the tracker file beside it names an earlier one"

RecordedState = Callable[[Path, save_records.Print], Optional[str]]
"""The state of a file or folder with this content, as recorded while it was written; None: unknown."""

Settling = Callable[[Item], Doubt]
"""The doubt about a file whose format does not show that it is complete."""


class Judgement(NamedTuple):
    """A verdict, and the checkpoint that it is about."""

    fingerprint: int  # of all its files and what else the verdict depends on
    verdict: Verdict
    bytes: int
    at: float


class Verdicts:
    """Verdicts of the last look at a folder, so that the next look reads only what has changed."""

    def __init__(self) -> None:
        self._before: dict[Path, Judgement] = {}
        self._now: dict[Path, Judgement] = {}

    def of(self, path: Path, fingerprint: int, judge: Callable[[], Judgement]) -> Judgement:
        """The stored judgement of this checkpoint, or a new one if it has changed."""
        stored = self._before.get(path)
        judgement = judge() if stored is None or stored.fingerprint != fingerprint else stored
        self._now[path] = judgement
        return judgement

    def finish_check(self) -> None:
        """End a look: drop the verdicts that it did not need."""
        self._before, self._now = self._now, {}


class Layout(NamedTuple):
    """Where checkpoints are, and which files there are checkpoints."""

    path: str
    format: str
    pattern: str | None  # of their names, if the document has one
    phase: str | None  # only those that it saved count; None: all


def scan(
    path: str,
    format: str = "auto",  # noqa: A002  # as the document says
    ended_between: Sequence[wire.TimeSpan] = (),
    verdicts: Verdicts | None = None,
    *,
    is_over: bool = False,
    pattern: str | None = None,
    phase: str | None = None,
) -> list[wire.SavedState]:
    """Return complete and bad checkpoints, newest first. For a single look: only age shows what has settled.

    A checkpoint that may have been cut off is neither good nor surely bad (`is_sure`). If an older one is
    good, it is listed to be set aside: a script that takes the newest by itself must load the good one. If it
    is older than all good ones, it is left out. If none is good, the newest of this kind is resumed from.

    `pattern`: the document's pattern of names. `phase`: only what this phase saved. `ended_between`: times,
    begin and end, in which writers ended in the middle of something; what they had just touched never
    settles. `is_over`: all writers have closed their files, so everything has settled. Raises OSError if the
    folder cannot be read, as a job that took this for "no checkpoint" would start over.
    """
    now = time.time()
    checkpoints = _checkpoints(
        Layout(path, format, pattern, phase),
        partial(
            _doubt_by_times,
            now=now,
            ended_between=ended_between,
            is_over=is_over,
            ahead_s=fence.clock_ahead_s(Path(path)),
        ),
        Verdicts() if verdicts is None else verdicts,
        _recorded_states(Path(path)),
    )
    listed: list[wire.SavedState] = []
    for saved in checkpoints:
        listed.append(saved)
        if sum(one["good"] for one in listed) == LISTED_MOST:
            break
    checkpoints.close()
    oldest_good = max((n for n, one in enumerate(listed) if one["good"]), default=len(listed))
    return [one for n, one in enumerate(listed) if one["is_sure"] or n < oldest_good]


def _recorded_states(folder: Path) -> RecordedState:
    """The states of saves, as their agents recorded them. They are read when one is needed."""
    read = cache(partial(save_records.read, folder))
    return lambda top, content: save_records.state(read().values(), top.name, content)


def _doubt_by_times(
    item: Item,
    *,
    now: float,
    ended_between: Sequence[wire.TimeSpan],
    is_over: bool,
    ahead_s: float,
) -> Doubt:
    """The doubt by the time of the file's last change, as it is and by our clock.

    `ahead_s`: by how much the clock of the storage is ahead. A fence whose storage was slow shows too much.
    """
    by_our_clock = item._replace(at=item.at - ahead_s)
    if any(_is_cut_off(one, ended_between) for one in (item, by_our_clock)):
        return CUT_OFF
    return "" if is_over or _is_old(by_our_clock, now) else CHANGED_JUST_NOW


def _is_cut_off(item: Item, ended_between: Sequence[wire.TimeSpan]) -> bool:
    """Whether it may be cut off: a writer ended too soon after its last change."""
    return any(
        began - SETTLED_S - NOTICED_S <= item.at <= ended + NOTICED_S
        for began, ended in ended_between
    )


def _is_old(item: Item, now: float) -> bool:
    # A storage's clock may be ahead of ours: then its files never seem to be old.
    return now - item.at >= SETTLED_S or item.at - now > 60.0


class CheckpointWatch:
    """Looks at a folder repeatedly, and so sees itself what has settled."""

    def __init__(
        self,
        path: str,
        format: str,  # noqa: A002
        is_open: Callable[[Path], bool],
        pattern: str | None = None,
        phase: str | None = None,
    ) -> None:
        self._layout = Layout(path, format, pattern, phase)
        self._is_open = is_open
        # Files whose format does not show that they are complete, and since when each is as it is.
        self._unchanged: dict[Path, tuple[Item, float]] = {}
        self._verdicts = Verdicts()

    def newest(self, ticks: float) -> wire.SavedState | None:
        """The newest complete checkpoint; `ticks` is a monotonic clock."""

        unchanged: dict[Path, tuple[Item, float]] = {}

        def doubt(item: Item) -> Doubt:
            before = self._unchanged.get(item.path)
            if before is None or before[0] != item:
                unchanged[item.path] = (item, ticks)
                return CHANGED_JUST_NOW
            unchanged[item.path] = before
            has_settled = ticks - before[1] >= SETTLED_S and not self._is_open(item.path)
            return "" if has_settled else CHANGED_JUST_NOW

        with (
            contextlib.suppress(OSError),  # what cannot be read now is looked at again in a moment
            contextlib.closing(self._check(doubt)) as checkpoints,
        ):
            newest = next((saved for saved in checkpoints if saved["good"]), None)
            self._unchanged = unchanged  # files of checkpoints that were not looked at are dropped
            return newest
        return None

    def _check(self, settling: Settling) -> Generator[wire.SavedState, None, None]:
        return _checkpoints(self._layout, settling, self._verdicts)


class Pace:
    """How often checkpoints come: noticed by a clock of ours, whatever that of the storage says."""

    def __init__(self, newest: wire.SavedState | None) -> None:
        self._newest = newest
        self._times: list[float] = []

    def saw(self, newest: wire.SavedState | None, now: float) -> None:
        if newest is not None and newest != self._newest:
            self._newest = newest
            self._times = [*self._times[-GAPS_MOST:], now]

    @property
    def newest_at(self) -> float | None:
        return self._times[-1] if self._times else None

    @property
    def usual_s(self) -> float | None:
        """The usual time between two checkpoints; None as long as there were too few."""
        gaps = [later - earlier for earlier, later in zip(self._times, self._times[1:])]
        return sorted(gaps)[len(gaps) // 2] if len(gaps) >= GAPS_LEAST else None


# -- One look -----------------------------------------------------------------------------------


def _checkpoints(
    layout: Layout,
    settling: Settling,
    verdicts: Verdicts,
    recorded: RecordedState = lambda _top, _content: None,
) -> Generator[wire.SavedState, None, None]:
    """The checkpoints of the folder, newest first; each is read only when the caller wants it.

    The caller closes the generator, which ends the look.
    """
    folder, pattern, form = Path(layout.path), layout.pattern, layout.format
    since = phase_mark.began(layout.path, layout.phase)
    try:
        candidates = _candidates(folder, pattern)
        is_beside_trainers = _has_trainers(entries[0] for _, entries in candidates)
        look = _Check(
            folder,
            form,
            _Trackers.of(folder, pattern),
            settling,
            recorded,
            verdicts,
            is_beside_trainers,
        )
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        for number, (name, entries) in enumerate(candidates):
            next_ones = candidates[number + 1 : number + 1 + save_sizes.ELDERS_MOST]
            try:
                saved = look.read(name, entries, [paths for _, paths in next_ones])
            except OSError as error:
                if error.errno in SPENT:
                    raise
                continue  # it is being removed, or cannot be read
            if saved is not None and (since is None or saved["at"] >= since):
                yield saved
    finally:
        verdicts.finish_check()


class _Check(NamedTuple):
    """Reads the checkpoints of one folder."""

    folder: Path
    format: str
    trackers: _Trackers
    settling: Settling
    recorded: RecordedState
    verdicts: Verdicts
    is_beside_trainers: bool

    def read(
        self, name: Name, entries: Sequence[Path], older: Sequence[Sequence[Path]]
    ) -> wire.SavedState | None:
        """Read one checkpoint. None if nothing has that name. Raises OSError.

        `entries`: the files and folders of that name; `older`: those of the next older names.
        """
        tops = [_follow_link(entry, self.folder) for entry in entries]
        listed = _listed(tops, self.folder)
        if not listed:
            return None
        fingerprint = hash((self.format, self.trackers.are_there, self.is_beside_trainers, *listed))

        def judge() -> Judgement:
            items = [one.item for one in listed]
            content = Content(
                folder=self.folder,
                path=entries[0],
                tops=tops,
                step=name.step,
                items=items,
                is_tracked=self.trackers.are_there,
                is_beside_trainers=self.is_beside_trainers,
                before=older[0][0] if older else None,
            )
            verdict = checkpoint_formats.check(content, self.format)
            size, at = sum(item.size for item in items), max(item.at for item in items)
            return Judgement(fingerprint, verdict, size, at)

        judgement = self.verdicts.of(entries[0], fingerprint, judge)
        verdict, saved = judgement.verdict, partial(_saved, entries[0], name, judgement)
        is_vouched_for = self.trackers.vouch_for(name.step, self.format)
        if is_vouched_for is False or verdict.is_whole is False:
            return saved(verdict.why or NOT_TRACKED, is_sure=True)
        if is_vouched_for or verdict.is_whole:
            return saved("", is_sure=True)
        states = {self._state(top, listed) for top in tops}
        if older and len(entries) < len(older[0]):
            states.add(None)  # the ranks whose files are missing may not have saved yet
        doubt = self._doubt(verdict, states) or self._doubt_by_size(tops, states, older)
        return saved(doubt, is_sure=not doubt)

    def _doubt(self, verdict: Verdict, states: set[str | None]) -> Doubt:
        """The doubt about files that do not show whether they are whole: by recorded states and times."""
        # A list: the first call for a file starts its time, so none may be left out after a doubt.
        doubts = [self.settling(item) for item in verdict.silent]
        if OPEN in states:
            return LEFT_OPEN
        return "" if states <= {CLOSED, RENAMED} else next(filter(None, doubts), "")

    @staticmethod
    def _doubt_by_size(
        tops: Sequence[Path], states: set[str | None], older: Sequence[Sequence[Path]]
    ) -> Doubt:
        """A script that fails to save closes its file too, but it does not rename it."""
        return "" if states == {RENAMED} else save_sizes.doubt(tops, older)

    def _state(self, top: Path, listed: Sequence[_Listed]) -> str | None:
        """The recorded state of this file or folder."""
        below = f"{top}/"
        own_files = [one for one in listed if one.path == str(top) or one.path.startswith(below)]
        if top.parent != self.folder or any(one.is_elsewhere for one in own_files):
            return None
        changed_ns = max((one.changed[0] for one in own_files), default=0)
        size = sum(one.size for one in own_files)
        return self.recorded(top, save_records.Print(len(own_files), size, changed_ns))


def _has_trainers(newest_first: Iterable[Path]) -> bool:
    """Whether a trainer of Hugging Face saves here: its state is in each folder that it has completed."""
    folders = (p for p in newest_first if p.name.startswith(checkpoint_formats.OF_TRAINERS))
    few = itertools.islice(folders, LISTED_MOST)
    return any((folder / checkpoint_formats.TRAINER_STATE).is_file() for folder in few)


def _candidates(folder: Path, pattern: str | None) -> list[tuple[Name, list[Path]]]:
    """Everything in the folder that has one name, as far as that counts; the newest first."""
    newest = heapq.nlargest(NAMED_MOST, _named_entries(folder, pattern))
    entries_by_name: dict[Name, list[Path]] = {}
    for name, entry in newest:
        entries_by_name.setdefault(name, []).append(folder / entry)
    if len(newest) == NAMED_MOST and len(entries_by_name) > 1:
        entries_by_name.popitem()  # there may be more of that name
    return [(name, sorted(entries)) for name, entries in entries_by_name.items()]


def _named_entries(folder: Path, pattern: str | None) -> Iterator[tuple[Name, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = checkpoint_names.read(entry.name, pattern)
            if name is not None and not name.has_number:
                try:
                    name = name._replace(number=entry.stat().st_mtime_ns)
                except OSError:
                    continue  # it went while we looked, or leads nowhere: that hides no other
            if name is not None:
                yield name, entry.name


class _Listed(NamedTuple):
    """A file, and all that changes with it."""

    path: str
    size: int
    at: float
    changed: tuple[int, int, int]
    is_elsewhere: bool

    @classmethod
    def of(cls, path: str, info: os.stat_result, *, is_elsewhere: bool) -> _Listed:
        changed = (info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        return cls(path, info.st_size, info.st_mtime, changed, is_elsewhere)

    @property
    def item(self) -> Item:
        return Item(Path(self.path), self.size, self.at, is_elsewhere=self.is_elsewhere)


def _listed(tops: Sequence[Path], folder: Path) -> list[_Listed]:
    """Every file of it, those in folders included; of very many only its own names. Raises OSError."""
    files = list(itertools.islice(_walked(tops, folder), FILES_MOST + 1))
    if len(files) > FILES_MOST:
        return [_Listed.of(str(top), top.stat(), is_elsewhere=True) for top in tops]
    return files


def _walked(tops: Sequence[Path], folder: Path) -> Iterator[_Listed]:
    open_ones, visited = [str(top) for top in tops], set()
    while open_ones:
        path = open_ones.pop()
        if path in visited:
            continue
        visited.add(path)
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode):
            target = str(_follow_link(Path(path), folder))
            if target != path:
                open_ones.append(target)
                continue
            info = os.stat(path)  # noqa: PTH116  # a thousand of them are to take milliseconds
            if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
                yield _Listed.of(path, info, is_elsewhere=True)
        elif stat.S_ISREG(info.st_mode):
            yield _Listed.of(path, info, is_elsewhere=False)
        elif stat.S_ISDIR(info.st_mode):
            with os.scandir(path) as entries:
                names = sorted(entry.path for entry in itertools.islice(entries, FILES_MOST + 1))
            open_ones += names


def _follow_link(path: Path, folder: Path) -> Path:
    """What a link leads to, by its path in the folder; one that leads out of it stays as it is."""
    if not path.is_symlink():
        return path
    real, top = os.path.realpath(path), os.path.realpath(folder)
    return folder / os.path.relpath(real, top) if real.startswith(f"{top}/") else path


class _Trackers(NamedTuple):
    """What stands beside the checkpoints and says which are complete."""

    are_there: bool
    up_to: int | None  # this step is complete, with all before it; None: unknown

    @classmethod
    def of(cls, folder: Path, pattern: str | None) -> _Trackers:
        """Raises OSError."""
        steps: list[int | None] = []
        for name in checkpoint_formats.TRACKERS:
            try:
                text = files.read(folder / name, TRACKER_MAX, within=folder)
            except (FileNotFoundError, files.NotPlain, files.TooLarge):
                continue  # another program's `latest`
            tracked_name = checkpoint_names.tracked(text, pattern)
            steps.append(None if tracked_name is None else tracked_name.step)
        return cls(bool(steps), max((step for step in steps if step is not None), default=None))

    def vouch_for(self, step: int | None, format: str) -> bool | None:  # noqa: A002
        if format == checkpoint_formats.MEGATRON or (
            format not in (checkpoint_formats.HF, checkpoint_formats.DCP) and self.up_to is not None
        ):
            return step is not None and self.up_to is not None and step <= self.up_to
        return None


def _saved(
    path: Path, name: Name, judgement: Judgement, doubt: Doubt, *, is_sure: bool
) -> wire.SavedState:
    return {
        "step": name.step,
        "number": name.order_number,
        "path": str(path),
        "bytes": judgement.bytes,
        "at": judgement.at,
        "good": not doubt,
        "is_sure": is_sure,
        "doubt": doubt,
    }
