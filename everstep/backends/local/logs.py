"""What the ranks of a job printed, over all its restarts: files that outlive pods and workers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from everstep.agent.observing import logs
from everstep.agent.observing.log_times import Times
from everstep.agent.storage import files
from everstep.backends.tools import LogLine, RankLog
from everstep.protocol import wire

ABOUT = "pod.json"
"""Which job's pod a folder is; the folder's name need not say it."""

_NAME = re.compile(r"g(\d+)-r(\d+)\.log")


def label(folder: Path, *, job: str, slot: int) -> None:
    """Store in the folder which job and slot it belongs to. Repeatable."""
    about = folder / ABOUT
    if not about.exists():
        files.replace(about, json.dumps({"job": job, "slot": slot}))


def job_of(folder: Path) -> str | None:
    """The job to which the folder belongs, if that can be read."""
    try:
        about = files.read_json(folder / ABOUT)
    except (OSError, ValueError):
        return None
    return str(about["job"]) if isinstance(about, dict) and "job" in about else None


def of_job(agents: Path, job: str) -> list[RankLog]:
    """All logs of the job, oldest generation first."""
    return sorted(log for folder in _folders(agents, job) for log in _logs(folder))


def _folders(agents: Path, job: str) -> Iterator[Path]:
    for about in agents.glob(f"*/{ABOUT}"):
        if job_of(about.parent) == job:
            yield about.parent


def _logs(folder: Path) -> Iterator[RankLog]:
    for path in (folder / wire.LOGS).glob("*.log"):
        if match := _NAME.fullmatch(path.name):
            yield RankLog(generation=int(match[1]), rank=int(match[2]), source=str(path))


# -- Reading ------------------------------------------------------------------------------------

CHUNK = 1 << 16
_PIECE = re.compile(rb"[^\n]*\n|[^\n]+")


class LocalLogReader:
    """Reads a log on and on, from an offset into what the rank wrote; below 0 it counts from the end."""

    def __init__(self, log: RankLog, offset: int = 0) -> None:
        self.log = log
        self.is_whole = offset == 0  # nothing was skipped on purpose
        self._offset = offset
        self._begun = b""
        self._begun_at: float | None = None

    async def lines(self, *, whole: bool = True) -> AsyncIterator[LogLine]:
        """What has come, up to now; `whole`: a line that has no end yet is kept for later."""
        path = Path(self.log.source)
        times = Times(path)
        while True:
            await asyncio.sleep(0)  # a long log can be interrupted
            try:
                chunk, at, behind = logs.read(path, self._offset, CHUNK)
            except OSError:  # it was removed meanwhile
                return
            if at > self._offset >= 0:
                self._begun += b"\n" if self._begun else b""
                for line in self._rest():
                    yield line
                yield LogLine(rank=self.log.rank, text="", at=None, left_out=at - self._offset)
            if self._offset < 0:
                self.is_whole = at == 0
            self._offset = behind
            if not chunk:
                break
            for line in self._split(chunk, at, times):
                yield line
        if not whole:
            for line in self._rest():
                yield line

    def _split(self, chunk: bytes, at: int, times: Times) -> Iterator[LogLine]:
        for piece in _PIECE.findall(chunk):
            if not self._begun:
                self._begun_at = times.at(at)
            self._begun += piece
            at += len(piece)
            if piece.endswith(b"\n") or len(self._begun) > CHUNK:
                yield from self._rest()

    def _rest(self) -> Iterator[LogLine]:
        if self._begun:
            text = self._begun.decode(errors="replace")
            yield LogLine(rank=self.log.rank, text=text, at=self._begun_at)
        self._begun = b""


async def last(log: RankLog, count: int) -> tuple[list[LogLine], LocalLogReader]:
    """The last lines of the log, and a reader that continues after them. Only its end is read."""
    span = CHUNK
    while True:
        reader = LocalLogReader(log, -span)
        lines = [line async for line in reader.lines()]
        whole = lines if reader.is_whole else lines[1:]
        if len(whole) >= count or reader.is_whole:
            return whole[-count:], reader
        span *= 4
