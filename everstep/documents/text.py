"""Text, as YAML or JSON, to a plain value. What the keys mean is not judged here.

YAML is read the way its version 1.2 means it: `on`, `yes`, `1:30` and `2024-01-01` are text. Aliases,
anchors, tags and second documents are refused; so is a key written twice. Nothing here recurses on
what the text holds.

Kubernetes objects may share a text: several of them become one `List`, as kubectl writes them.

Documents that another program reads too are read as that one does (`as_pyyaml`): with aliases, merge keys
and the words of version 1.1. What is used twice is the same object: it costs nothing until it is counted.
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
from everstep.documents import pyyaml
from everstep.documents.plain import (
    DEPTH,
    TOO_DEEP,
    TOO_LARGE,
    TOO_MANY,
    VALUES,
    plain_document,
)
from everstep.documents.problems import described, refusal

BYTES = DOCUMENT_MOST
DIGITS = 20

SECOND = "begins a second document: one file holds one job"
LIST = {"apiVersion": "v1", "kind": "List"}

Node = TypeVar("Node")
Opening = yaml.ScalarEvent | yaml.CollectionStartEvent

# The parser in C reads the largest text we take in a fraction of a second, the other one in ten.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(
    text: str | bytes,
    *,
    as_pyyaml: Collection[str] = (),
    may_share: Callable[[object], bool] = lambda _document: False,
) -> dict[str, Any]:
    """The document in this text. Whatever the text is, the only error is `InvalidSpec`, soon.

    `as_pyyaml`: a text with one of these keys at its top is read as PyYAML reads it.
    `may_share`: whether this document is an object that may share its text with others.
    """
    decoded = _decoded(text)
    if not decoded.strip():
        _refuse("document", "is empty; write at least apiVersion, kind, metadata and spec")
    is_theirs = any(_has_on_top(decoded, key) for key in as_pyyaml)
    builder = _BuilderOfPyyaml() if is_theirs else _Builder(may_share=may_share)
    return plain_document(_value(decoded, builder))


def _has_on_top(text: str, key: str) -> bool:
    """Whether a line as far to the left as the first one begins with this key."""
    first = re.search(r"^( *)(?![ #%]|---|$)", text, re.MULTILINE)
    begin = first[1] if first else ""
    return re.search(rf"^{begin}([\"']?){key}\1[ \t]*:", text, re.MULTILINE) is not None


def _decoded(text: str | bytes) -> str:
    try:
        raw = text.encode() if isinstance(text, str) else text
        if len(raw) > BYTES:
            _refuse("document", TOO_LARGE)
        return raw.decode("utf-8-sig")
    except UnicodeError:
        _refuse("document", "is not UTF-8 text; save it as UTF-8")


def _value(text: str, builder: _Builder) -> object:
    if text.lstrip()[:1] in ("{", "[") and _json_depth(text) <= DEPTH:
        try:
            return _json(text)
        except ValueError:
            pass  # Braces may be YAML's as well, and its messages name the line.
    return _yaml(text, builder)


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
    """The number, or infinity (refused with its field later) for one no computer word can hold."""
    return int(digits) if len(digits) <= DIGITS else math.inf


# --- YAML ---------------------------------------------------------------------------------------

_SCALARS: tuple[tuple[re.Pattern[str], Callable[[str], object]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    # 010 is eight to some and ten to others: it stays text, and the field that wants a number asks.
    (re.compile(r"[-+]?(?:0|[1-9][0-9]*)"), _whole),
    (re.compile(r"0o[0-7]{1,21}|0x[0-9a-fA-F]{1,16}"), lambda text: int(text, 0)),
    (
        re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"),
        float,
    ),
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"), lambda t: float(t.replace(".", ""))),
)
"""What a scalar without quotes is, first match wins; none of these: text."""


def _scalar(text: str) -> object:
    return next((read(text) for pattern, read in _SCALARS if pattern.fullmatch(text)), text)


def _yaml(text: str, builder: _Builder) -> object:
    try:
        for event in yaml.parse(text, Loader=LOADER):
            builder.take(event)
    except yaml.YAMLError as error:
        raise _not_yaml(error, lines=text.rstrip().count("\n") + 1) from None
    if not builder.documents:
        _refuse("document", "is empty: it holds nothing but comments")
    return builder.whole()


_PLAINLY: tuple[tuple[str, str], ...] = (
    ("node content", "it ends, or a value is missing, where one was begun"),
    ("<document start>", "something follows after the end of the document"),
    ("cannot start any token", "quote this text, and indent with spaces, not tabs"),
    ("mapping values are not allowed", "a `:` too many (quote the text), or a wrong indentation"),
    ("expected ':'", "a key has no `:` behind it"),
    ("expected ',' or", "a comma or a closing bracket is missing"),
    ("block end", "a line is not indented like the ones before it"),
    ("expected key", "a line is not indented like the ones before it"),
)
"""What the parser's words mean, first match wins; any other words are passed on as they are."""


