"""What the ranks of a job printed, from the logs of its containers, where its agents copy it to."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from weakref import WeakSet

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.manifest import CONTAINER
from everstep.backends.tools import LogLine, RankLog

_LINE = re.compile(rb"(?:(\d{4}-\d\d-\d\dT\S+) )?\[g(\d+) rank (\d+)\] (.*)", re.DOTALL)
_QUERY = {"container": CONTAINER, "timestamps": "true"}
_ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have all ended."""

_NO_LOG = frozenset({400, 404})
"""The container has not started, or the pod is gone."""

_SILENCE_S = 3600.0  # of ranks that print nothing


@dataclass(slots=True)
class RankLines:
    """Lines of one rank: all of them until its readers are open, then only those that a reader lacks."""

    from_start: list[LogLine] = field(default_factory=list)
    is_listed: bool = False  # a caller can open it
    is_complete: bool = True
    readers: WeakSet[PodLogReader] = field(default_factory=WeakSet)

    def add(self, line: LogLine) -> None:
        if self.is_complete:
            self.from_start.append(line)
        for reader in self.readers:
            reader.unread.append(line)

    def open(self, log: RankLog, *, newest: int | None) -> PodLogReader:
        begin = 0 if newest is None else max(0, len(self.from_start) - newest)
        reader = PodLogReader(log, self.from_start[begin:])
        self.readers.add(reader)
        return reader

    def free_if_listed(self) -> None:
        """Free what no reader needs: a log is opened as soon as it is listed, or never."""
        if self.is_listed and self.is_complete:
            self.is_complete, self.from_start = False, []


@dataclass(slots=True)
class PodLog:
    """The log of one pod: read once as it is, and followed from the next look on until it ends.

    Each later stream begins with the newest second that was read: the kubelet may have rotated the log since
    then, and serves its newest file alone. What was read of that second is skipped.
    """

    api: KubernetesApi
    path: str
    lines: dict[RankLog, RankLines] = field(default_factory=dict)
    newest_second: int = 0  # since 1970; 0: no line was read
    read_since: Counter[bytes] = field(default_factory=Counter)  # the lines of that second or later
    is_read: bool = False
    is_over: bool = False
    following: asyncio.Task[None] | None = None

    async def poll(self, *, has_ended: bool) -> None:
        """Read the log. From the second look on a task reads what is added.

        `has_ended`: no container writes to it any more.
        """
        if self.is_over:
            return
        if not self.is_read:
            self.is_read = await self._read(_QUERY)
            self.is_over = self.is_read and has_ended
        elif self.following is None or self.following.done():
            self.following = asyncio.create_task(self._follow(has_ended=has_ended))

    async def _follow(self, *, has_ended: bool) -> None:
        """Read on. The next look resumes a stream that ended before its container."""
        with contextlib.suppress(Refused, Unreachable):
            is_whole = await self._read({**_QUERY, "follow": "true"})
            self.is_over = is_whole and has_ended

    async def _read(self, query: Mapping[str, str]) -> bool:
        """Add what comes behind the lines read so far. Returns whether there is a log."""
        if self.newest_second:
            since = datetime.fromtimestamp(self.newest_second, UTC)
            query = {**query, "sinceTime": f"{since:%Y-%m-%dT%H:%M:%SZ}"}
        again = Counter(self.read_since)
        begun = b""
        try:
            async for chunk in self.api.stream(self.path, query, silence_s=_SILENCE_S):
                *lines, begun = (begun + chunk).split(b"\n")
                for line in lines:
                    if again[line]:
                        again[line] -= 1
                    else:
                        self._add(line)
        except Refused as error:
            if error.status in _NO_LOG:
                return False
            raise
        return True

    def _add(self, text: bytes) -> None:
        if not (match := _LINE.fullmatch(text)):
            return
        at, generation, rank, line = match.groups()
        log = RankLog(generation=int(generation), rank=int(rank), source=self.path)
        when = None if at is None else datetime.fromisoformat(at.decode()).timestamp()
        printed = LogLine(rank=log.rank, text=f"{line.decode(errors='replace')}\n", at=when)
        self.lines.setdefault(log, RankLines()).add(printed)
        self._note(text, self.newest_second if when is None else int(when))

    def _note(self, text: bytes, second: int) -> None:
        """Remember a line that the next stream would repeat."""
        if second > self.newest_second:
            self.newest_second = second
            self.read_since.clear()
        if second == self.newest_second:
            self.read_since[text] += 1


@dataclass(slots=True)
class PodLogs:
    """The logs of all pods of a job that are there."""

    api: KubernetesApi
    namespaces: Sequence[str]
    pods: dict[str, PodLog] = field(default_factory=dict)

    async def of_job(self, job: str) -> list[RankLog]:
        """Read what has come. All logs, oldest generation first. Raises Refused, Unreachable.

        A log that is listed is opened before the next call, or its lines are lost.
        """
        for lines in self._lines():
            lines.free_if_listed()
        query = {"labelSelector": f"{names.JOB}={names.job_label(job)}"}
        looks = []
        for namespace in self.namespaces:
            path = f"/api/v1/namespaces/{namespace}/pods"
            for pod in (await self.api.get(path, query))["items"]:
                if (phase := pod["status"].get("phase")) == "Pending":  # it has no log yet
                    continue
                name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
                log = self.pods.setdefault(uid, PodLog(self.api, f"{path}/{name}/log"))
                looks.append(log.poll(has_ended=phase in _ENDED))
        # A pod that is gone is not read again, as another one may have its name. Its lines stay listed.
        await asyncio.gather(*looks)
        for lines in self._lines():
            lines.is_listed = True
        return sorted({log for pod in self.pods.values() for log in pod.lines})

    def _lines(self) -> Iterator[RankLines]:
        return (lines for pod in self.pods.values() for lines in pod.lines.values())

    def reader(self, log: RankLog, *, newest: int | None = None) -> PodLogReader:
        """A reader of the newest such pod: from the beginning, or from the `newest` lines on."""
        lines = next(pod.lines[log] for pod in reversed(self.pods.values()) if log in pod.lines)
        return lines.open(log, newest=newest)

    async def close(self) -> None:
        tasks = [pod.following for pod in self.pods.values() if pod.following is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.api.close()


class PodLogReader:
    """Reads the lines that have come, on and on."""

    def __init__(self, log: RankLog, lines: Iterable[LogLine]) -> None:
        self.log = log
        self.unread = deque(lines)

    async def lines(
        self,
        *,
        whole: bool = True,  # noqa: ARG002  # a line without its end is kept back here in any case
    ) -> AsyncIterator[LogLine]:
        while self.unread:
            yield self.unread.popleft()
