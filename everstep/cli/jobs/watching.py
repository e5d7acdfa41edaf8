"""The command `watch`: a job, live, until it has ended.

On a terminal it is a page that changes in place, elsewhere a line for every change, so that a log of it
reads like a story. It shows what `status` and `restarts` print.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from temporalio.client import Client

from everstep.chronicle import record_rows
from everstep.chronicle.shapes import seconds
from everstep.cli import device_tables, pages, status_page
from everstep.cli.jobs.job_argument import JobId
from everstep.cli.output import AsJson, console, shown
from everstep.cli.server import with_server
from everstep.client.exit_codes import Exit
from everstep.client.jobs.found_job import find
from everstep.client.jobs.glances import Glance, glances
from everstep.core.bounds import rounded

STEP_LINE_S = 5.0
"""The least time between two lines for steps where there is no terminal; all else is printed at once."""
DEVICES_LINE_S = 30.0
DEVICES_LINES = 4
"""Without a terminal, least time between two looks at devices, and for how many slots a line is printed."""
RATE_OVER_S = 30.0
RESTARTS_LEAST, RESTARTS_MOST = 3, 10
HEADING_LINES = 3  # above the restarts, and the one that the cursor is on

Value = Mapping[str, Any]


def watch(job_id: JobId, as_json: AsJson = False) -> int:
    """Show a job live: state, step, rate, pods, restarts, what it waits for. Ends when it does.

    The exit code is the job's: 0 completed, 1 failed or stopped.
    """

    async def followed(client: Client) -> int:
        job = await find(client, job_id)
        looks = glances(client, job_id)
        return await follow(looks, screen(as_json=as_json, has_times=job.is_open))

    return with_server(followed)


# -- Looking ------------------------------------------------------------------------------------


class JobScreen:
    """Where a job is shown."""

    def show(self, glance: Glance) -> None:
        """Show what a look returned."""
        raise NotImplementedError(glance)

    async def update(self, glance: Glance) -> None:
        """Show what a look returned, with whatever else has to be fetched for it."""
        self.show(glance)

    def print(self, text: str) -> None:
        """Print a line, with its end, that is none of the job's own."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def close(self) -> None:
        """Leave the terminal to others. A later `show` begins again below what they print."""

    def abandon(self) -> None:
        """Leave a terminal that is gone."""
        self.close()


async def follow(glances: AsyncIterator[Glance], screen: JobScreen) -> int:
    """Show each look at a job until it has ended. Returns the exit code of its end."""
    state = None
    try:
        async for glance in glances:
            await screen.update(glance)
            state = glance.status.get("state")
    finally:
        screen.close()
    return Exit.DONE if state == "completed" else Exit.JOB_FAILED


@dataclass(slots=True)
class Rate:
    """Steps per second over the last half minute, or over the last two steps where these took longer.

    A new generation resets it.
    """

    samples: deque[tuple[float, int]] = field(default_factory=deque)
    generation: int | None = None
    last_step: int | None = None  # at which the phase is over
    has_step_times: bool = False  # by the cluster's clock; else the times of the looks count

    def add(self, at: float, status: Value) -> None:
        step, generation = status.get("step"), status.get("generation")
        self.last_step = status.get("last_step")
        if generation != self.generation or status.get("state") != "running":
            self.samples.clear()
            self.generation = generation
        if step is None or status.get("state") != "running":
            return
        step_at = status.get("step_at")  # a report has none, only the watch that follows it
        if self.samples and (
            step < self.samples[-1][1] or self.has_step_times is not bool(step_at)
        ):
            self.samples.clear()
        self.has_step_times = bool(step_at)
        if not self.samples or step > self.samples[-1][1]:
            self.samples.append((seconds(step_at) if step_at else at, step))
        while len(self.samples) > 2 and self.samples[1][0] < self.samples[-1][0] - RATE_OVER_S:
            self.samples.popleft()

    @property
    def per_s(self) -> float | None:
        if not self.samples:
            return None
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        return (last - first) / (ended - began) if ended > began and last > first else None

    @property
    def left_s(self) -> float | None:
        """Seconds to the last step, where the document names it."""
        per_s = self.per_s
        if per_s is None or self.last_step is None:
            return None
        return max(0, self.last_step - self.samples[-1][1]) / per_s

    def __str__(self) -> str:
        per_s, left_s = self.per_s, self.left_s
        if per_s is None:
            return ""
        left = "" if left_s is None else f", {pages.age(left_s)} left to step {self.last_step}"
        return f"{rounded(per_s)} steps/s{left}"


# -- Showing ------------------------------------------------------------------------------------


def screen(*, as_json: bool, has_times: bool = True) -> JobScreen:
    if as_json:
        return JsonLines()
    return LivePage() if sys.stdout.isatty() else Lines(has_times=has_times)


class JsonLines(JobScreen):
    """The status as one line of JSON whenever it changed."""

    def __init__(self) -> None:
        self._last_line = ""

    def show(self, glance: Glance) -> None:
        line = json.dumps({**glance.status, "silence": glance.silence})
        if line != self._last_line:
            self._last_line = line
            print(line, flush=True)


