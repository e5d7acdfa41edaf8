"""Read YAML or JSON text to a plain value. Which keys it may have is not checked here.

YAML is read by its version 1.2: `on`, `yes`, `1:30` and `2024-01-01` are text. Aliases, anchors, tags and
second documents are refused; so is a key written twice. Nothing here recurses on what the text holds: the
parser's events fill a stack of open collections.

Two exceptions, which the dialects choose: several Kubernetes objects in a text become one `List`, as kubectl
writes them (`may_share`). A document that another program reads by PyYAML is read the same way (`as_pyyaml`):
with aliases, merge keys and the scalars of version 1.1. A value that is used twice is one object.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import yaml

from everstep.core.bounds import DOCUMENT_MOST
from everstep.core.errors import InvalidSpec
from everstep.documents.plain import (
    DEPTH,
    TOO_DEEP,
    TOO_LARGE,
    TOO_MANY,
    VALUES,
    plain_document,
)
from everstep.documents.problems import described, refusal

DIGITS = 20
"""Most digits of a whole number."""

SECOND = "begins a second document: one file holds one job"
MERGE = "<<"
LIST = {"apiVersion": "v1", "kind": "List"}

Node = TypeVar("Node")
Opening = yaml.ScalarEvent | yaml.CollectionStartEvent

# The parser in C reads the largest text we take in a fraction of a second, the other one in ten.
PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(
    text: str | bytes,
    *,
    as_pyyaml: Collection[str] = (),
    may_share: Callable[[object], bool] = lambda _document: False,
) -> dict[str, Any]:
    """Read one document. The only error is `InvalidSpec`, within bounded time.

    `as_pyyaml`: a text with one of these keys at its top is read as PyYAML reads it.
    `may_share`: whether a document may share its text with others.
    """
    decoded = _decoded(text)
    if not decoded.strip():
        _refuse("document", "is empty; write at least apiVersion, kind, metadata and spec")
    is_pyyaml = any(_has_on_top(decoded, key) for key in as_pyyaml)
    return plain_document(_value(decoded, _Loader(is_pyyaml=is_pyyaml, may_share=may_share)))


def read_value(text: str) -> object:
    """Read a value within a document, such as an annotation. The only error is `InvalidSpec`."""
    return _value(_decoded(text), _Loader()) if text.strip() else None


def _has_on_top(text: str, key: str) -> bool:
    """Whether a line of the outermost mapping begins with this key."""
    first = re.search(r"^( *)(?![ #%]|---|$)", text, re.MULTILINE)
    begin = first[1] if first else ""
    return re.search(rf"^{begin}([\"']?){key}\1[ \t]*:", text, re.MULTILINE) is not None


def _decoded(text: str | bytes) -> str:
    try:
        raw = text.encode() if isinstance(text, str) else text
        if len(raw) > DOCUMENT_MOST:
            _refuse("document", TOO_LARGE)
        return raw.decode("utf-8-sig")
    except UnicodeError:
        _refuse("document", "is not UTF-8 text; save it as UTF-8")


def _value(text: str, loader: _Loader) -> object:
    if text.lstrip()[:1] in ("{", "[") and _json_depth(text) <= DEPTH:
        try:
            return _json(text)
        except ValueError:
            pass  # Braces may be YAML's as well, and its messages name the line.
    return loader.load(text)


def _refuse(where: str, message: str) -> NoReturn:
    raise refusal([(where, message)])


# --- JSON ---------------------------------------------------------------------------------------

# A string swallows its brackets; one without an end swallows the rest, so that time stays linear.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_MOVE = {"[": 1, "{": 1, "]": -1, "}": -1}


def _json_depth(text: str) -> int:
    """How deep the brackets of a JSON text go, counted before a parser recurses into them."""
    depth = deepest = 0
    for token in _TOKEN.finditer(text):
        depth += _MOVE.get(token[0], 0)
        deepest = max(deepest, depth)
        if deepest > DEPTH:
            break
    return deepest


def _json(text: str) -> object:
    return json.loads(text, parse_int=_whole, object_pairs_hook=_mapping)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        _refuse("document", f'has the key "{twice}" more than once in one mapping: keep one')
    return mapping


def _whole(digits: str) -> int | float:
    """The number, or infinity (refused with its field later) for one with too many digits."""
    return int(digits) if len(digits) <= DIGITS else math.inf


# --- YAML ---------------------------------------------------------------------------------------

_SCALARS: tuple[tuple[re.Pattern[str], Callable[[str], object]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    # 010 is octal to some parsers and decimal to others: it stays text, and a number field refuses it.
    (re.compile(r"[-+]?(?:0|[1-9][0-9]*)"), _whole),
    (re.compile(r"0o[0-7]{1,21}|0x[0-9a-fA-F]{1,16}"), lambda text: int(text, 0)),
    (
        re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"),
        float,
    ),
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"), lambda t: float(t.replace(".", ""))),
)
"""Scalars without quotes in version 1.2, first match wins; anything else is text."""


def _scalar(text: str) -> object:
    return next((read(text) for pattern, read in _SCALARS if pattern.fullmatch(text)), text)


_PYYAML = yaml.SafeLoader("")
_RESOLVE: Callable[..., str] = _PYYAML.resolve
_PYYAML_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
_NUMBER_MOST = 40  # characters of a number; no longer one fits into a computer word


def _pyyaml_scalar(text: str) -> object:
    """As PyYAML reads it, by version 1.1: `yes` is true, `1_000` a number, `1e-4` and a date are text."""
    tag = _RESOLVE(yaml.ScalarNode, text, (True, False))
    if tag not in _PYYAML_TAGS:
        return text
    if len(text) > _NUMBER_MOST:
        return _scalar(text)
    return _PYYAML.construct_object(yaml.ScalarNode(tag, text))


_REASONS: tuple[tuple[str, str], ...] = (
    ("node content", "it ends, or a value is missing, where one was begun"),
    ("<document start>", "something follows after the end of the document"),
    ("cannot start any token", "quote this text, and indent with spaces, not tabs"),
    ("mapping values are not allowed", "a `:` too many (quote the text), or a wrong indentation"),
    ("expected ':'", "a key has no `:` behind it"),
    ("expected ',' or", "a comma or a closing bracket is missing"),
    ("block end", "a line is not indented like the ones before it"),
    ("expected key", "a line is not indented like the ones before it"),
)
"""Reasons for messages of the parser, first match wins; other messages stay as they are."""


def _not_yaml(error: yaml.YAMLError, *, lines: int) -> InvalidSpec:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
    reason = next((reason for words, reason in _REASONS if words in problem), problem)
    where = f"line {min(mark.line + 1, lines)}" if mark else "document"
    return refusal([(where, f"is neither YAML nor JSON: {reason}")])


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been read yet."""

    value: dict[str, Any] | list[Any]
    key: str | None = None  # of a mapping, while its value has not been read yet

    def put(self, value: object) -> None:
        if isinstance(self.value, list):
            self.value.append(value)
        else:
            self.value[self.key or ""] = value
            self.key = None

    @property
    def wants_key(self) -> bool:
        return isinstance(self.value, dict) and self.key is None


