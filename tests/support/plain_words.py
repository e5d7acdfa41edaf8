"""Counts private language per room: names that are bare participles or pronouns, people-words in docstrings.

python -m tests.support.plain_words            # the rooms, and the worst files and words
python -m tests.support.plain_words --lower    # write the smaller numbers down, never a larger one
"""

from __future__ import annotations

import ast
import collections
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import parsed

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("everstep", "workflows", "activities", "tests")
LIMITS = ROOT / "tests" / "plain_words.json"

NAMES = re.compile(
    r"_*(known|seen|unseen|said|told|untold|given|asked|kept|taken|found|heard|wanted|noted|named|shown|brought|gone"
    r"|own|mine|ours|theirs|others|eyes|beside|anew|alike|whoever|nobody|everybody|somebody"
    r"|becomes|stays|leaves|brings|says|tells|asks|hears|knows|stirred|outdone|plainly)_*",
    re.IGNORECASE,
)
"""What a variable, parameter, field, function or class is called, after any underscores."""

WORDS = re.compile(
    r"\b(whoever|whom|nobody|somebody|everybody|anybody|told|tells?|said|asks?|asked|hears?|heard|knows?|knew"
    r"|speaks?|spoke|spoken|anew)\b",
    re.IGNORECASE,
)
"""Words for people, in a docstring."""


def room(path: Path) -> str:
    """The package that a file belongs to: `everstep/core`, `everstep/backends/fake`, `tests/core`.

    The local backend counts with what all backends share: code moves between them.
    """
    parts = (ROOT / path).relative_to(ROOT).parts[:-1]
    has_rooms = parts[:2] == ("everstep", "dialects") or parts[:3] in (
        ("everstep", "backends", "fake"),
        ("everstep", "backends", "kubernetes"),
    )
    return "/".join(parts[: 3 if has_rooms else 2])


Scope = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def names(tree: ast.Module) -> Iterator[str]:
    """Each bare participle or pronoun that the module binds, once for each scope that binds it."""
    scopes: list[ast.Module | Scope] = [tree]
    while scopes:
        bound: set[str] = set()
        nodes: list[ast.AST] = list(ast.iter_child_nodes(scopes.pop()))
        while nodes:
            node = nodes.pop()
            if isinstance(node, Scope):
                bound.add(node.name)
                scopes.append(node)
                continue
            if isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Store):
                    bound.add(node.id)
                continue  # has no parts
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                bound.add(node.attr)
            nodes += ast.iter_child_nodes(node)
        yield from filter(NAMES.fullmatch, bound)


def people_words(tree: ast.Module) -> Iterator[str]:
    """Each people-word in the docstrings of modules, classes, functions and attributes."""
    nodes: collections.deque[ast.AST] = collections.deque([tree])
    while nodes:
        match node := nodes.popleft():
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield from (word.lower() for word in WORDS.findall(text))
            case ast.mod() | ast.stmt() | ast.excepthandler() | ast.match_case():
                nodes += ast.iter_child_nodes(node)
            case _:
                pass  # no statement is within an expression


class Count:
    """The names and words of one room or one file."""

    def __init__(self) -> None:
        self.names: collections.Counter[str] = collections.Counter()
        self.words: collections.Counter[str] = collections.Counter()

    @classmethod
    def of(cls, tree: ast.Module) -> Count:
        count = cls()
        count.names.update(name.strip("_").lower() for name in names(tree))
        count.words.update(people_words(tree))
        return count

    def add(self, other: Count) -> None:
        self.names.update(other.names)
        self.words.update(other.words)

    @property
    def numbers(self) -> list[int]:
        return [self.names.total(), self.words.total()]


def count() -> tuple[dict[str, Count], dict[str, Count]]:
    """By room, and by file."""
    rooms: dict[str, Count] = {}
    files: dict[str, Count] = {}
    for path in sorted(file for top in TOPS for file in (ROOT / top).rglob("*.py")):
        here = files[str(path.relative_to(ROOT))] = Count.of(parsed(path.read_text()))
        rooms.setdefault(room(path), Count()).add(here)
    return rooms, files


def limits() -> dict[str, list[int]]:
    """How many names and words a room may have."""
    read: dict[str, list[int]] = json.loads(LIMITS.read_text())
    return read


def worst(counts: dict[str, Count], most: int) -> Iterator[str]:
    """A line for each of those that have the most, with their commonest names and words."""
    for where, here in sorted(counts.items(), key=lambda item: -sum(item[1].numbers))[:most]:
        common = " ".join(f"{word} {n}" for word, n in (here.names + here.words).most_common(6))
        yield "{:>5} {:>5}  {:<48} {}".format(*here.numbers, where, common)


def lower(rooms: dict[str, Count]) -> None:
    """Write down what a room has now, where that is less. A room that is new starts with what it has."""
    before = limits() if LIMITS.exists() else {}
    after = {
        where: [
            min(pair) for pair in zip(here.numbers, before.get(where, here.numbers), strict=True)
        ]
        for where, here in sorted(rooms.items())
    }
    lines = ",\n".join(
        f"  {json.dumps(where)}: {json.dumps(pair)}" for where, pair in after.items()
    )
    LIMITS.write_text(f"{{\n{lines}\n}}\n")


def main() -> None:
    rooms, files = count()
    if "--lower" in sys.argv[1:]:
        lower(rooms)
    names, words = (sum(here.numbers[i] for here in rooms.values()) for i in (0, 1))
    sys.stdout.write("\n".join(["names words", *worst(rooms, len(rooms)), "", *worst(files, 15)]))
    sys.stdout.write(f"\n{names:>5} {words:>5}  in all\n")


if __name__ == "__main__":
    main()
