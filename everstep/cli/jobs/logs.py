"""The command `logs`: what the ranks of a job printed, over its restarts.

`Chosen` finds the logs, `_parts` opens them by generation and merges the lines of ranks by time, `LogScreen`
formats the lines, and `RankOutput` follows the newest generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Annotated, Any

import typer
from temporalio.client import Client

from everstep.agent.observing.logs import HEAD, MB, TAIL_LEAST
from everstep.backends.tools import LogLine, LogReader, RankLog, Tools
from everstep.chronicle import shapes
from everstep.cli.jobs.job import JobId
from everstep.cli.server import with_server
from everstep.client import machine
from everstep.client.exits import Exit, Failed
from everstep.client.jobs.answers import NoResponse
from everstep.client.jobs.found_job import find
from everstep.core.escaping import for_terminal

LOOK_S = 0.2

LEFT_OUT = (
    "... here {size:.1f} MB are left out: of a long log the first {head} MB and at least the newest "
    "{kept} MB are kept\n"
)


def logs(
    job_id: JobId,
    *,
    ranks: Annotated[
        list[int] | None,
        typer.Option("--rank", min=0, help="Only of this rank; may be repeated. Else of all."),
    ] = None,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Of this generation; else of all of them.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only so many of the newest lines, of all ranks.")
    ] = None,
    timestamps: Annotated[
        bool,
        typer.Option("--timestamps", help="When each line was printed, to a tenth of a second."),
    ] = False,
    is_raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="As it was printed: with colours, moving progress bars and all else."
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what it prints from now on.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each line as JSON: generation, rank, at, text.")
    ] = False,
) -> None:
    """Print what the ranks of a job printed, line by line as it came.

    With several ranks each line begins with its rank. Every start of the job has a generation, which a
    heading names. -f follows until Ctrl-C. Without --raw, control sequences are removed: of a line that
    was overwritten, such as a progress bar, the last state is printed.
    """
    screen = LogScreen(
        is_json=as_json, is_raw=is_raw, has_headings=generation is None, has_times=timestamps
    )
    place = machine.tools()
    chosen = Chosen(job_id=job_id, tools=place, ranks=frozenset(ranks or ()), generation=generation)
    if asyncio.run(_print_logs(chosen, screen, tail=tail, follow=follow)):
        return
    elsewhere = replace(chosen, tools=_tools_of(job_id) or place)
    if elsewhere == chosen or not asyncio.run(
        _print_logs(elsewhere, screen, tail=tail, follow=follow)
    ):
        raise elsewhere.nothing()


def _tools_of(job_id: str) -> Tools | None:
    """The tools of the job's cluster, where that is another one than this machine's and makes pods."""
    with contextlib.suppress(Failed):
        job = with_server(lambda client: find(client, job_id))
        cluster = job.attribute("TrainCluster")
        if cluster is not None and not machine.is_here(cluster) and machine.has_pods(cluster):
            return machine.tools(cluster)
    return None


async def _print_logs(chosen: Chosen, screen: LogScreen, *, tail: int | None, follow: bool) -> bool:
    """Print the chosen logs. False if there are none."""
    try:
        rank_logs = await chosen.existing()
        if not rank_logs:
            return False
        screen.ranks |= {log.rank for log in rank_logs}
        parts = await _parts(chosen.tools, rank_logs, tail)
        for number, lines, _ in parts:
            await screen.show(number, lines)
        number, _, readers = parts[-1]
        output = RankOutput(chosen, generation=number, readers=readers)
        while follow:
            await output.show(screen, whole=not screen.is_copied)
            await asyncio.sleep(LOOK_S)
        await output.show(screen, whole=False)
        return True
    finally:
        await chosen.tools.close()


async def _situation(client: Client, job_id: str) -> str:
    """Why a job may have printed nothing: what it waits for, or how it failed, as the end of a sentence."""
    job = await find(client, job_id)
    with contextlib.suppress(NoResponse):
        status = await job.answer("status") or {}
        if status.get("waiting_for"):
            return f"; it waits for {status['waiting_for']}"
        if status.get("state") == "failed":
            return f"; it failed: {status['reason']}"
    return ""


# -- Finding ------------------------------------------------------------------------------------


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

    def nothing(self) -> Failed:
        """Why there is nothing to print."""
        left = self._left_nothing()
        try:
            left += with_server(lambda client: _situation(client, self.job_id))
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


async def _parts(tools: Tools, rank_logs: Iterable[RankLog], tail: int | None) -> list[LogPart]:
    """The lines of every generation.

    With `tail` only the newest so many, from as many generations as it takes.
    """
    by_generation = groupby(rank_logs, key=lambda log: log.generation)
    parts: list[LogPart] = []
    for number, logs in reversed([(number, list(logs)) for number, logs in by_generation]):
        begun = [await _begun(tools, log, tail) for log in logs]
        lines = _merged([lines for lines, _ in begun])
        if tail is not None:
            newest = deque([line async for line in lines], maxlen=tail)
            tail -= len(newest)
            lines = _each(newest)
        parts.insert(0, (number, lines, [reader for _, reader in begun]))
        if tail == 0:
            break
    return parts


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


async def _merged(streams: Sequence[AsyncIterator[LogLine]]) -> AsyncIterator[LogLine]:
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


# -- Showing ------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class LogScreen:
    """Formats lines, with headings, times and ranks before them, and prints them."""

    is_json: bool
    is_raw: bool
    has_headings: bool
    has_times: bool
    ranks: set[int] = field(default_factory=set)
    is_shared: bool = False  # something else is printed between the lines
    _heading: int | None = None

    @property
    def is_bare(self) -> bool:
        """Whether lines are printed without anything before them: there is one rank, and nothing else."""
        is_one = len(self.ranks) == 1 and not self.is_shared
        return is_one and not self.has_times and not self.is_json

    @property
    def is_copied(self) -> bool:
        """Whether output is printed as it is, control sequences included."""
        return self.is_raw and self.is_bare

    async def show(self, generation: int, lines: AsyncIterator[LogLine]) -> None:
        await _write(self.texts(generation, lines))

    async def texts(self, generation: int, lines: AsyncIterator[LogLine]) -> AsyncIterator[str]:
        """What is printed for these lines."""
        async for line in lines:
            if self.is_json:
                yield json.dumps(_value(generation, line)) + "\n"
                continue
            if self.has_headings and generation != self._heading:
                self._heading = generation
                yield f"== generation {generation}\n"
            yield self._text(line)

    def _text(self, line: LogLine) -> str:
        text = line.text
        if line.left_out:
            size = line.left_out / MB
            text = LEFT_OUT.format(size=size, head=HEAD // MB, kept=TAIL_LEAST // MB)
        if self.is_copied:
            return text
        when = f"{shapes.moment(line.at) or '-':24} " if self.has_times else ""
        who = f"[rank {line.rank}] " if len(self.ranks) > 1 else ""
        last_state = text.rstrip("\r\n").rpartition("\r")[2]  # of a progress bar
        end = "" if self.is_bare and not text.endswith("\n") else "\n"  # a long line comes in parts
        return f"{when}{who}{last_state if self.is_raw else for_terminal(last_state)}{end}"


async def _write(texts: AsyncIterator[str]) -> None:
    async for text in texts:
        sys.stdout.write(text)
    sys.stdout.flush()


def _value(generation: int, line: LogLine) -> dict[str, Any]:
    """The line for programs; `left_out` counts bytes that are not there any more."""
    return {
        "generation": generation,
        "rank": line.rank,
        "at": shapes.moment(line.at),
        "text": line.text.rstrip("\n"),
        "left_out": line.left_out,
    }


# -- Following ----------------------------------------------------------------------------------


class RankOutput:
    """The output of a job's newest generation as it grows, then that of the next one."""

    def __init__(self, chosen: Chosen, *, generation: int, readers: Iterable[LogReader]) -> None:
        """`readers`: of logs of this generation, each behind what was shown already."""
        self._chosen = chosen
        self._generation = generation
        self._readers = list(readers)

    @classmethod
    async def from_now(cls, job_id: str) -> RankOutput:
        """What is printed from now on; what was printed before is left out."""
        tools = machine.tools()
        chosen = Chosen(job_id=job_id, tools=tools, ranks=frozenset(), generation=None)
        rank_logs = await chosen.existing()
        newest = max((log.generation for log in rank_logs), default=0)
        ends = [await tools.read_end(log, 0) for log in rank_logs if log.generation == newest]
        return cls(chosen, generation=newest, readers=[reader for _, reader in ends])

    async def show(self, screen: LogScreen, *, whole: bool) -> None:
        """Print what has come; `whole`: a line that has no end yet is kept for later."""
        await _write(self.texts(screen, whole=whole))

    async def texts(self, screen: LogScreen, *, whole: bool) -> AsyncIterator[str]:
        """The text that `show` prints."""
        rank_logs = await self._chosen.existing()
        self._open(rank_logs, screen)
        newer = {log.generation for log in rank_logs if log.generation > self._generation}
        for generation in sorted(newer):  # a short one may have ended between two looks
            async for text in screen.texts(self._generation, self._lines(whole=False)):
                yield text
            self._generation, self._readers = generation, []
            self._open(rank_logs, screen)
        async for text in screen.texts(self._generation, self._lines(whole=whole)):
            yield text

    def _open(self, rank_logs: Iterable[RankLog], screen: LogScreen) -> None:
        open_logs = {reader.log for reader in self._readers}
        fresh = [
            log for log in rank_logs if log.generation == self._generation and log not in open_logs
        ]
        self._readers += [self._chosen.tools.read(log) for log in fresh]
        screen.ranks |= {log.rank for log in fresh}

    def _lines(self, *, whole: bool) -> AsyncIterator[LogLine]:
        return _merged([reader.lines(whole=whole) for reader in self._readers])