@dataclass(slots=True)
class _Loader:
    """Builds a value from the parser's events."""

    # Version 1.1 with aliases and merge keys; else version 1.2 without them.
    is_pyyaml: bool = False
    may_share: Callable[[object], bool] = lambda _document: False
    open: list[_Open] = field(default_factory=list)  # the innermost last
    documents: list[object] = field(default_factory=list)
    anchors: dict[str, object] = field(default_factory=dict)
    merged: int = 0  # keys that were merged: each is a copy

    def load(self, text: str) -> object:
        """The document of the text, or a `List` of objects."""
        try:
            for event in yaml.parse(text, Loader=PARSER):
                self._take(event)
        except yaml.YAMLError as error:
            raise _not_yaml(error, lines=text.rstrip().count("\n") + 1) from None
        if not self.documents:
            _refuse("document", "is empty: it holds nothing but comments")
        objects = [value for value in self.documents if value is not None]
        if len(objects) < 2:
            return objects[0] if objects else None
        if not self.may_share(objects[-1]):
            _refuse("document", f"{SECOND}, and only Kubernetes objects share one")
        return {**LIST, "items": objects}

    def _take(self, event: yaml.Event) -> None:
        match event:
            case yaml.DocumentStartEvent():
                if self.documents and not self.may_share(self.documents[-1]):
                    _refuse_at(event, SECOND)
                self.documents.append(None)
            case yaml.AliasEvent():
                self._put(event, self._alias(event))
            case yaml.ScalarEvent():
                self._put(event, self._anchored(event, self._scalar(event)))
            case yaml.CollectionStartEvent():
                self._begin_collection(event)
            case yaml.CollectionEndEvent():
                value = self.open.pop().value
                self._merge_keys(event, value)
                self._put(event, value)
            case _:
                pass

    def _begin_collection(self, event: yaml.CollectionStartEvent) -> None:
        if self.open and self.open[-1].wants_key:
            _refuse_at(event, "has a list or mapping as a key: keys must be text")
        if len(self.open) >= DEPTH:
            _refuse_at(event, TOO_DEEP)
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.open.append(_Open(self._anchored(event, value)))

    def _put(self, event: yaml.Event, value: object) -> None:
        """Add a whole value, which may be a key, to the innermost collection, or make it the document."""
        if not self.open:
            self.documents[-1] = value
        elif self.open[-1].wants_key:
            self.open[-1].key = self._key(event, value)
        else:
            self.open[-1].put(value)

    def _key(self, event: yaml.Event, value: object) -> str:
        if not isinstance(value, str):
            _refuse_at(event, f"has {described(value)} as a key, but keys must be text: quote it")
        if value in self.open[-1].value:
            _refuse_at(event, f'has the key "{value}" a second time in one mapping: keep one')
        return value

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        if not event.implicit[0]:  # quoted, or a block of text
            return event.value
        return _pyyaml_scalar(event.value) if self.is_pyyaml else _scalar(event.value)

    def _anchored(self, event: Opening, value: Node) -> Node:
        """The value, after its anchor was noted or refused."""
        if event.tag is not None:
            _refuse_at(
                event, f"has the tag {event.tag}, and tags are off: put text in quotes instead"
            )
        if event.anchor is not None:
            if not self.is_pyyaml:
                _refuse_at(event, "has an anchor (&), and anchors are off: write the value out")
            self.anchors[event.anchor] = value
        return value

    def _alias(self, event: yaml.AliasEvent) -> object:
        if not self.is_pyyaml:
            _refuse_at(event, "has an alias (*), and aliases are off: write the value out")
        if event.anchor not in self.anchors:
            _refuse_at(event, f"has an alias of an anchor (&{event.anchor}) that is not there")
        value = self.anchors[event.anchor]
        if any(value is outer.value for outer in self.open):
            _refuse_at(event, "has an alias of what it stands in, which has no end")
        return value

    def _merge_keys(self, event: yaml.Event, value: dict[str, Any] | list[Any]) -> None:
        """Replace a merge key by the keys of its mappings, in place, as aliases refer to the object."""
        if not self.is_pyyaml or isinstance(value, list) or MERGE not in value:
            return
        below = value.pop(MERGE)
        sources = below if isinstance(below, list) else [below]
        if not all(isinstance(source, dict) for source in sources):
            _refuse_at(event, "merges (<<) what is no mapping")
        self.merged += sum(map(len, sources))
        if self.merged > VALUES:
            _refuse("document", TOO_MANY)
        keys = dict(value)
        value.clear()
        for source in (*reversed(sources), keys):
            value.update(source)


def _refuse_at(event: yaml.Event, message: str) -> NoReturn:
    _refuse(f"line {event.start_mark.line + 1}" if event.start_mark else "document", message)


# --- Writing ------------------------------------------------------------------------------------


class _Writer(yaml.SafeDumper):
    """Writes YAML that `read_text` reads to the same value: text that looks like a number is quoted."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(writer: _Writer, text: str) -> yaml.ScalarNode:
    is_plain = text.isprintable() and not any(pattern.fullmatch(text) for pattern, _ in _SCALARS)
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Writer.add_representer(str, _text)


def to_yaml(document: Mapping[str, Any]) -> str:
    """The document as YAML; `read_text` reads the same document from it."""
    return yaml.dump(document, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100)
