"""The drawings of a report as SVG: steps over time, and who ran where. Geometry only, no colours.

Every drawing has a title and a description for readers who do not see it; classes name what a shape
is, the page's style says how it looks, on paper and in the dark too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from everstep.core.escaping import for_terminal
from everstep.report.accounting import seconds
from everstep.report.sentences import count, duration

Value = Mapping[str, Any]

WIDTH, LEFT, RIGHT = 960, 136, 16
LABEL_MOST = 13
"""Characters of a row's label, for which `LEFT` has room in the larger letters of a narrow window."""
DIGITS = re.compile(r"([0-9]+)")
ROWS_MOST = 40
"""Nodes that a timeline draws; of more, those with faults come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """Seconds since 1970 as pixels."""

    begin: float
    end: float

    def x(self, at: float) -> float:
        span = max(self.end - self.begin, 1e-3)
        share = min(max((at - self.begin) / span, 0.0), 1.0)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Four or five times on the axis: the clock for the first, then how long after it."""
        span = self.end - self.begin
        first = datetime.fromtimestamp(self.begin, tz=UTC).strftime("%m-%d %H:%M:%S")
        later = [(self.begin + span * n / 4, f"+{duration(span * n / 4)}") for n in range(1, 5)]
        return [(self.begin, first), *later]


def time_axis(report: Value) -> TimeAxis | None:
    """From the job's creation to its end, or to when the report was made."""
    begin = seconds(report["created_at"])
    end = seconds(report["ended_at"] or report["as_of"])
    return None if begin is None or end is None else TimeAxis(begin=begin, end=end)


# -- steps over time ------------------------------------------------------------------------------

STEPS_HEIGHT, TOP, BOTTOM = 260, 12, 28


