"""The overlay of a document: the fragment of the native `spec` that is laid over its own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everstep.core.errors import InvalidSpec
from everstep.documents import merge
from everstep.documents.plain import plain_fragment
from everstep.documents.problems import path, refusal
from everstep.documents.text import read_value

BLOCK = "everstep"
ANNOTATION = "everstep/overlay"

_ABSENT = object()

OverlayPlace = Callable[..., str | None]
"""The path of a field in the overlay, given by its keys; None where the overlay does not set it."""


def overlay(annotations: Mapping[str, str], block: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path that messages use for the overlay, and the fragment: the annotation, then the block."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return BLOCK, dict(block)
    root = path("metadata", "annotations", ANNOTATION)
    try:
        value = read_value(text)
    except InvalidSpec as error:
        raise refusal([(root, f"{field}: {what}") for field, what in error.problems]) from None
    fragment = plain_fragment(value, root)
    return (BLOCK if block else root), merge.merged(fragment, block)


def with_whole_block(
    document: dict[str, Any], *, fragment: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The document with all of its overlay in the block, what its annotation says included."""
    whole = fragment(document)
    return {**document, BLOCK: whole} if whole else document


def place(root: str, fragment: Mapping[str, Any], phase: int, *keys: str) -> str | None:
    """The path of a field of this phase in the overlay, None where the overlay does not set it."""
    phases = fragment.get("phases")
    if phases and merge.at(phases[phase], keys, _ABSENT) is not _ABSENT:
        return path(root, "phases", phase, *keys)
    is_set = merge.at(fragment, keys, _ABSENT) is not _ABSENT
    return path(root, *keys) if is_set else None


def without_nulls(value: Any) -> Any:
    """The value without keys that hold null, which a Kubernetes or ModelArts API reads as unset."""
    match value:
        case dict():
            return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
        case list():
            return [without_nulls(inner) for inner in value]
        case _:
            return value
