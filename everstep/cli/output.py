"""Printing: one value, as JSON or as a page for people. What is on a page is in `pages`.

What others wrote, a rank, a document, a server, comes to a terminal through here alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from everstep.core.escaping import for_terminal

T = TypeVar("T")
Page = Iterable[RenderableType]

ROOM_LEAST = 20
PIPED_WIDTH = 200
"""Columns if the output is no terminal: there is no reason to squeeze tables."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a page.")]


def show(value: T, page: Callable[[T], Page], *, as_json: bool) -> None:
    """The value itself, or its page."""
    if as_json:
        print(json.dumps(value, indent=2))
        return
    there = console()
    for part in page(value):
        there.print(TextLine(for_terminal(part)) if isinstance(part, str) else part)


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text: on a terminal broken between words, below the text that follows its first word."""

    text: str

    def __rich_console__(self, there: Console, options: ConsoleOptions) -> RenderResult:
        if not there.is_terminal or cell_len(self.text) <= options.max_width:
            yield Text(self.text)
            return
        begin = re.match(r"\s*\S+\s{2,}|\s*", self.text)
        indent = begin.end() if begin else 0
        room = max(options.max_width - indent, ROOM_LEAST, longest_word(self.text))
        yield from hanging(there, Text(self.text[:indent]), self.text[indent:], room=room)


def longest_word(text: str) -> int:
    """The width of the longest word: a link stays whole, so that it can be copied."""
    return max(map(cell_len, text.split()), default=0)


def hanging(there: Console, begin: Text, text: str, *, room: int) -> Iterator[Text]:
    """The text behind its beginning, broken between words into lines below each other."""
    for line in Text(text).wrap(there, room, overflow="fold"):
        yield begin + Text(line.plain.rstrip())
        begin = Text(" " * begin.cell_len)


def console(*, soft_wrap: bool = True) -> Console:
    """Where pages are printed. With NO_COLOR without any style: neither colours nor bold."""
    plain: dict[str, Any] = {"color_system": None} if os.environ.get("NO_COLOR") else {}
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(markup=False, highlight=False, soft_wrap=soft_wrap, width=width, **plain)


def shown(value: object) -> str:
    """A value as a person reads it, harmless to a terminal whatever is in it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{key} {shown(item)}" for key, item in value.items()) or "-"
        case list() | tuple():
            return ", ".join(shown(item) for item in value) or "-"
        case _:
            return "".join(c if c.isprintable() else " " for c in for_terminal(str(value)))


def not_empty(name: str | None) -> str | None:
    """The name as it is. Raises BadParameter for one without a character."""
    if name is not None and not name.strip():
        raise typer.BadParameter("may not be empty")
    return name