def steps_over_time(report: Value) -> str:
    """One line a run; the part of a line that the next run did again is drawn as lost. May be empty."""
    axis = time_axis(report)
    lines = [line for run in report["runs"] if (line := _line_of(run, report)) is not None]
    if axis is None or not lines:
        return ""
    most = max(max(line.step, line.starting_step) for line in lines) or 1
    drawn = [shape for line in lines for shape in _shapes(line, axis, most)]
    lost = sum(run["lost_steps"] or 0 for run in report["runs"])
    again = f"{count(lost, 'step')} {'was' if lost == 1 else 'were'} done again"
    about = f"{count(len(lines), 'run')}; the highest step is {most}; {again}."
    grid = [*_step_grid(most), *_time_grid(axis, STEPS_HEIGHT)]
    return _svg("Step over time", about, STEPS_HEIGHT, [*grid, *drawn])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A run as a line of the drawing."""

    began: float
    ended: float
    starting_step: int
    step: int
    lost: int


def _line_of(run: Value, report: Value) -> StepLine | None:
    step = run["step"] if run["ended_at"] else report["step"]
    start, first = run["starting_step"], seconds(run["first_step_at"])
    end = seconds(run["ended_at"] or report["ended_at"] or report["as_of"])
    if step is None or start is None or first is None or end is None:
        return None
    lost = min(run["lost_steps"] or 0, max(step - start, 0))
    return StepLine(began=first, ended=max(end, first), starting_step=start, step=step, lost=lost)


def _shapes(line: StepLine, axis: TimeAxis, most: int) -> list[str]:
    made = line.step - line.starting_step
    kept_share = 1.0 if made <= 0 else (made - line.lost) / made
    turn = line.began + (line.ended - line.began) * kept_share
    kept_step = line.step - line.lost
    x0, x1, x2 = axis.x(line.began), axis.x(turn), axis.x(line.ended)
    y0, y1, y2 = _y(line.starting_step, most), _y(kept_step, most), _y(line.step, most)
    kept_line = f'<path class="kept" d="M{x0} {y0}L{x1} {y1}"/>'
    if not line.lost:
        return [kept_line]
    base = _y(0, most)
    shade = f'<path class="shade" d="M{x1} {base}L{x1} {y1}L{x2} {y2}L{x2} {base}z"/>'
    return [shade, kept_line, f'<path class="lost" d="M{x1} {y1}L{x2} {y2}"/>']


def _y(step: int, most: int) -> float:
    room = STEPS_HEIGHT - TOP - BOTTOM
    return round(TOP + room * (1 - step / most), 1)


def _step_grid(most: int) -> Iterable[str]:
    for step in range(0, most + 1, _between_ticks(most)):
        y = _y(step, most)
        yield f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        yield f'<text class="end" x="{LEFT - 6}" y="{y + 4}">{step}</text>'


def _between_ticks(most: int) -> int:
    """A round number of steps, so that there are three to six ticks above 0, or one for each step."""
    size = int(10 ** max(len(str(most)) - 2, 0))
    return next(width * size for width in (1, 2, 5, 10, 20) if most <= 6 * width * size)


def _time_grid(axis: TimeAxis, height: int) -> Iterable[str]:
    ticks = axis.ticks()
    for n, (at, label) in enumerate(ticks):
        anchor = "" if n == 0 else "end" if n == len(ticks) - 1 else "middle"
        yield f'<text class="{anchor}" x="{axis.x(at)}" y="{height - 8}">{escape(label)}</text>'


# -- phases, generations and nodes ----------------------------------------------------------------

ROW = 18
LINES_MOST = 40
"""Restarts that are lines across all rows; of more, each is a mark in the row of its node alone."""


def timeline(report: Value) -> str:
    """Rows for phases, generations and nodes, with a mark at each restart. May be empty."""
    axis = time_axis(report)
    if axis is None:
        return ""
    rows = [
        (
            "phases",
            [_bar("phase", p["name"], p["began_at"], p["ended_at"]) for p in _begun(report)],
        ),
        (
            "runs",
            [_bar("run", _run_label(r), r["started_at"], r["ended_at"]) for r in report["runs"]],
        ),
        *_node_rows(report["nodes"]),
    ]
    shapes = [shape for n, (name, bars) in enumerate(rows) for shape in _row(n, name, bars, axis)]
    height = len(rows) * ROW + TOP + BOTTOM
    marks = _marks(report["restarts"], axis, [name for name, _ in rows])
    about = (
        f"{count(len(report['phases']), 'phase')}, {count(len(report['runs']), 'run')}, "
        f"{count(len(report['nodes']), 'node')}; {count(len(report['restarts']), 'restart')}."
    )
    return _svg("Timeline", about, height, [*shapes, *marks, *_time_grid(axis, height)])


Bar = tuple[str, str, float | None, float | None]  # class, label, begin, end


def _begun(report: Value) -> list[Value]:
    return [phase for phase in report["phases"] if phase["began_at"] is not None]


def _run_label(run: Value) -> str:
    generation = "" if run["generation"] is None else f"generation {run['generation']}, "
    return f"{generation}steps {_or_unknown(run['starting_step'])} to {_or_unknown(run['step'])}"


def _or_unknown(step: int | None) -> str:
    return "unknown" if step is None else str(step)


def _bar(cls: str, label: str, begin: str | None, end: str | None) -> Bar:
    return cls, label, seconds(begin), seconds(end)


def _node_rows(nodes: Sequence[Value]) -> list[tuple[str, list[Bar]]]:
    worst_first = sorted(
        nodes, key=lambda n: (-n["faults"], n["isolated"] is None, _by_number(n["node"]))
    )
    rows = [
        (
            node["node"],
            [
                _bar(
                    "isolated" if node["isolated"] else "node",
                    f"slot {s['slot']}",
                    s["from"],
                    s["until"],
                )
                for s in node["slots"]
            ],
        )
        for node in worst_first[:ROWS_MOST]
    ]
    left = len(worst_first) - len(rows)
    return [*rows, (f"+{count(left, 'node')}", [])] if left > 0 else rows


def _by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts n2 before n10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in DIGITS.split(name)]


def _row(n: int, name: str, bars: Sequence[Bar], axis: TimeAxis) -> Iterable[str]:
    y, name = TOP + n * ROW, for_terminal(name)
    yield f'<text class="end" x="{LEFT - 6}" y="{y + 12}">{escape(_label(name))}</text>'
    for cls, text, begin, end in bars:
        x = axis.x(axis.begin if begin is None else begin)
        width = max(axis.x(axis.end if end is None else end) - x, 1.0)
        shape = f'class="{cls}" x="{x}" y="{y + 2}" width="{width:.1f}" height="{ROW - 5}"'
        yield f"<rect {shape}><title>{escape(name)}: {escape(text)}</title></rect>"


def _label(name: str) -> str:
    """The name without its domain, if need be its beginning and its end: names often differ there alone."""
    if len(name) > LABEL_MOST:
        name = name.partition(".")[0] or name
    return name if len(name) <= LABEL_MOST else f"{name[:4]}…{name[5 - LABEL_MOST :]}"


COLOURS: Mapping[str, str] = {
    "phase": "a phase",
    "run": "a generation while it ran",
    "node": "a slot of the job on a node",
    "isolated": "the same on a node that is isolated by now",
}
"""What the classes of the timeline's bars mean."""


def timeline_legend(report: Value) -> list[tuple[str, str]]:
    """Class and meaning of each kind of bar that the timeline has."""
    slots_by_isolation = [
        ("isolated" if node["isolated"] else "node", bool(node["slots"]))
        for node in report["nodes"]
    ]
    classes = {
        *(["phase"] if _begun(report) else ()),
        *(["run"] if report["runs"] else ()),
        *(cls for cls, has_bars in slots_by_isolation if has_bars),
    }
    return [(cls, meaning) for cls, meaning in COLOURS.items() if cls in classes]


def _marks(restarts: Sequence[Value], axis: TimeAxis, rows: Sequence[str]) -> Iterable[str]:
    """A mark for each restart; its node has a row, or it is in that of the runs."""
    are_lines = len(restarts) <= LINES_MOST
    for restart in restarts:
        node = restart["fault"]["node"]
        row = rows.index(node) if node in rows else rows.index("runs")
        top, bottom = (0, len(rows)) if are_lines else (row, row + 1)
        at = seconds(restart["at"])
        x = axis.x(axis.begin if at is None else at)
        title = escape(f"restart {restart['n']}: {restart['fault']['class']}, {restart['level']}")
        shape = f'class="mark" d="M{x} {TOP + top * ROW}V{TOP + bottom * ROW}"'
        yield f"<path {shape}><title>{title}</title></path>"


def _svg(title: str, about: str, height: int, shapes: Iterable[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}. {escape(about)}">'
    return "\n".join([head, f"<desc>{escape(about)}</desc>", *shapes, "</svg>"])
