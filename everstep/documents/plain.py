"""Check that a document has only JSON values, within bounds.

After this check a document may be walked by recursion, its numbers printed and its texts passed to a
process: nothing is too deep, too many, too large or unprintable. Keys are not judged here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from everstep.core.bounds import DOCUMENT_MOST, json_bytes
from everstep.documents.problems import PathPart, Problem, path, refusal
from everstep.protocol.bounds import DOCUMENT_NUMBER

DEPTH = 32
VALUES = 20_000

TOO_DEEP = f"is nested deeper than {DEPTH} levels; no job document needs that"
TOO_LARGE = "is larger than 1 MB; keep data in files"
TOO_MANY = f"has more than {VALUES} values; no job document needs that many"


def plain_document(value: object) -> dict[str, Any]:
    """Return the value if it is a mapping of plain values, else raise `InvalidSpec`."""
    if not isinstance(value, dict):
        raise refusal([("document", "must be a mapping that begins with apiVersion: everstep/v1")])
    plain = _plain(value)
    if json_bytes(plain) > DOCUMENT_MOST:
        raise refusal([("document", TOO_LARGE)])
    return plain


def plain_fragment(value: object, name: str) -> dict[str, Any]:
    """Return the value if it is a plain fragment of a `spec`, else raise `InvalidSpec` with this name."""
    if not isinstance(value, dict):
        raise refusal([(name, "must be a mapping of keys of `spec`, for example {nodes: 4}")])
    return _plain(value, name)


def _plain(value: dict[Any, Any], *under: PathPart) -> dict[str, Any]:
    problems = list(_problems(value, under))
    if problems:
        raise refusal(problems)
    return value


def _problems(document: dict[Any, Any], under: tuple[PathPart, ...]) -> Iterator[Problem]:
    # A stack instead of recursion, because the depth is unknown.
    left: list[tuple[tuple[PathPart, ...], object]] = [(under, document)]
    count = size = 0
    while left:
        at, value = left.pop()
        count += 1
        size += _length(value)
        if count > VALUES:
            raise refusal([("document", TOO_MANY)])
        if size > DOCUMENT_MOST:  # one text may be in many places
            raise refusal([("document", TOO_LARGE)])
        if len(at) - len(under) > DEPTH:
            raise refusal([(path(*at[:3]), TOO_DEEP)])
        if isinstance(value, dict):
            yield from _bad_keys(at, value)
            left.extend(((*at, k), value[k]) for k in reversed(value) if isinstance(k, str))
        elif isinstance(value, list):
            left.extend(((*at, i), value[i]) for i in reversed(range(len(value))))
        elif wrong := _wrong_scalar(value):
            yield path(*at), wrong


def _length(value: object) -> int:
    """Characters of a text, or of a mapping's keys."""
    match value:
        case str():
            return len(value)
        case dict():
            return sum(len(key) for key in value if isinstance(key, str))
        case _:
            return 0


def _bad_keys(at: tuple[PathPart, ...], mapping: dict[Any, Any]) -> Iterator[Problem]:
    for key in mapping:
        if not isinstance(key, str):
            yield path(*at) or "document", f"has a {type(key).__name__} as a key: keys must be text"
        elif wrong := _wrong_text(key):
            yield path(*at) or "document", f"has a key that {wrong}"


def _wrong_scalar(value: object) -> str:
    match value:
        case None | bool():
            return ""
        case str():
            return _wrong_text(value)
        case int():
            return "" if abs(value) < DOCUMENT_NUMBER else "is far too large a number"
        case float():
            return "" if math.isfinite(value) else "is infinite, not a number, or far too large"
        case _:
            return f"holds a {type(value).__name__}, which JSON has not: write text or a number"


def _wrong_text(text: str) -> str:
    if "\0" in text:
        return "holds a zero character, which no command or variable can: take it out"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a character (an unpaired surrogate): write the character itself"
    return ""
