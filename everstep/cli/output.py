"""Printing: one value, as JSON or as a page for people. What is on a page is in `pages`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, RenderableType

T = TypeVar("T")
Page = Iterable[RenderableType]

PIPED_WIDTH = 200
"""Columns where the output is no terminal: tables are not squeezed for nobody."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a page.")]


def show(value: T, page: Callable[[T], Page], *, as_json: bool) -> None:
    """The value itself, or its page."""
    if as_json:
        print(json.dumps(value, indent=2))
        return
    there = console()
    for part in page(value):
        there.print(part)


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
            return "".join(c if c.isprintable() else " " for c in str(value))
