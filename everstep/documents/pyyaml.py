"""What PyYAML, which reads version 1.1 of YAML, takes a scalar and a merge key for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

LONGEST = 40  # of a number in characters; a longer one is none that a computer word can hold

_PYYAML = yaml.SafeLoader("")
_RESOLVED: Callable[..., str] = _PYYAML.resolve
_ALIKE = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))

MERGE = "<<"


def scalar(text: str, otherwise: Callable[[str], object]) -> object:
    """A scalar without quotes: `yes` is true, `1_000` a number, `1e-4` and a date are text.

    `otherwise` reads what is too long to be taken for a number without a look.
    """
    tag = _RESOLVED(yaml.ScalarNode, text, (True, False))
    if tag not in _ALIKE:
        return text
    if len(text) > LONGEST:
        return otherwise(text)
    return _PYYAML.construct_object(yaml.ScalarNode(tag, text))


def merged(below: object) -> list[dict[str, Any]] | None:
    """What stands under a merge key, as mappings; None if it is something else."""
    sources = below if isinstance(below, list) else [below]
    mappings = [source for source in sources if isinstance(source, dict)]
    return mappings if len(mappings) == len(sources) else None


def merge(mapping: dict[str, Any], sources: list[dict[str, Any]]) -> None:
    """Take them in before what the mapping says itself; it stays the same object, for its aliases."""
    own = {key: value for key, value in mapping.items() if key != MERGE}
    mapping.clear()
    for source in (*reversed(sources), own):
        mapping.update(source)
