"""What the ranks of a job printed: its logs, opened by generation, their lines merged by time."""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

from everstep.backends.tools import LogLine, LogReader, RankLog, Tools
from everstep.chronicle import shapes
from everstep.client import connection, machine
from everstep.client.connection import rpc_errors_as_failed
from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs.answers import NoResponse
from everstep.client.jobs.found_job import FoundJob, find

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The logs that the options select."""

    job_id: str
    tools: Tools
    ranks: frozenset[int]
    generation: int | None

    async def existing(self) -> list[RankLog]:
        """The logs there are, oldest generation first."""
        return [
            log
            for log in await self.tools.logs(self.job_id)
            if (not self.ranks or log.rank in self.ranks)
            and self.generation in (None, log.generation)
        ]

    async def nothing(self) -> Failed:
        """Why there is nothing to print."""
        left = self._left_nothing()
        try:
            left += await _of_job(self.job_id, _situation)
        except Failed as error:
            if error.code is Exit.NOT_FOUND:
                return error
            left = f"{left}, and no server answers whether this job exists"
        return Failed(Exit.NOT_FOUND, left)

    def _left_nothing(self) -> str:
        who = f"rank {', '.join(map(str, sorted(self.ranks)))} of " if self.ranks else ""
        which = f" of generation {self.generation}" if self.generation is not None else ""
        return self.tools.no_logs(f"{who}{self.job_id} left no log{which}")


LogPart = tuple[int, AsyncIterator[LogLine], list[LogReader]]
"""A generation, lines of it, and the readers that go on behind them."""


async def parts(tools: Tools, rank_logs: Iterable[RankLog], tail: int | None) -> list[LogPart]:
    """The lines of every generation.

    With `tail` only the newest so many, from as many generations as it takes.
    """
    by_generation = groupby(rank_logs, key=lambda log: log.generation)
    parts: list[LogPart] = []
    for number, logs in reversed([(number, list(logs)) for number, logs in by_generation]):
        begun = [await _begun(tools, log, tail) for log in logs]
        lines = merged([lines for lines, _ in begun])
        if tail is not None:
            newest = deque([line async for line in lines], maxlen=tail)
            tail -= len(newest)
            lines = _each(newest)
        parts.insert(0, (number, lines, [reader for _, reader in begun]))
        if tail == 0:
            break
    return parts


class NewLines:
    """The lines of a job's newest generation as they come, then those of the next one."""

    def __init__(self, chosen: Chosen, *, generation: int, readers: Iterable[LogReader]) -> None:
        """`readers`: of logs of this generation, each behind what was read already."""
        self.ranks: set[int] = set()  # whose logs have come since
        self._chosen = chosen
        self._generation = generation
        self._readers = list(readers)

    @classmethod
    async def from_now(cls, job_id: str) -> NewLines:
        """What is printed from now on; what was printed before is left out."""
        tools = machine.tools()
        chosen = Chosen(job_id=job_id, tools=tools, ranks=frozenset(), generation=None)
        rank_logs = await chosen.existing()
        newest = max((log.generation for log in rank_logs), default=0)
        ends = [await tools.read_end(log, 0) for log in rank_logs if log.generation == newest]
        return cls(chosen, generation=newest, readers=[reader for _, reader in ends])

    async def since_last(self, *, whole: bool) -> AsyncIterator[tuple[int, LogLine]]:
        """What has come since the last call; `whole`: a line that has no end yet is kept for later."""
        rank_logs = await self._chosen.existing()
        self._open(rank_logs)
        newer = {log.generation for log in rank_logs if log.generation > self._generation}
        for generation in sorted(newer):  # a short one may have ended between two calls
            async for line in self._merged(whole=False):
                yield self._generation, line
            self._generation, self._readers = generation, []
            self._open(rank_logs)
        async for line in self._merged(whole=whole):
            yield self._generation, line

    def _open(self, rank_logs: Iterable[RankLog]) -> None:
        open_logs = {reader.log for reader in self._readers}
        fresh = [
            log for log in rank_logs if log.generation == self._generation and log not in open_logs
        ]
        self._readers += [self._chosen.tools.read(log) for log in fresh]
        self.ranks |= {log.rank for log in fresh}

    def _merged(self, *, whole: bool) -> AsyncIterator[LogLine]:
        return merged([reader.lines(whole=whole) for reader in self._readers])


