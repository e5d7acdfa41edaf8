"""Writes docs/document.md from the JSON Schema of the native document: `make docs`.

Only presentation belongs here, as in `write_playbook`. A test says if the page is stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.markdown import table
from everstep.dialects.native.schema import schema

PAGE = Path(__file__).with_name("document.md")

INTRODUCTION = """\
# The job document

Every key of a native document; any other is an error. Written by `make docs` from the JSON Schema that
`everstep schema` prints for editors; a test compares. `everstep init` writes a document to begin with,
`everstep validate FILE` says what is wrong with one, `everstep explain FILE` what would happen under it.
"""

SECTIONS: tuple[tuple[str, str, str], ...] = (
    ("NativeDocument", "The document", ""),
    ("Metadata", "metadata", ""),
    ("Spec", "spec", ""),
    (
        "Phase",
        "spec.phases",
        "Besides its name, a phase takes the keys of `spec` down to `recovery`.",
    ),
    ("NodeRange", "spec.nodes", "One number, or:"),
    ("FromWorker", "spec.env", "For each name a text, or, for a secret:"),
    ("Checkpoints", "spec.checkpoints", ""),
    ("Progress", "spec.progress", ""),
    ("Limits", "spec.limits", ""),
    ("Recovery", "spec.recovery", ""),
    ("Budget", "spec.recovery.budgets", "Each has a name of your own:"),
    ("Rule", "spec.recovery.rules", ""),
    ("Match", "spec.recovery.rules.match", ""),
    ("Rename", "spec.recovery.rules.action", "A word, a list of levels, or:"),
)
"""Definition, heading, what is said before its keys."""

WORDS = ("FaultClass", "Level", "Owner")

Schema = Mapping[str, Any]


def page() -> str:
    document = schema()
    shapes = {"NativeDocument": document, **document["$defs"]}
    sections = [_section(shapes, *section) for section in SECTIONS]
    return "\n".join([INTRODUCTION, *("\n".join(section) for section in sections), _words(shapes)])


def _section(shapes: Mapping[str, Schema], name: str, title: str, before: str) -> Iterator[str]:
    yield f"## {title}\n"
    if before:
        yield f"{before}\n"
    shape = shapes[name]
    needed = shape.get("required", ())
    inherited = shapes["Spec"]["properties"] if name == "Phase" else {}
    rows = [
        (f"`{key}`", _value(says), _default(says, key in needed), says.get("description", ""))
        for key, says in shape["properties"].items()
        if key not in inherited
    ]
    yield from table(("key", "value", "if left out", ""), rows)
    yield ""


def _default(says: Schema, is_needed: bool) -> str:
    if is_needed:
        return "an error"
    return f"`{json.dumps(says['default'])}`" if says.get("default") is not None else ""


def _value(says: Schema) -> str:
    """Null is not named where it only says what leaving the key out says."""
    means_nothing = "default" in says and says["default"] is None
    return _what(says).removesuffix(" or `null`") if means_nothing else _what(says)


# -- What a value may be --------------------------------------------------------------------------


def _what(says: Schema) -> str:
    """In words: `whole number, 1 to 1024`."""
    if "$ref" in says:
        return NAMED.get(_name(says), "see below")
    for key in ("anyOf", "oneOf"):
        if key in says:
            return " or ".join(dict.fromkeys(_what(each) for each in says[key]))
    if "const" in says:
        return f"`{says['const']}`"
    if "enum" in says:
        return ", ".join(f"`{word}`" for word in says["enum"])
    return KINDS[says["type"]](says)


NAMED: Mapping[str, str] = {
    "FaultClass": "a class",
    "Level": "a level",
    "Owner": "an owner",
}


def _name(says: Schema) -> str:
    return str(says["$ref"]).rpartition("/")[2]


def _number(word: str, says: Schema) -> str:
    above = f"above {says['exclusiveMinimum']:g}" if "exclusiveMinimum" in says else ""
    least = f"{says['minimum']:,}" if "minimum" in says else ""
    most = f"{says['maximum']:,}" if "maximum" in says else ""
    bounds = f"{above or least} to {most}" if least else f"{above}, at most {most}"
    return f"{word}, {bounds}"


def _mapping(says: Schema) -> str:
    values = says.get("additionalProperties") or next(
        iter(says.get("patternProperties", {"": 0}).values())
    )
    if not isinstance(values, Mapping):
        return "mapping"
    names = "a class" if "propertyNames" in says else "a name"
    return f"mapping of {names} to {_what(values)}"


KINDS = {
    "integer": lambda says: _number("whole number", says),
    "number": lambda says: _number("number", says),
    "string": lambda _: "text",
    "null": lambda _: "`null`",
    "boolean": lambda _: "`true` or `false`",
    "array": lambda says: f"list: {_what(says['items'])}",
    "object": _mapping,
}


def _words(shapes: Mapping[str, Schema]) -> str:
    """The closed sets that several keys share."""
    lines = ["## Classes, levels, owners\n"]
    lines += table(
        ("", "one of"),
        ((NAMED[name], ", ".join(f"`{word}`" for word in shapes[name]["enum"])) for name in WORDS),
    )
    more = "What a class is and what a level does is in [the playbook](playbook.md)."
    return "\n".join([*lines, "", more, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
