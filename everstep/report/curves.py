"""The drawings of a simulation's report: the share of time that trains, over another number. Geometry only.

As in `charts`, each drawing has a title and a description, and classes say what a shape is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

Value = Mapping[str, Any]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 240, 136, 24, 14, 34
CLASSES = ("kept", "lost")
"""CSS classes of the first line and of the second one."""
LEAST_SPAN = 0.01


def curve(title: str, points: Sequence[Value]) -> str:
    """A line for each policy over the `label` of each point, whose `ettr` has a share by policy."""
    if len(points) < 2:
        return ""
    shares = [share for point in points for share in point["ettr"].values()]
    low, high = min(shares), max(shares)
    if high - low < LEAST_SPAN:
        low = high - LEAST_SPAN
    names = list(points[0]["ettr"])[: len(CLASSES)]
    shapes = [*_grid(low, high), *_labels(points)]
    for name, cls in zip(names, CLASSES, strict=False):
        line = [
            (_x(n, points), _y(point["ettr"][name], low, high)) for n, point in enumerate(points)
        ]
        path = "L".join(f"{x} {y}" for x, y in line)
        shapes.append(f'<path class="{cls}" d="M{path}"><title>{escape(name)}</title></path>')
    about = "; ".join(f"{point['label']}: {_shares(point, names)}" for point in points)
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}. {escape(about)}">'
    return "\n".join([head, f"<desc>{escape(about)}</desc>", *shapes, "</svg>"])


def _shares(point: Value, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {point['ettr'][name]:.1%}" for name in names)


def _x(n: int, points: Sequence[Value]) -> float:
    return round(LEFT + n / (len(points) - 1) * (WIDTH - LEFT - RIGHT), 1)


def _y(share: float, low: float, high: float) -> float:
    return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - share) / (high - low), 1)


def _grid(low: float, high: float) -> Iterable[str]:
    for n in range(5):
        share = low + (high - low) * n / 4
        y = _y(share, low, high)
        yield f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        yield f'<text class="end" x="{LEFT - 6}" y="{y + 4}">{share:.1%}</text>'


def _labels(points: Sequence[Value]) -> Iterable[str]:
    for n, point in enumerate(points):
        anchor = "end" if n == len(points) - 1 else "middle"
        text = escape(str(point["label"]))
        yield f'<text class="{anchor}" x="{_x(n, points)}" y="{HEIGHT - 10}">{text}</text>'