async def _begun(
    tools: Tools, log: RankLog, tail: int | None
) -> tuple[AsyncIterator[LogLine], LogReader]:
    if tail is not None:
        lines, reader = await tools.read_end(log, tail)
        return _each(lines), reader
    reader = tools.read(log)
    return reader.lines(), reader


async def _each(lines: Iterable[LogLine]) -> AsyncIterator[LogLine]:
    for line in lines:
        yield line


async def merged(streams: Sequence[AsyncIterator[LogLine]]) -> AsyncIterator[LogLine]:
    """The lines of all streams by time. A line without a time comes right after the one before it."""
    firsts = [(await anext(stream, None), number) for number, stream in enumerate(streams)]
    heap = [_place(line, number) for line, number in firsts if line is not None]
    heapq.heapify(heap)
    while heap:
        *_, number, line = heap[0]
        yield line
        following = await anext(streams[number], None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, _place(following, number))


def _place(line: LogLine, stream: int) -> tuple[float, int, int, LogLine]:
    """Where the next line of this stream belongs among those of all streams."""
    return line.at or 0.0, line.rank, stream, line


async def chosen_logs(chosen: Chosen) -> tuple[Chosen, list[RankLog]]:
    """The logs of this machine's cluster, else those of the job's own one. Raises `Failed` if there are none.

    The tools of the result have to be closed.
    """
    rank_logs = await _or_closed(chosen)
    if rank_logs:
        return chosen, rank_logs
    tools = await _tools_of(chosen.job_id)
    if tools is not None:
        chosen = replace(chosen, tools=tools)
        rank_logs = await _or_closed(chosen)
    if not rank_logs:
        raise await chosen.nothing()
    return chosen, rank_logs


async def _or_closed(chosen: Chosen) -> list[RankLog]:
    """The logs there are; without any the tools are closed."""
    rank_logs: list[RankLog] = []
    try:
        rank_logs = await chosen.existing()
        return rank_logs
    finally:
        if not rank_logs:
            await chosen.tools.close()


async def _tools_of(job_id: str) -> Tools | None:
    """The tools of the job's cluster, where that is another one than this machine's and makes pods."""

    async def cluster_of(job: FoundJob) -> str | None:
        name: str | None = job.attribute("TrainCluster")
        return name

    with contextlib.suppress(Failed):
        cluster = await _of_job(job_id, cluster_of)
        if cluster is not None and not machine.is_here(cluster) and machine.has_pods(cluster):
            return machine.tools(cluster)
    return None


async def _of_job(job_id: str, work: Callable[[FoundJob], Awaitable[T]]) -> T:
    client = await connection.client()
    with rpc_errors_as_failed(client):
        return await work(await find(client, job_id))


async def _situation(job: FoundJob) -> str:
    """Why a job may have printed nothing: what it waits for, or how it failed, as the end of a sentence."""
    with contextlib.suppress(NoResponse):
        status = await job.answer("status") or {}
        if status.get("waiting_for"):
            return f"; it waits for {status['waiting_for']}"
        if status.get("state") == "failed":
            return f"; it failed: {status['reason']}"
    return ""


def line_value(generation: int, line: LogLine) -> dict[str, Any]:
    """The line for programs; `left_out` counts bytes that are not there any more."""
    return {
        "generation": generation,
        "rank": line.rank,
        "at": shapes.moment(line.at),
        "text": line.text.rstrip("\n"),
        "left_out": line.left_out,
    }
