"""Steps, read from what the ranks write: which is the newest, when it came, how long the gaps are."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from everstep.agent.observing import matching, step_patterns
from everstep.agent.observing.losses import Losses
from everstep.agent.observing.progress_bars import Bars
from everstep.protocol import bounds, wire

SCANNED = 64 * 1024
"""Of a large piece of output a pattern that is not ours sees only the end."""
LINE_MOST = 4096
"""Of a longer line only the beginning is looked at."""
QUOTED_MOST = 60
"""Characters that are quoted of what was found first."""
_BAR_ITSELF = re.compile(rb"%\|[^|]*\|")
_BAR_DRAWN = re.compile(rb"\d+(?:/\d+|it) \[\d+:\d\d[^\]]*\] *$")
"""A whole bar. tqdm writes its line end before the next one, so the newest would be seen one step late."""
TOO_SLOW = (
    f"progress.log_pattern took {matching.LIMIT_S:g} s for one piece of output: no more steps are read from "
    "the log; give it fewer * and + that can match the same text"
)


class BadPattern(ValueError):
    """The pattern cannot be used; the message says why."""


def pattern(text: str | None) -> re.Pattern[bytes] | None:
    """The pattern to look for; `step` must be one of its groups."""
    if text is None:
        return None
    try:
        compiled = re.compile(text.encode(), re.MULTILINE)
    except re.error as error:
        raise BadPattern(f"log_pattern: {error}") from None
    if "step" not in compiled.groupindex:
        raise BadPattern("log_pattern: it has no group named step, as in 'step (?P<step>[0-9]+)'")
    return compiled


class Search:
    """The pattern for the output of a run, until it takes too long. Without one, usual ones are tried."""

    def __init__(self, looked_for: re.Pattern[bytes] | None) -> None:
        self._looked_for = looked_for
        self.is_given_up = False
        self.taken_from = ""  # what was found first by a pattern that was tried
        self._candidate: step_patterns.Candidate | None = None
        self._has_trainer = False  # a line of the Trainer of Hugging Face was seen

    def newest(self, text: bytes, bars: Bars) -> int | None:
        """The step that the last match names."""
        if self._looked_for is None:
            return self._newest(text, bars)
        if self.is_given_up:
            return None
        try:
            return matching.in_time(partial(self._newest, text[-SCANNED:], bars))
        except matching.TooSlow:
            self.is_given_up = True
            return None

    def _newest(self, text: bytes, bars: Bars) -> int | None:
        lines = [line[:LINE_MOST] for line in reversed(text.splitlines())]
        if (looked_for := self._looked_for) is not None:
            return _first(_last_of(looked_for, line, bars)[0] for line in lines)
        words = (self._tried(step_patterns.WORDS, line, bars) for line in lines)
        if (step := _first(words)) is not None or self._is_settled:
            return step
        # A bar that is drawn now is newer than any word, so words are looked for in all lines first.
        return _first(self._tried(step_patterns.BARS, line, bars) for line in lines)

    def _tried(
        self, candidates: Sequence[step_patterns.Candidate], line: bytes, bars: Bars
    ) -> int | None:
        small = line.lower()
        for candidate in candidates:
            if candidate.needs not in small or (self._is_settled and self._candidate != candidate):
                continue
            if candidate.after_trainer and not self._has_trainer:
                continue
            step, text = _last_of(step_patterns.compiled(candidate.pattern), line, bars)
            if step is not None:
                self._take(candidate, text)
                return step
        self._has_trainer = self._has_trainer or (b"'epoch': " in line and _is_of_trainer(line))
        return None

    @property
    def _is_settled(self) -> bool:
        return self._candidate in step_patterns.WORDS

    def _take(self, candidate: step_patterns.Candidate, match_text: bytes) -> None:
        """Note by which pattern steps are found. A word that names a step counts before a bar."""
        if self._candidate is not candidate:
            self._candidate = candidate
            self.taken_from = _quoted(candidate, match_text)


def _first(steps: Iterable[int | None]) -> int | None:
    return next((step for step in steps if step is not None), None)


def _last_of(looked_for: re.Pattern[bytes], line: bytes, bars: Bars) -> tuple[int | None, bytes]:
    """`(the step that the last match in this line names, its text)`."""
    step, text = None, b""
    for match in looked_for.finditer(line):
        if (number := bars.step(match)) is not None:
            step, text = number, match[0]
    return step, text


def _is_of_trainer(line: bytes) -> bool:
    return step_patterns.compiled(step_patterns.TRAINER).search(line) is not None


def _quoted(candidate: step_patterns.Candidate, match_text: bytes) -> str:
    """What was found; of a bar its numbers, without what it draws and the times."""
    text = match_text
    if candidate in step_patterns.BARS:
        text = _BAR_ITSELF.sub(b"% ", match_text).split(b" [")[0]
    return " ".join(bounds.plain(text.decode(errors="replace")).split())[:QUOTED_MOST]


class StepReader:
    """Finds the newest step in the output of one rank, and its losses."""

    def __init__(self, search: Search, losses: Losses | None = None) -> None:
        self._search = search
        self.losses = losses
        self._bars = Bars()
        self._carried = b""
        # The carried line follows a \r: it may be all of a bar that is drawn now.
        self._is_rewritten = False

    def newest(self, chunk: bytes) -> int | None:
        """The last step among the lines that are complete now, and of a bar that is being drawn."""
        text = self._carried + chunk
        cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1  # progress bars end lines with \r
        if cut:
            self._is_rewritten = text[cut - 1 : cut] == b"\r"
        self._carried = text[cut:][:LINE_MOST]  # a line may come in two pieces
        if self._is_rewritten and _BAR_DRAWN.search(self._carried):
            cut = len(text)
        lines = text[:cut]
        if self.losses is not None:
            newest_first = reversed(lines[-SCANNED:].splitlines())
            self.losses.read(line[:LINE_MOST] for line in newest_first)
        return self._search.newest(lines, self._bars)


PACE_PARTS = 30
"""Marks of a rank's steps in `pace_s`: how exactly it is known how many they were."""


