"""The JSON Schema of the native document, for editors and for its reference page.

It says less than `validate` does: what only a whole document shows, and some texts, it lets pass.
"""

from __future__ import annotations

from typing import Any

from everstep.dialects.native.shapes import NativeDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "A training job of Everstep"


def schema() -> dict[str, Any]:
    """The schema, all its own definitions included."""
    schema = NativeDocument.model_json_schema(by_alias=True)
    return {"$schema": DIALECT, **_without_titles(schema), "title": TITLE}


def _without_titles(part: Any, *, are_names: bool = False) -> Any:
    """Titles are made from the names of keys and say nothing more; a key may be called so, though."""
    if isinstance(part, list):
        return [_without_titles(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _without_titles(value, are_names=key in ("properties", "$defs") and not are_names)
        for key, value in part.items()
        if are_names or key != "title"
    }
