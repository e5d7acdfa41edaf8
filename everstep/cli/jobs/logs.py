"""The command `logs`: what the ranks of a job printed, over its restarts.

`LogScreen` formats the lines, and `RankOutput` follows the newest generation.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated

import typer

from everstep.agent.observing.logs import HEAD, MB, TAIL_LEAST
from everstep.backends.tools import LogLine
from everstep.chronicle import shapes
from everstep.cli.jobs.job_argument import JobId
from everstep.client import machine
from everstep.client.jobs.logs import Chosen, NewLines, chosen_logs, line_value, parts
from everstep.core.escaping import for_terminal

POLL_S = 0.2

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
    chosen = Chosen(
        job_id=job_id,
        tools=machine.tools(),
        ranks=frozenset(ranks or ()),
        generation=generation,
    )
    asyncio.run(_print_logs(chosen, screen, tail=tail, follow=follow))


async def _print_logs(chosen: Chosen, screen: LogScreen, *, tail: int | None, follow: bool) -> None:
    chosen, rank_logs = await chosen_logs(chosen)
    try:
        screen.ranks |= {log.rank for log in rank_logs}
        by_generation = await parts(chosen.tools, rank_logs, tail)
        for number, lines, _ in by_generation:
            await screen.show(number, lines)
        number, _, readers = by_generation[-1]
        output = RankOutput(NewLines(chosen, generation=number, readers=readers))
        while follow:
            await output.show(screen, whole=not screen.is_copied)
            await asyncio.sleep(POLL_S)
        await output.show(screen, whole=False)
    finally:
        await chosen.tools.close()


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
        await _write(text async for line in lines for text in self.texts(generation, line))

    def texts(self, generation: int, line: LogLine) -> Iterator[str]:
        """What is printed for this line."""
        if self.is_json:
            yield json.dumps(line_value(generation, line)) + "\n"
            return
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


# -- Following ----------------------------------------------------------------------------------


class RankOutput:
    """What `NewLines` has, formatted for a screen."""

    def __init__(self, lines: NewLines) -> None:
        self._lines = lines

    @classmethod
    async def from_now(cls, job_id: str) -> RankOutput:
        """What is printed from now on; what was printed before is left out."""
        return cls(await NewLines.from_now(job_id))

    async def show(self, screen: LogScreen, *, whole: bool) -> None:
        """Print what has come; `whole`: a line that has no end yet is kept for later."""
        await _write(self.texts(screen, whole=whole))

    async def texts(self, screen: LogScreen, *, whole: bool) -> AsyncIterator[str]:
        """The text that `show` prints."""
        async for generation, line in self._lines.since_last(whole=whole):
            screen.ranks |= self._lines.ranks
            for text in screen.texts(generation, line):
                yield text
