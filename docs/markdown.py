"""The little Markdown that generated pages need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table, line by line."""
    heads = tuple(titles)
    yield line(heads)
    yield line("---" for _ in heads)
    for row in rows:
        yield line(row)


def line(cells: Iterable[str]) -> str:
    """A row. A cell of several lines becomes one: the next line would end the table."""
    return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |"