class Lines(JobScreen):
    """A line for every change, with the seconds since the first unless the job had ended before."""

    def __init__(self, *, began: float | None = None, has_times: bool = True) -> None:
        self._began = time.monotonic() if began is None else began
        self._has_times = has_times
        self._printed: dict[str, object] = {}
        self._step_at = self._devices_at = -math.inf
        self._rate = Rate()

    def show(self, glance: Glance) -> None:
        self._rate.add(glance.at, glance.status)
        for what, value, line in self._changes(glance):
            if self._printed.get(what) != value:
                self._printed[what] = value
                if line:
                    time_text = f"{glance.at - self._began:7.1f} s  " if self._has_times else ""
                    print(f"{time_text}{shown(line)}", flush=True)

    def _changes(self, glance: Glance) -> Iterator[tuple[str, object, str]]:
        """What it is about, its value, and the line for a new one."""
        yield "silence", glance.silence, glance.silence or ""
        for record in glance.restarts:
            n, result = record["n"], record["recover_result"]
            what = f"restart {n} of {record['phase']}"
            yield what, True, f"restart {n}: {pages.cause_and_end(record)} -> {record['level']}"
            if result != "recovering":
                step = record["resume_step"]
                unknown = (
                    "an unknown step" if record.get("resume_path") else "what its script finds"
                )
                origin = unknown if step is None else f"step {step}"
                end = "" if step is None and result != "success" else f", from {origin}"
                yield (
                    f"{what} ended",
                    result,
                    f"restart {n}: {record_rows.result_word(result)}{end}",
                )
        status = glance.status
        if not status or _is_outdated(glance):
            return
        name = status["phase"] or status["id"]  # no document is read in the first moments
        reason = f": {status['reason']}" if status.get("reason") else ""
        where = f"{name} {status['state']}{reason}{_pods(status)}"
        yield "where", where, where
        left = _budgets_left(status)
        yield "budgets", left, f"budgets left: {left}" if left else ""
        waiting = status["waiting_for"]
        yield "waiting", waiting, f"waits for {waiting}" if waiting else ""
        if taken_from := status.get("steps_from"):
            yield "steps_from", True, f"steps: taken from '{taken_from}'"
        for warning in status.get("warnings") or ():
            about = f"warning {warning['kind']}"
            yield about, warning["since"], f"warning: {warning['message']}"
        if status["step"] is not None and glance.at - self._step_at >= STEP_LINE_S:
            self._step_at = glance.at
            of_generation = (status["generation"], status["step"])
            yield "step", of_generation, f"step {status['step']}  {self._rate}".rstrip()
        if (uses := status.get("device_use")) and glance.at - self._devices_at >= DEVICES_LINE_S:
            self._devices_at = glance.at
            yield from _device_lines(uses)


def _is_outdated(glance: Glance) -> bool:
    """Whether the status is from before the restarts, of which the newest started the job since."""
    has_started = any(record["recover_result"] == "success" for record in glance.restarts[-1:])
    return has_started and glance.status["state"] == "recovering"


def _device_lines(uses: Sequence[Value]) -> Iterator[tuple[str, object, str]]:
    """Use and memory of the devices of a few slots, those that are used least."""
    for row in sorted(uses, key=device_tables.least_percent)[:DEVICES_LINES]:
        line = device_tables.line(row)
        yield f"devices of slot {row['slot']}", line, line


def _budgets_left(status: Value) -> str:
    """`pod 1 of 3`: of the budgets that have a limit and were used."""
    parts = (
        f"{name} {max(0, budget['limit'] - budget['used'])} of {budget['limit']}"
        for name, budget in status["budgets"].items()
        if budget["limit"] is not None and budget["used"]
    )
    return ", ".join(parts)


def last_restart(record: Value, status: Value) -> str:
    """`5m ago: XID 79 on gpu-07/3 -> pod, started in 3.5 s`."""
    now = status.get("as_of")
    ago = f"{pages.age(max(0.0, seconds(now) - seconds(record['at'])))} ago: " if now else ""
    took_s = record_rows.took_s(record)
    took = "" if took_s is None else f" in {took_s:.1f} s"
    return f"{ago}{pages.cause(record)} -> {record['level']}, {record_rows.result_in_words(record)}{took}"


def _pods(status: Value) -> str:
    nodes = sorted({pod["node"] for pod in status["pods"] if pod["node"]})
    many = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    is_up = status["state"] == "running" and nodes
    return f", generation {status['generation']} on {' '.join(nodes[:8])}{many}" if is_up else ""


class LivePage(JobScreen):
    """One page on a terminal that changes in place, and stays as it was at last."""

    def __init__(self) -> None:
        self._rate = Rate()
        self._last: Glance | None = None
        self._live: Live | None = None

    def show(self, glance: Glance) -> None:
        self._rate.add(glance.at, glance.status)
        latest = glance if glance.status or self._last is None else self._last
        self._last = latest
        live = self._drawn()
        live.update(self._page(live.console, latest, glance.silence), refresh=True)

    def print(self, text: str) -> None:
        """Print the text above the page."""
        self._drawn().console.print(Text(text), end="", soft_wrap=True)

    def _page(self, terminal: Console, latest: Glance, silence: str | None) -> Group:
        """With as many of the newest restarts as there is room for."""
        parts: list[Any] = []
        if latest.status:
            parts += [*status_page.status(dict(latest.status)), Text(str(self._rate))]
            if latest.restarts:
                last = last_restart(latest.restarts[-1], latest.status)
                parts.append(Text(shown(f"last restart {last}")))
        if silence:
            parts.append(Text(shown(silence), style="yellow"))
        used_lines = len(terminal.render_lines(Group(*parts))) + HEADING_LINES
        room = min(max(terminal.height - used_lines, RESTARTS_LEAST), RESTARTS_MOST)
        newest = [dict(record) for record in latest.restarts[-room:]]
        return Group(*parts, *(["", *pages.restarts(newest, is_brief=True)] if newest else []))

    def _drawn(self) -> Live:
        """The live display; if it was closed, a new one below what was printed since."""
        if self._live is None:
            self._live = Live(console=console(soft_wrap=False), auto_refresh=False)
            self._live.start()
        return self._live

    def abandon(self) -> None:
        if self._live is not None:
            self._live.transient = True  # else it prints the last page once more, as to a file
        self.close()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
