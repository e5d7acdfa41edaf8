"""What a fragment of a document changes, as a line for each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everstep.core.bounds import cut

VALUE_MOST = 40
KEYS_MOST = 20
SECRET = frozenset({"env"})
"""Keys whose values may be secrets: they are named alone."""


def changed_keys(fragment: Mapping[str, Any]) -> tuple[str, ...]:
    """`limits.hang_s=600`, `env.LR`: every key that the fragment sets, without the values of variables."""
    keys = tuple(_keys("", fragment, shows_values=True))
    more = len(keys) - KEYS_MOST
    return (*keys[:KEYS_MOST], f"and {more} more") if more > 0 else keys


def _keys(above: str, fragment: Mapping[str, Any], *, shows_values: bool) -> Iterator[str]:
    for key, value in fragment.items():
        name, is_shown = f"{above}{key}", shows_values and key not in SECRET
        if isinstance(value, Mapping) and value:
            yield from _keys(f"{name}.", value, shows_values=is_shown)
        elif is_shown and not isinstance(value, Mapping | list):
            yield f"{name}={cut(str(value), VALUE_MOST)}"
        else:
            yield name
