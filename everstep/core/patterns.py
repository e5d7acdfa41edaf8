"""Patterns of users, matched in linear time, so that none can block a worker."""

from __future__ import annotations

from functools import lru_cache

import re2

_QUIET = re2.Options()
_QUIET.log_errors = False


def refused(pattern: str) -> str | None:
    """Why it cannot be matched in linear time, if so."""
    try:
        re2.compile(pattern, _QUIET)
    except re2.error as error:
        return b"".join(error.args).decode(errors="replace")
    except UnicodeEncodeError:
        return "it holds half of a character (an unpaired surrogate)"
    return None


def is_found(pattern: str, text: str) -> bool:
    """Whether it is somewhere in the text."""
    return _compiled(pattern).search(text.encode(errors="replace")) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re2._Regexp:
    """The cache of the library itself is looked up more slowly than most patterns are matched."""
    return re2.compile(pattern, _QUIET)
