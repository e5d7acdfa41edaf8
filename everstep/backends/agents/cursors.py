"""Where an observation of a job was among the facts reported to it, as a token. Pure.

Books number the facts of a job. A token names the books, a number and the fact that had it: a record that was
deleted, or replaced by an older copy, gives the same numbers to other facts. A token that does not fit these
books counts as the beginning. What they have of the job is then returned again; the job recognises each fact
by its identity.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

from everstep.core.facts import Fact


def number(books: str, cursor: str, *, newest: int, fact_id: Callable[[int], str | None]) -> int:
    """The number in this token; 0 if it does not fit the books with this identity.

    `newest`: the newest number that they gave. `fact_id`: the fact with a number; None: it was dropped.
    """
    whose, _, rest = cursor.partition(".")
    digits, _, checksum = rest.partition(".")
    if whose != books or not digits.isdecimal() or int(digits) > newest:
        return 0
    stored_id = fact_id(int(digits))
    return int(digits) if stored_id is None or _checksum(stored_id) == checksum else 0


def behind(books: str, facts: Mapping[int, Fact], *, cursor: str, after: int) -> str:
    """The token behind these facts, which are those after the number `after` of `cursor`."""
    if facts:
        newest = max(facts)
        return f"{books}.{newest}.{_checksum(facts[newest].id)}"
    return cursor if after else f"{books}.0."


def _checksum(fact_id: str) -> str:
    return f"{zlib.crc32(fact_id.encode()):08x}"
