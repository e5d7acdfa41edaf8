"""Follows the checkpoints of a run, and the storage that they are written to.

The agent's loop calls `Saves.follow` once a second. It looks in another thread, as storage that hangs must
not hang the agent, and writes into the `Run`: the newest checkpoint, when one came, free space, and files
that are no checkpoints.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from pathlib import Path

from everstep.agent import clock
from everstep.agent.agent import Agent
from everstep.agent.future import Future
from everstep.agent.observing.unrecognised import UnrecognisedFiles
from everstep.agent.processes import proc
from everstep.agent.processes.run import Run
from everstep.agent.storage import checkpoints, reading, space
from everstep.protocol import wire


class Saves:
    """Follows the checkpoints of one run after the other."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._saves_of_run: SavesOfRun | None = None
        self._check: Future[None] | None = None  # in progress in another thread, or just done

    def follow(self, run: Run) -> None:
        """Begin to look for checkpoints, unless the look before goes on. Returns at once."""
        path = run.order.checkpoints_path
        if path is None:
            return
        if self._saves_of_run is None or self._saves_of_run.run is not run:
            self._watch(run, path)
            self._saves_of_run, self._check = SavesOfRun(self._agent, run, path), None
        if self._check is None or self._check.done():
            if self._check is not None and (error := self._check.exception()) is not None:
                self._agent.note(f"{path} cannot be searched for checkpoints: {error!r}")
            with contextlib.suppress(reading.StorageHangs):
                self._check = reading.begin(path, self._saves_of_run.check)

    def _watch(self, run: Run, path: str) -> None:
        """Watch the files of this run's saves, and no longer those of the run before."""
        # Only a run that saves needs these modules.
        from everstep.agent.observing.save_watch import SaveRun, SaveWatch

        agent, pattern = self._agent, run.order.checkpoints_pattern
        if agent.save_watch is not None:
            agent.save_watch.close()
        of_run = SaveRun(agent.job, agent.slot, run.generation, Path(path), pattern)
        watch = agent.save_watch = SaveWatch(of_run, agent.population.is_helper)
        try:
            watch.begin()
        except RuntimeError:  # without a thread nothing is known of any save
            agent.save_watch = None


class MountedVolume:
    """The volume of a folder. What is written there once it is not mounted any more is lost for the job."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._place: Path | None = None  # where the volume is mounted

    def is_newly_missing(self) -> bool:
        """Whether the volume was mounted at the last look and is not now. Its folder has to be there."""
        place, self._place = self._place, None
        try:
            if place is not None and place.is_dir() and not place.is_mount():
                return True
            self._place = _mount_of(Path(self._path).resolve(strict=True))
        except OSError:
            self._place = place
        return False


def _mount_of(folder: Path) -> Path | None:
    """Where the volume of this folder is mounted, unless that is the root."""
    *below_root, _ = folder, *folder.parents  # Python 3.9 takes no slice of `parents`
    for path in below_root:
        if path.is_mount():
            return path
    return None


class SavesOfRun:
    """The checkpoints of one run. Those of the first look are older: it begins before the ranks do."""

    def __init__(self, agent: Agent, run: Run, path: str) -> None:
        self.run = run
        self._agent = agent
        self._path = path
        self._watch = checkpoints.CheckpointWatch(
            path,
            run.order.checkpoints_format,
            self._is_open,
            run.order.checkpoints_pattern,
            run.order.checkpoints_of,
        )
        self._pace: checkpoints.Pace | None = None
        self._unrecognised = UnrecognisedFiles(path, run.order.checkpoints_pattern)
        self._volume = MountedVolume(path)

    def check(self) -> None:
        """Look once; in a thread that storage may hold for long."""
        run, newest = self.run, self._watch.newest(time.monotonic())
        self._pace = pace = self._pace or checkpoints.Pace(newest)
        pace.saw(newest, clock.now())
        run.saved_at, run.save_every_s = pace.newest_at, pace.usual_s
        if run.checkpoint is None:
            with contextlib.suppress(OSError):  # it is looked again in a moment
                run.unrecognised = self._unrecognised.check(clock.now())
        run.free_bytes = _free_bytes(self._path)
        run.has_folder = run.has_folder or Path(self._path).is_dir()
        if self._volume.is_newly_missing():
            self._agent.loop.hand_over(self._report_missing_volume)
        # A folder that has vanished is the restart's matter: it waits for it, or reports that it is gone.
        if newest is not None and newest != run.checkpoint:
            self._agent.loop.hand_over(partial(self._set_newest, newest))

    def _set_newest(self, newest: wire.SavedState) -> None:
        self.run.checkpoint = newest
        self._agent.publish()  # at once: what is answered to a fault depends on it

    def _report_missing_volume(self) -> None:
        if self._agent.run is self.run and self.run.is_alive:
            text = f"{self._path}: the volume that was mounted there is missing"
            self._agent.add_fact("storage.missing", text, at=clock.now())
            self._agent.publish()

    def _is_open(self, path: Path) -> bool:
        """Whether a process of the pod may still write to it, or ended while it did."""
        if (watch := self._agent.save_watch) is not None and watch.is_open(path):
            return True
        real = str(path.resolve())
        try:
            pod = self._agent.population.descendants()
        except OSError:
            return True  # unknown
        return any(real in proc.written_files(process.pid) for process in pod)


def _free_bytes(path: str) -> int | None:
    """Free bytes below this path, which need not exist yet; None: unknown."""
    with contextlib.suppress(OSError):
        return space.free_bytes(space.nearest(Path(path)))
    return None
