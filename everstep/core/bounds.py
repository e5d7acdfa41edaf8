"""Bounds of texts, numbers and times from outside, and how a refusal quotes a value.

A value within its bounds can be stored, computed with, shown and sent without another check. Which key of
which command has which bound is where the command is read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime

FIRST_SECOND = -62_135_596_800
LAST_SECOND = 253_402_300_799
"""Of the years 1 and 9999, which are all that a date can show."""
TEXT_MOST = 2_000
"""Of what people say: a few of them fit wherever a job repeats them, its report, its status, its events."""
SAID_MOST = 200
"""Of a fault's message, in a sentence that a job keeps: some hundred of them stay."""
NAME_MOST = 253
"""Of names and identities, as long as Kubernetes has them."""
DOCUMENT_MOST = 1_000_000
"""Bytes of a document, and of a change of one."""
JOB_MOST = 1_500_000
"""Of a document and what it was read as: a run hands both to the next one, with its own state, in one
payload, and no server takes more than 2 MiB of those."""
NUMBER_MOST = 2**53
"""Up to here every reader of JSON has whole numbers exactly, and every search attribute takes them."""
SHOWN = 100
RAW = 4
"""So many characters are read for each that is kept: colours of a terminal take some."""

_SEQUENCE = r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, the cursor
_HALF = "[\ud800-\udfff]"
_NO_TEXT = re.compile(rf"{_SEQUENCE}|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def encodable(text: str) -> str:
    """The text as valid UTF-8: what was no UTF-8 arrives as halves of characters, which JSON cannot carry."""
    return re.sub(_HALF, "\N{REPLACEMENT CHARACTER}", text)


def plain(text: str) -> str:
    """The same without control characters, but for tabs and line ends."""
    return _NO_TEXT.sub(lambda match: " " if len(match[0]) == 1 else "", encodable(text))


def plain_start(text: str, most: int) -> str:
    """The beginning of a text of any length, in so many plain characters."""
    return cut(plain(text[: RAW * most]), most)


def plain_end(text: str, most: int) -> str:
    """The end of a text of any length, in so many plain characters."""
    return plain(text[-RAW * most :])[-most:]


def finite(number: float) -> float:
    """The number, or the nearest that every reader of JSON can take; 0 for what is no number."""
    return 0.0 if math.isnan(number) else max(-NUMBER_MOST, min(number, NUMBER_MOST))


def shown(value: object) -> str:
    """The value as a refusal repeats it: enough of it to find it again."""
    return cut(repr(value), SHOWN)


def cut(text: str, most: int) -> str:
    """Its beginning, where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def seconds(time: float | str) -> float:
    """A time as people write it, in seconds; without a zone it is UTC."""
    if not isinstance(time, str):
        return time
    when = datetime.fromisoformat(time)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def checked_seconds(time: float | str) -> float:
    """The same. A `ValueError` ends a sentence that begins with what the time is called."""
    try:
        at = seconds(time)
    except ValueError:
        problem = f"is seconds or a time like 2026-01-31T12:00:00Z, not {shown(time)}"
        raise ValueError(problem) from None
    if not 0 <= at <= LAST_SECOND:  # nor is what is no number
        hint = "; are these milliseconds?" if LAST_SECOND < at <= LAST_SECOND * 1_000 else ""
        raise ValueError(f"is a time from 1970 to 9999, in seconds, not {shown(time)}{hint}")
    return float(at)


def dated(at: float) -> float:
    """The time, or the nearest that a date can show; of what is no number the first one.

    A value that an earlier version accepted must not break a view.
    """
    return max(FIRST_SECOND, min(at, LAST_SECOND))  # in this order: `min(nan, ...)` is nan


def is_endless(value: object) -> bool:
    """Whether a number anywhere in it is infinite or none, which JSON would carry on as null."""
    return any(isinstance(one, float) and not math.isfinite(one) for one in _plain(value))


def weight(value: object) -> int:
    """The bytes that a value of JSON takes as such."""
    texts = (json.dumps(one, ensure_ascii=False) for one in _plain(value))
    return sum(len(text.encode(errors="replace")) + 1 for text in texts)


def _plain(value: object) -> Iterator[object]:
    """Every key and every value of it that is neither a list nor a mapping."""
    left = [value]  # not recursion: its depth is unknown yet
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list):
            left += one
        else:
            yield one