def _not_yaml(error: yaml.YAMLError, *, lines: int) -> InvalidSpec:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
    plainly = next((plain for words, plain in _PLAINLY if words in said), said)
    where = f"line {min(mark.line + 1, lines)}" if mark else "document"
    return refusal([(where, f"is neither YAML nor JSON: {plainly}")])


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been read yet."""

    value: dict[str, Any] | list[Any]
    key: str | None = None

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
class _Builder:
    """Builds a value from the parser's events, one after the other."""

    open: list[_Open] = field(default_factory=list)
    result: object = None
    documents: int = 0
    may_share: Callable[[object], bool] = lambda _document: False
    before: list[object] = field(default_factory=list)  # documents that ended

    def take(self, event: yaml.Event) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self._begin(event)
            case yaml.AliasEvent():
                self._take(event, self.meant(event))
            case yaml.ScalarEvent():
                self._take(event, self.named(event, self.scalar(event)))
            case yaml.CollectionStartEvent():
                self._enter(event)
            case yaml.CollectionEndEvent():
                self._put(self.closed(event, self.open.pop().value))
            case _:
                pass

    def _begin(self, event: yaml.Event) -> None:
        self.documents += 1
        if self.documents > 1 and not self.may_share(self.result):
            _refuse_at(event, SECOND)
        if self.documents > 1:
            self.before.append(self.result)
            self.result = None

    def whole(self) -> object:
        """What the text holds: its document, or a List of objects."""
        objects = [value for value in (*self.before, self.result) if value is not None]
        if len(objects) < 2:
            return objects[0] if objects else None
        if not self.may_share(objects[-1]):
            _refuse("document", f"{SECOND}, and only Kubernetes objects share one")
        return {**LIST, "items": objects}

    def _enter(self, event: yaml.CollectionStartEvent) -> None:
        if self.open and self.open[-1].wants_key:
            _refuse_at(event, "has a list or mapping as a key: keys must be text")
        if len(self.open) >= DEPTH:
            _refuse_at(event, TOO_DEEP)
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.open.append(_Open(self.named(event, value)))

    def _take(self, event: yaml.NodeEvent, value: object) -> None:
        if self.open and self.open[-1].wants_key:
            self.open[-1].key = self._key(event, value)
        else:
            self._put(value)

    def _key(self, event: yaml.NodeEvent, value: object) -> str:
        if not isinstance(value, str):
            _refuse_at(event, f"has {described(value)} as a key, but keys must be text: quote it")
        if value in self.open[-1].value:
            _refuse_at(event, f'has the key "{value}" a second time in one mapping: keep one')
        return value

    def _put(self, value: object) -> None:
        if self.open:
            self.open[-1].put(value)
        else:
            self.result = value

    # What version 1.2 means, without anchors.

    def scalar(self, event: yaml.ScalarEvent) -> object:
        # Without implicit[0] it is quoted, or a block of text.
        return _scalar(event.value) if event.implicit[0] else event.value

    def named(self, event: Opening, value: Node) -> Node:
        """The value, which may have a name to be used again by."""
        if event.anchor is not None:
            _refuse_at(event, "has an anchor (&), and anchors are off: write the value out")
        _check_tag(event)
        return value

    def meant(self, event: yaml.AliasEvent) -> object:
        _refuse_at(event, "has an alias (*), and aliases are off: write the value out")

    def closed(self, _event: yaml.Event, value: Node) -> Node:
        return value


@dataclass(slots=True)
class _BuilderOfPyyaml(_Builder):
    """The same, as PyYAML means it."""

    anchors: dict[str, object] = field(default_factory=dict)
    merged: int = 0  # keys that came by merging: each is a copy

    def scalar(self, event: yaml.ScalarEvent) -> object:
        return pyyaml.scalar(event.value, _scalar) if event.implicit[0] else event.value

    def named(self, event: Opening, value: Node) -> Node:
        _check_tag(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = value
        return value

    def meant(self, event: yaml.AliasEvent) -> object:
        if event.anchor not in self.anchors:
            _refuse_at(event, f"has an alias of an anchor (&{event.anchor}) that is not there")
        value = self.anchors[event.anchor]
        if any(value is outer.value for outer in self.open):
            _refuse_at(event, "has an alias of what it stands in, which has no end")
        return value

    def closed(self, event: yaml.Event, value: Node) -> Node:
        if isinstance(value, dict) and pyyaml.MERGE in value:
            sources = pyyaml.merged(value[pyyaml.MERGE])
            if sources is None:
                _refuse_at(event, "merges (<<) what is no mapping")
            self.merged += sum(map(len, sources))
            if self.merged > VALUES:
                _refuse("document", TOO_MANY)
            pyyaml.merge(value, sources)
        return value


def _check_tag(event: Opening) -> None:
    if event.tag is not None:
        _refuse_at(event, f"has the tag {event.tag}, and tags are off: put text in quotes instead")


def _refuse_at(event: yaml.Event, message: str) -> NoReturn:
    _refuse(f"line {event.start_mark.line + 1}" if event.start_mark else "document", message)


# --- Writing ------------------------------------------------------------------------------------


class _Writer(yaml.SafeDumper):
    """YAML that we read as it was meant: what is a number or a word to us is quoted."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(writer: _Writer, text: str) -> yaml.ScalarNode:
    is_plain = text.isprintable() and not any(pattern.fullmatch(text) for pattern, _ in _SCALARS)
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Writer.add_representer(str, _text)


def written(document: Mapping[str, Any]) -> str:
    """The document as YAML, from which `read_text` makes the same document."""
    return yaml.dump(document, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100)