class Pace:
    """How many steps one rank made in the last `over_s`."""

    def __init__(self, over_s: float) -> None:
        self._over_s = over_s
        self._marks: deque[tuple[float, int]] = deque()  # time and step, the oldest first
        self._newest_at = 0.0

    def saw(self, step: int, ticks: float) -> None:
        self._newest_at = ticks
        if self._marks and step < self._marks[-1][1]:
            self._marks.clear()  # it counts from the beginning: another bar, say
        if not self._marks or ticks - self._marks[-1][0] >= self._over_s / PACE_PARTS:
            self._marks.append((ticks, step))
        while len(self._marks) > 1 and self._marks[1][0] <= ticks - self._over_s:
            self._marks.popleft()

    def steps(self, newest: int, ticks: float) -> int | None:
        """None before the rank has shown steps for so long.

        The steps between two that were shown, by the time between these: one that shows every hundredth
        step would else seem to make a hundred more or less than another.
        """
        begin = ticks - self._over_s
        before = [mark for mark in self._marks if mark[0] <= begin]
        if not before:
            return None
        if self._newest_at <= begin:
            return 0
        at, step = before[-1]
        return max(0, round((newest - step) / (self._newest_at - at) * self._over_s))


class Steps:
    """The steps of all ranks of one run."""

    def __init__(self, pace_s: float = wire.PACE_S) -> None:
        self._pace_s = pace_s
        self._paces: dict[int, Pace] = {}
        self.newest: int | None = None
        self.at: float | None = None
        self.first_at: float | None = None
        self.longest_gap_s = 0.0
        self._last: dict[int, int] = {}
        self._ticked: float | None = None

    def of(self, rank: int) -> int | None:
        """The newest step of one rank."""
        return self._last.get(rank)

    def recent(self, rank: int, ticks: float) -> int | None:
        """The number of steps that a rank made of late; None: unknown."""
        pace, newest = self._paces.get(rank), self._last.get(rank)
        return None if pace is None or newest is None else pace.steps(newest, ticks)

    def saw(self, rank: int, step: int, *, now: float, ticks: float) -> bool:
        """Note a step; return whether it is new. Gaps are measured by `ticks`, a monotonic clock."""
        if self._last.get(rank) == step:
            return False
        self._last[rank] = step
        self._paces.setdefault(rank, Pace(self._pace_s)).saw(step, ticks)
        if self._ticked is not None:
            self.longest_gap_s = max(self.longest_gap_s, ticks - self._ticked)
        self._ticked = ticks
        self.newest = step if self.newest is None else max(self.newest, step)
        self.at = now
        self.first_at = self.first_at or now
        return True
