"""Bounds of texts, numbers and times from outside, and how a refusal quotes a value.

A value within its bounds can be stored, computed with, shown and sent without another check. Which key of
which command has which bound is where the command is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime

FIRST_SECOND = -62_135_596_800
LAST_SECOND = 253_402_300_799
"""Of the years 1 and 9999, which are all that a date can show."""
TEXT_MOST = 2_000
"""Characters of a reason or message: a job repeats a few of them in its report, its status and its events."""
MESSAGE_IN_REASON_MOST = 200
"""Characters of a fault's message within a reason: a job keeps some hundred of these."""
NAME_MOST = 253
"""Characters of names and identities, as in Kubernetes."""
DOCUMENT_MOST = 1_000_000
"""Bytes of a document, and of a change of one."""
JOB_MOST = 1_500_000
"""Bytes of a document with the JobSpec made of it: a run hands both to the next one, with its own state, in
one payload, and a Temporal server takes at most 2 MiB."""
NUMBER_MOST = 2**53
"""Up to here every reader of JSON has whole numbers exactly, and every search attribute takes them."""
ID_KEPT = 100
"""Characters of an identity: a job keeps 1,000 of commands and 500 of facts."""
QUOTED_MOST = 100
"""Characters of a value that a refusal quotes."""
READ_PER_KEPT = 4
"""Characters read for each character kept. The difference leaves room for colour codes, which are dropped."""

_SEQUENCE = r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, the cursor
_HALF = "[\ud800-\udfff]"  # of a surrogate pair
_NO_TEXT = re.compile(rf"{_SEQUENCE}|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
# `json.dumps` with an argument makes an encoder for each call.
_json_text = json.JSONEncoder(ensure_ascii=False).encode


def encodable(text: str) -> str:
    """The text as valid UTF-8: bytes that were none came in as lone surrogates, which JSON cannot carry."""
    return re.sub(_HALF, "\N{REPLACEMENT CHARACTER}", text)


def plain(text: str) -> str:
    """Encodable text without control characters, but with tabs and line ends."""
    return _NO_TEXT.sub(lambda match: " " if len(match[0]) == 1 else "", encodable(text))


def plain_start(text: str, most: int) -> str:
    """The first `most` plain characters of a text of any length."""
    return cut(plain(text[: READ_PER_KEPT * most]), most)


def plain_end(text: str, most: int) -> str:
    """The last `most` plain characters of a text of any length."""
    return plain(text[-READ_PER_KEPT * most :])[-most:]


def finite(number: float) -> float:
    """The number, or the nearest that every reader of JSON can take; 0 for NaN."""
    return 0.0 if math.isnan(number) else max(-NUMBER_MOST, min(number, NUMBER_MOST))


def rounded(number: float) -> str:
    """The number in three digits, or all digits before the point: no exponent for a large one."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:.0f}"


def quoted(value: object) -> str:
    """The value as a refusal quotes it: enough of it to find it again."""
    return cut(repr(value), QUOTED_MOST)


def cut(text: str, most: int) -> str:
    """The text, shortened to `most` characters if it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def short_id(text: str) -> str:
    """The identity itself, or its hash if it is long or not ASCII."""
    if len(text) <= ID_KEPT and text.isascii():
        return text
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def seconds(time: float | str) -> float:
    """A time as people write it, in seconds; without a zone it is UTC."""
    if not isinstance(time, str):
        return time
    when = datetime.fromisoformat(time)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def checked_seconds(time: float | str) -> float:
    """A time of 1970 to 9999 in seconds. The `ValueError` of any other continues a sentence: `at is ...`."""
    try:
        at = seconds(time)
    except ValueError:
        problem = f"is seconds or a time like 2026-01-31T12:00:00Z, not {quoted(time)}"
        raise ValueError(problem) from None
    if not 0 <= at <= LAST_SECOND:  # NaN is refused too
        hint = "; are these milliseconds?" if LAST_SECOND < at <= LAST_SECOND * 1_000 else ""
        raise ValueError(f"is a time from 1970 to 9999, in seconds, not {quoted(time)}{hint}")
    return float(at)


def dated(at: float) -> float:
    """The nearest time that a date can show; for NaN the first one.

    For times that were accepted before `checked_seconds` refused them: they must not break a view.
    """
    return max(FIRST_SECOND, min(at, LAST_SECOND))  # in this order: `min(nan, ...)` is nan


def has_infinite(value: object) -> bool:
    """Whether any number within the value is infinite or NaN, which would become null in JSON."""
    return any(isinstance(one, float) and not math.isfinite(one) for one in _scalars(value))


# `json.dumps` with an argument makes an encoder for each call.
_json_text = json.JSONEncoder(ensure_ascii=False).encode


def json_bytes(value: object) -> int:
    """About how many bytes the value takes as JSON."""
    texts = map(_json_text, _scalars(value))
    return sum(len(text.encode(errors="replace")) + 1 for text in texts)


def _scalars(value: object) -> Iterator[object]:
    """Every key within the value, and every value that is neither a list nor a mapping."""
    left = [value]  # no recursion: the depth of a value from outside has no bound
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list):
            left += one
        else:
            yield one


def text_bytes(*texts: str) -> int:
    """The bytes that the texts take as JSON, without quotation marks."""
    text = _json_text("".join(texts))
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
