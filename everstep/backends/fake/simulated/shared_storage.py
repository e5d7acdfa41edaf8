"""The shared storage of the fake cluster: checkpoints by path. It outlives jobs, pods and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from everstep.backends.rules.ownership import FolderClaim, FolderPlace, claimed
from everstep.chronicle.chronicle import Entry
from everstep.core.world import Checkpoint

CHECKPOINTS_KEPT = 50
"""Checkpoints kept per path, highest steps first; a real job cleans up behind itself too."""

BYTES = 1 << 20
VOLUME = "shared"


class Storage:
    """The checkpoints of all jobs, by folder."""

    def __init__(self) -> None:
        self._saved: dict[str, dict[int, Checkpoint]] = {}
        self._away: dict[str, dict[int, Checkpoint]] = {}  # moved somewhere else
        self._phases: dict[str, tuple[str, float]] = {}  # the newest to begin there, and when
        self._rotten: set[tuple[str, int]] = set()  # looks good, cannot be loaded
        self._set_aside: dict[tuple[str, int], list[str]] = {}
        self._fences: dict[str, int] = {}
        self._owners: dict[FolderPlace, str] = {}
        self._records: dict[str, dict[tuple[float, int], Entry]] = {}

    # --- whose a folder is ------------------------------------------------------------------

    def claim(self, job: str, folders: Mapping[str, str]) -> None:
        """The folders (path -> the field that names it) are the job's, all or none."""
        claims = [
            FolderClaim(path=path, field=field, places=(FolderPlace(VOLUME, path),))
            for path, field in folders.items()
        ]
        self._owners |= claimed(job, claims, self._owners)

    def let_go(self, job: str) -> None:
        self._owners = {place: owner for place, owner in self._owners.items() if owner != job}

    def owners(self) -> frozenset[str]:
        return frozenset(self._owners.values())

    def fence(self, path: str, generation: int) -> None:
        self._fences[path] = max(generation, self._fences.get(path, 0))

    def newest_fence(self, folders: Iterable[str]) -> int:
        return max((self._fences.get(path, 0) for path in folders), default=0)

    # --- records ----------------------------------------------------------------------------

    def record(self, job: str, entries: Iterable[Entry]) -> None:
        records = self._records.setdefault(job, {})
        records |= {(entry.began, entry.number): entry for entry in entries}

    def recorded(self, job: str) -> tuple[str, ...]:
        """The lines of the job, as they came."""
        return tuple(entry.text for entry in self._records.get(job, {}).values())

    # --- checkpoints ------------------------------------------------------------------------

    def save(self, path: str, steps: Iterable[tuple[int, float]]) -> None:
        """Keep a checkpoint of each `(step, time)`; one saved again is a new and good one."""
        saved = self._saved.setdefault(path, {})
        for step, at in steps:
            self._rotten.discard((path, step))
            saved[step] = Checkpoint(step=step, path=f"{path}/step-{step}", bytes=BYTES, at=at)
        for step in sorted(saved)[:-CHECKPOINTS_KEPT]:
            del saved[step]

    def move_away(self, path: str) -> None:
        self._away[path] = self._saved.pop(path, {})

    def move_back(self, path: str) -> None:
        self._saved[path] = {**self._away.pop(path, {}), **self._saved.get(path, {})}

    def begin(self, path: str, phase: str, now: float) -> None:
        """The phase begins now, unless it has begun: what was saved before is not its own."""
        if self._phases.get(path, ("", 0.0))[0] != phase:
            self._phases[path] = (phase, now)

    def newest_first(self, path: str | None, phase: str | None = None) -> tuple[Checkpoint, ...]:
        """`phase`: only those that it saved itself."""
        return self._of_phase(self._saved.get(path or "", {}), path, phase)

    def ever_newest_first(
        self, path: str | None, phase: str | None = None
    ) -> tuple[Checkpoint, ...]:
        """As `newest_first`, with those that were moved away: what agents saw they still report."""
        ever = {**self._away.get(path or "", {}), **self._saved.get(path or "", {})}
        return self._of_phase(ever, path, phase)

    def _of_phase(
        self, saved: Mapping[int, Checkpoint], path: str | None, phase: str | None
    ) -> tuple[Checkpoint, ...]:
        begun, at = self._phases.get(path or "", ("", 0.0))
        since = at if begun == phase else 0.0
        return tuple(saved[s] for s in sorted(saved, reverse=True) if saved[s].at >= since)

    def spoil(self, path: str, step: int, *, hidden: bool) -> bool:
        """Make a checkpoint bad; `hidden`: only who loads it finds out. False if there is none."""
        if step not in self._saved.get(path, {}):
            return False
        if hidden:
            self._rotten.add((path, step))
        else:
            damaged = replace(self._saved[path][step], good=False, doubt="damaged")
            self._saved[path][step] = damaged
        return True

    def set_aside(self, path: str | None, names: Iterable[str], generation: int) -> tuple[str, ...]:
        """Rename these checkpoints; where all are that this generation renamed."""
        saved = self._saved.get(path or "", {})
        moved = self._set_aside.setdefault((path or "", generation), [])
        for step in [step for step, one in saved.items() if one.path in {*names}]:
            del saved[step]
            moved.append(f"{path}/.everstep/set_aside/step-{step}")
        return tuple(moved)

    def can_be_loaded(self, path: str | None, step: int) -> bool:
        """Whether a start from this step works; what is not here is not ours to judge."""
        checkpoint = self._saved.get(path or "", {}).get(step)
        return checkpoint is None or (checkpoint.good and (path or "", step) not in self._rotten)
