"""Tables and lists of facts that fit any terminal width.

Where a table is too wide, columns that are not pinned move below their row, the last one first, then long
texts; what still does not fit is cut. Widths count cells of the terminal: a wide character takes two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from everstep.cli.output import hanging, longest_word, shown

TableRow = Mapping[str, Any]

GAP = 2
INDENT = 4
TEXT_LEAST = 40
"""Cells that long text needs to stand beside other columns; with less it is easier to read below."""
TEXT_LEAST_CUT = 12
"""The least width of a text that is cut anyway."""
CELL_LEAST = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and where the cell below it comes from: a key of the row, or a function of it."""

    title: str
    source: str | Callable[[TableRow], object]
    wraps: bool = False  # long text: over several lines where there is room, else below its row
    is_pinned: bool = False  # stays on its row, if need be cut
    width: int | None = None  # the most cells; a longer text ends with an ellipsis

    def cell(self, row: TableRow) -> str:
        value = row.get(self.source) if isinstance(self.source, str) else self.source(row)
        return shown(value)


@dataclass(frozen=True, slots=True)
class Placed:
    """A column with its cells, and how wide it is drawn."""

    column: Column
    cells: tuple[str, ...]
    width: int


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings, laid out for whatever width they are printed at."""

    columns: tuple[Placed, ...]
    is_brief: bool  # a line a row: what does not fit is left out

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, below = _placed(self.columns, options.max_width, is_brief=self.is_brief)
        yield _line([_cut(placed.column.title, placed.width) for placed in columns], bold=True)
        for at in range(len(self.columns[0].cells)):
            yield from self._row(console, columns, at)
            if rest := "; ".join(_lines_below(below, at)):
                room = max(options.max_width - INDENT, CELL_LEAST)
                yield from hanging(console, Text(" " * INDENT), rest, room=room)

    def _row(self, console: Console, columns: Sequence[Placed], at: int) -> Iterator[Text]:
        cells = [self._wrapped(console, placed, at) for placed in columns]
        for lines in zip_longest(*cells, fillvalue=""):
            yield _line([_cut(line, p.width) for line, p in zip(lines, columns, strict=True)])

    def _wrapped(self, console: Console, placed: Placed, at: int) -> list[str]:
        cell = placed.cells[at]
        if not placed.column.wraps or self.is_brief:
            return [cell]
        return [line.plain for line in Text(cell).wrap(console, placed.width, overflow="fold")]


def table(rows: Iterable[TableRow], columns: Iterable[Column], *, is_brief: bool = False) -> Table:
    """A plain table."""
    all_rows = list(rows)
    return Table(tuple(_column(column, all_rows) for column in columns), is_brief)


def _column(column: Column, rows: Sequence[TableRow]) -> Placed:
    cells = tuple(column.cell(row) for row in rows)
    width = max(map(cell_len, (column.title, *cells)))
    return Placed(column, cells, width if column.width is None else min(width, column.width))


def _placed(
    columns: Sequence[Placed], width: int, *, is_brief: bool
) -> tuple[list[Placed], list[Placed]]:
    """The columns that fit this width beside each other, and those that go below their rows."""
    plain = [placed for placed in columns if not placed.column.wraps]
    while _total(plain) > width and (rest := [p for p in plain if not p.column.is_pinned]):
        plain.remove(rest[-1])
    texts = [placed for placed in columns if placed.column.wraps]
    least = TEXT_LEAST_CUT if is_brief else TEXT_LEAST
    if _total(plain) + sum(GAP + min(text.width, least) for text in texts) > width:
        texts = []
    chosen = [placed for placed in columns if placed in plain or placed in texts]
    below = [] if is_brief else [placed for placed in columns if placed not in chosen]
    return _narrowed(chosen, width), below


def _total(columns: Sequence[Placed]) -> int:
    return sum(placed.width for placed in columns) + GAP * (len(columns) - 1)


def _narrowed(columns: Sequence[Placed], width: int) -> list[Placed]:
    """The columns made to fit this width: the widest lose cells, long text before all others."""
    widths = [placed.width for placed in columns]
    room = max(width - GAP * (len(columns) - 1), 0)
    for is_text in (True, False):
        some = [at for at, placed in enumerate(columns) if placed.column.wraps is is_text]
        while sum(widths) > room and (wide := [at for at in some if widths[at] > CELL_LEAST]):
            widths[max(wide, key=widths.__getitem__)] -= 1
    return [replace(placed, width=new) for placed, new in zip(columns, widths, strict=True)]


def _lines_below(below: Sequence[Placed], at: int) -> Iterator[str]:
    """The cells that have no column, each with its heading; a text that is the only one needs none."""
    plain = [placed for placed in below if not placed.column.wraps and placed.cells[at] != "-"]
    if plain:
        yield ", ".join(f"{placed.column.title.lower()} {placed.cells[at]}" for placed in plain)
    texts = [placed for placed in below if placed.column.wraps and placed.cells[at] != "-"]
    for text in texts:
        heading = f"{text.column.title.lower()}: " if len(texts) > 1 else ""
        yield f"{heading}{text.cells[at]}"


def _cut(text: str, width: int) -> Text:
    """The text cut or padded to exactly this width."""
    cell = Text(text)
    cell.truncate(width, overflow="ellipsis", pad=True)
    return cell


def _line(cells: Sequence[Text], *, bold: bool = False) -> Text:
    line = Text(" " * GAP).join(cells)
    line.rstrip()
    if bold:
        line.stylize("bold")
    return line


# -- folding ------------------------------------------------------------------------------------

FOLDED_OVER = 16
"""More rows than this are folded where they are alike."""


def folded(
    rows: Sequence[TableRow], merge: Callable[[list[TableRow]], TableRow], *apart: str
) -> list[TableRow]:
    """The rows; in a long table, those that differ only in the keys `apart` are merged into one."""
    if len(rows) <= FOLDED_OVER:
        return list(rows)
    rows_by_text: dict[str, list[TableRow]] = {}
    for row in rows:
        same = shown({key: value for key, value in row.items() if key not in apart})
        rows_by_text.setdefault(same, []).append(row)
    return [merge(some) if len(some) > 1 else some[0] for some in rows_by_text.values()]


def span(names: Sequence[str]) -> str:
    """`n0 to n999 (1000)`."""
    return f"{names[0]} to {names[-1]} ({len(names)})" if len(names) > 1 else names[0]


# -- facts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values below each other."""

    pairs: tuple[tuple[str, str], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = max((cell_len(name) for name, _ in self.pairs), default=0)
        room = max(options.max_width - names - GAP, TEXT_LEAST)
        for name, value in self.pairs:
            heading = Text(name, style="bold")
            heading.pad_right(names + GAP - heading.cell_len)
            yield from hanging(console, heading, value, room=max(room, longest_word(value)))


def facts(pairs: Iterable[tuple[str, object]]) -> Facts:
    """The pairs that have a value."""
    known_pairs = ((name, value) for name, value in pairs if value not in (None, "", [], {}))
    return Facts(tuple((name, shown(value)) for name, value in known_pairs))
