"""The JSON Schema of the native document, for editors and for its reference page.

It accepts more than `validate` does: it checks each key alone, and the form of some texts not at all.
"""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any

from everstep.dialects.native import shapes
from everstep.dialects.native.shapes import NativeDocument, Shape

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "A training job of Everstep"


def schema() -> dict[str, Any]:
    """The schema, all its own definitions included."""
    schema = NativeDocument.model_json_schema(by_alias=True)
    _describe({NativeDocument.__name__: schema, **schema["$defs"]})
    return {"$schema": DIALECT, **_without_titles(schema), "title": TITLE}


def _describe(definitions: dict[str, Any]) -> None:
    """Add the text below each key. Pydantic could, but would parse the source whenever a worker starts."""
    texts = _texts()
    for name, definition in definitions.items():
        cls = getattr(shapes, name, None)
        if not (isinstance(cls, type) and issubclass(cls, Shape)):
            continue
        for base in cls.__mro__:
            for attribute, text in texts.get(base.__name__, {}).items():
                key = cls.model_fields[attribute].alias or attribute
                rest = definition["properties"][key]
                definition["properties"][key] = dict(sorted({"description": text, **rest}.items()))


def _texts() -> dict[str, dict[str, str]]:
    """The string below each attribute, by class."""
    return {
        shape.name: {
            key.target.id: inspect.cleandoc(text.value.value)
            for key, text in pairwise(shape.body)
            if isinstance(key, ast.AnnAssign)
            and isinstance(key.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        }
        for shape in ast.parse(inspect.getsource(shapes)).body
        if isinstance(shape, ast.ClassDef)
    }


def _without_titles(part: Any, *, are_names: bool = False) -> Any:
    """The schema without titles, which only repeat the names of keys. A key named `title` stays."""
    if isinstance(part, list):
        return [_without_titles(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _without_titles(value, are_names=key in ("properties", "$defs") and not are_names)
        for key, value in part.items()
        if are_names or key != "title"
    }
