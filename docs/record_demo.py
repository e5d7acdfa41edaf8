"""Records `make demo` as a moving picture, docs/pictures/demo.svg: `make recording`.

Every line is one that a real run printed, and appears in the picture as long after the first as it did there.
No reader needs a script or another file for it; where nothing moves all lines are there at once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PICTURE = Path(__file__).parent / "pictures" / "demo.svg"
COMMAND = "make demo"
COLUMNS = 96
LINE, CHARACTER, MARGIN, BAR = 17, 7.9, 16, 30
"""Height of a line, width of a character, the room around, the bar above; in pixels."""
LEFT_OUT = (".venv/", "To look at it", "Every restart is a row")
"""The beginnings of lines that are no part of the picture: commands of make, and hints after a run."""
COLOURS = (
    (r"^ *[\d.]+ s  fault ", "fault"),
    (r"^ *[\d.]+ s  restart |^\d  main", "restart"),
    (r"^They are equal", "good"),
    (r"^ *[\d.]+ s  (step|waits) ", "quiet"),
)
"""The first that matches a line names its class."""
STYLE = """\
  text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #d7dae0; white-space: pre }
  .fault { fill: #ff7b72 } .restart { fill: #f2cc60 } .good { fill: #7ee787 } .quiet { fill: #8b949e }
  g { animation-name: hidden } @keyframes hidden { from, to { opacity: 0 } }
  @media (prefers-reduced-motion: reduce) { g { animation-name: none } }"""

Line = tuple[float, str]
"""Seconds since the first one, and the text."""


def recorded(command: Sequence[str]) -> Iterator[Line]:
    """Each line as it is printed. Raises CalledProcessError where the command failed."""
    began = None
    environ = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            began = time.monotonic() if began is None else began
            yield time.monotonic() - began, line.rstrip("\n")
    if demo.returncode:
        raise subprocess.CalledProcessError(demo.returncode, list(command))


def shown(lines: Iterable[Line]) -> list[Line]:
    """The lines of the picture: without those left out, nor two empty ones in a row."""
    kept: list[Line] = [(0.0, f"$ {COMMAND}")]
    for at, text in lines:
        plain = re.sub(r"\x1b\[[\d;]*m", "", text)
        is_empty_again = not plain and not kept[-1][1]
        if not plain.startswith(LEFT_OUT) and not is_empty_again:
            kept.append((at, plain if len(plain) <= COLUMNS else plain[: COLUMNS - 1] + "…"))
    return kept


def svg(lines: Sequence[Line]) -> str:
    width = round(2 * MARGIN + COLUMNS * CHARACTER)
    height = BAR + len(lines) * LINE + MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    label = (
        "<title>make demo: a training is hit by three faults and ends with the same weights</title>"
    )
    frame = f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>'
    dots = (
        f'<circle cx="{MARGIN + 18 * n}" cy="16" r="5" fill="{colour}"/>'
        for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    rows = (_row(n, at, text) for n, (at, text) in enumerate(lines) if text)
    return "\n".join([head, label, f"<style>\n{STYLE}\n</style>", frame, *dots, *rows, "</svg>\n"])


def _row(n: int, at: float, text: str) -> str:
    kind = next((name for pattern, name in COLOURS if re.search(pattern, text)), "")
    cls = f' class="{kind}"' if kind else ""
    y = BAR + (n + 1) * LINE - 4
    words = f'<text x="{MARGIN}" y="{y}"{cls}>{escape(text)}</text>'
    return f'<g style="animation-duration:{at:.1f}s">{words}</g>'


def main() -> None:
    PICTURE.write_text(svg(shown(recorded([sys.executable, "examples/demo.py"]))), encoding="utf-8")


if __name__ == "__main__":
    main()
