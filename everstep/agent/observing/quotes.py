"""What facts quote of a rank's output: its last lines, and the exception that ended it. Pure."""

from __future__ import annotations

import re

from everstep.protocol import wire

QUOTED_BYTES = 4 * 1024
QUOTED_LINES = 20
"""Most of a rank's output that one fact quotes."""
EXCEPTION_MOST = 1_000
LINE_MOST = 300
"""Most characters that it quotes of an exception, and of a line."""
ALL_QUOTES_MOST = 512 * 1024
"""Most output that all facts of an agent quote together. In JSON a byte may become six."""

# A launcher may write a prefix before each line, as `[rank0]: `: group 1.
_TRACEBACK = r"^(.*?)Traceback \(most recent call last\):\s*$"
_TOP_FRAME = r'^\s+File ".*", line \d+, in (?:<module>|_run_module_as_main)\s*$'
_SURVIVED = ("Exception ignored ", "Exception in thread ", "--- Logging error ---")
"""What is printed before a traceback that ends nothing, or a thread alone."""
_UNCAUGHT = 1
"""The exit code with which Python ends on an exception that nothing caught."""


_PROGRESS_BAR = re.compile(
    r"\d%\|"  # tqdm with a total
    r"|\[\d+:\d\d(?::\d\d)?[<,]"  # its times, without one
    r"|\d\s?(?:it|step|s|ba|batch|ex|example|sample)s?/(?:it|s|step|sec)\b"  # a rate
    r"|[\u2500-\u259f]{3}"  # rich, Lightning: drawn with blocks and lines
    r"|\[=*[=>][.> ]*\]"  # Keras
)
"""Redrawn while a loop runs, whatever ends it: it explains no end."""


def last_exception(lines: list[str], code: int | None) -> str | None:
    """The exception that ended the process, as `ValueError: no such thing`.

    It is the last one whose traceback begins at the top of the main thread. What was logged and survived,
    what ended another thread and what was ignored at the end is none, nor is any with another exit code.
    """
    if code != _UNCAUGHT:
        return None
    for start in reversed(range(len(lines))):
        traceback = re.match(_TRACEBACK, lines[start])
        if traceback is not None and _is_of_main_thread(lines, start, traceback[1]):
            return _raised(lines[start + 1 :], traceback[1])
    return None


def _is_of_main_thread(lines: list[str], start: int, prefix: str) -> bool:
    """Whether the traceback that begins at `lines[start]` is one of the main thread, and ended it."""
    line_before, first_frame = lines[start - 1 : start], lines[start + 1 : start + 2]
    is_survived = any(line.removeprefix(prefix).startswith(_SURVIVED) for line in line_before)
    return not is_survived and any(
        re.match(_TOP_FRAME, line.removeprefix(prefix)) for line in first_frame
    )


def _raised(lines: list[str], prefix: str) -> str | None:
    """The exception that ends a traceback: the first of these lines without an indent."""
    for line in lines:
        text = line.removeprefix(prefix)
        if text and not text[0].isspace():
            return text.strip()[:EXCEPTION_MOST]
    return None


def last_output(lines: list[str]) -> str:
    """The last of these lines, as much of them as a fact may hold."""
    text = "\n".join(_without_redrawn(lines)[-QUOTED_LINES:]).encode()[-QUOTED_BYTES:]
    return text.decode(errors="ignore")


def _without_redrawn(lines: list[str]) -> list[str]:
    """The lines, with the newest of progress bars that follow each other: it was drawn over the others."""
    bars = [*map(is_progress_bar, lines), False]
    return [line for n, line in enumerate(lines) if not (bars[n] and bars[n + 1])]


def bound_quotes(facts: list[wire.FactSeen]) -> list[wire.FactSeen]:
    """Return the same facts. Where all together quote too much, the oldest lose their quotes of output."""
    left = ALL_QUOTES_MOST
    facts_kept: list[wire.FactSeen] = []
    for fact in reversed(facts):
        left -= len(fact["details"].get("log", ""))
        if left < 0:
            fact = fact.copy()  # noqa: PLW2901  # another thread may be reading the old list
            fact["details"] = {**fact["details"], "log": ""}
        facts_kept.append(fact)
    return facts_kept[::-1]


def last_line(lines: list[str]) -> str | None:
    """The last line that is neither blank nor a progress bar."""
    texts = (line.strip() for line in reversed(lines))
    return next((line[:LINE_MOST] for line in texts if line and not is_progress_bar(line)), None)


def is_progress_bar(line: str) -> bool:
    return _PROGRESS_BAR.search(line[:LINE_MOST]) is not None
