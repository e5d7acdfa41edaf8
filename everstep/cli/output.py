"""Printing: one value, as JSON or as a page for people. What is on a page is in `pages`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
Page = Iterable[RenderableType]
Row = Mapping[str, Any]

PIPED_WIDTH = 200
"""Columns where the output is no terminal: tables are not squeezed for nobody."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a page.")]


def show(value: T, page: Callable[[T], Page], *, as_json: bool) -> None:
    """The value itself, or its page."""
    if as_json:
        print(json.dumps(value, indent=2))
        return
    console = Console(
        markup=False,
        highlight=False,
        soft_wrap=True,
        width=None if sys.stdout.isatty() else PIPED_WIDTH,
    )
    for part in page(value):
        console.print(part)


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and where the cell below it comes from: a key of the row, or a function of it."""

    title: str
    source: str | Callable[[Row], object]
    wraps: bool = False
    width: int | None = None  # so wide at most, and less on a narrow terminal; then an ellipsis

    def cell(self, row: Row) -> Text:
        found = row.get(self.source) if isinstance(self.source, str) else self.source(row)
        if self.width is None:
            return Text(shown(found))
        return Text(shown(found), no_wrap=True, overflow="ellipsis")


def table(rows: Iterable[Row], columns: Iterable[Column]) -> Table:
    """A plain table, a line a row."""
    chosen = tuple(columns)
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in chosen:
        drawn.add_column(
            column.title,
            no_wrap=not column.wraps and column.width is None,  # else it could not be narrower
            max_width=column.width,
            overflow="fold",
        )
    for row in rows:
        drawn.add_row(*(column.cell(row) for column in chosen))
    return drawn


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values below each other; a value that is not known is left out."""
    drawn = Table.grid(padding=(0, 2, 0, 0))
    for name, value in pairs:
        if value not in (None, "", [], {}):
            drawn.add_row(Text(name, style="bold"), Text(shown(value)))
    return drawn


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
            return "".join(c if c.isprintable() else " " for c in str(value))
