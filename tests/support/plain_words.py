"""Counts private language per room: names, words for people, and docstrings without an object.

Four numbers: names that are bare participles or pronouns; people-words in docstrings; longer names of which a
part is such a word; docstrings whose first sentence is a fragment.

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


PARTS = frozenset(
    (
        *(
            "whoever",
            "whom",
            "nobody",
            "somebody",
            "everybody",
            "anybody",
            "anew",
            "ours",
            "theirs",
            "mine",
        ),
        *(
            "tell",
            "tells",
            "telling",
            "told",
            "untold",
            "says",
            "said",
            "speak",
            "speaks",
            "spoke",
            "spoken",
        ),
        *("ask", "asks", "asked", "asking", "hear", "hears", "heard", "know", "knows", "knew"),
    )
)
"""Words for people as parts of longer names, such as `nobody_to_ask` and `NobodyAnswered`."""

_VERB = (
    r"\b(is|are|has|have|may|can|must|take[sn]?|returns?|reads?|counts?|gives?|does|do|was|were|will|ends?|sees?"
    r"|stands?|stood|comes?|goes|go|sends?|reports?|saves?|waits?|holds?|begins?|lived?|lacks?|needs?|isolates?"
    r"|follows?|knows?|gets?|keeps?|checks?|fits?|wins?|grants?|judges?|reach|works?|made|left|been)\b"
)
FRAGMENT = re.compile(
    r"(So (long|often|many)|As (many|much)|At most so|The same (of|for|where|after|while|as|with))\b"
    r"|(Of|By|To|Between|Beside|Behind|Within|Above|Over|Without|With|On|In|For)\b"
    rf"(?![^.:;]*{_VERB})"
)
"""The begin of a docstring without an object and a verb, as `Of the pods of a job.`, or that needs its
neighbour, as `So many are kept.` beside a number, and `The same for nodes.`"""


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
    return filter(NAMES.fullmatch, _bound_names(tree))


def compounds(tree: ast.Module) -> Iterator[str]:
    """Each longer name that the module binds and of which a part is a word for people.

    Names of tests are claims, and left out.
    """
    for name in _bound_names(tree):
        parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
        if len(parts) > 1 and not name.startswith("test_") and not PARTS.isdisjoint(parts):
            yield name


def fragments(tree: ast.Module) -> Iterator[str]:
    """The first line of each docstring, of attributes too, that is no sentence and names no thing."""
    for text in _docstrings(tree):
        if FRAGMENT.match(text):
            yield text.partition("\n")[0]


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Each name that the module binds, once for each scope that binds it."""
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
        yield from bound


def people_words(tree: ast.Module) -> Iterator[str]:
    """Each people-word in the docstrings of modules, classes, functions and attributes."""
    for text in _docstrings(tree):
        yield from (word.lower() for word in WORDS.findall(text))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """The docstrings of modules, classes, functions and attributes."""
    nodes: collections.deque[ast.AST] = collections.deque([tree])
    while nodes:
        match node := nodes.popleft():
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case ast.mod() | ast.stmt() | ast.excepthandler() | ast.match_case():
                nodes += ast.iter_child_nodes(node)
            case _:
                pass  # no statement is within an expression


class Count:
    """The names and words of one room or one file."""

    def __init__(self) -> None:
        self.names: collections.Counter[str] = collections.Counter()
        self.words: collections.Counter[str] = collections.Counter()
        self.compounds: collections.Counter[str] = collections.Counter()
        self.fragments: collections.Counter[str] = collections.Counter()

    @classmethod
    def of(cls, tree: ast.Module) -> Count:
        count = cls()
        count.names.update(name.strip("_").lower() for name in names(tree))
        count.words.update(people_words(tree))
        count.compounds.update(compounds(tree))
        count.fragments.update(fragments(tree))
        return count

    def add(self, other: Count) -> None:
        self.names.update(other.names)
        self.words.update(other.words)
        self.compounds.update(other.compounds)
        self.fragments.update(other.fragments)

    @property
    def kinds(self) -> tuple[collections.Counter[str], ...]:
        return self.names, self.words, self.compounds, self.fragments

    @property
    def numbers(self) -> list[int]:
        return [kind.total() for kind in self.kinds]


def count() -> tuple[dict[str, Count], dict[str, Count]]:
    """The counts of each room, and of each file."""
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
        all_of_it = sum(here.kinds, collections.Counter[str]())
        common = " ".join(f"{word} {n}" for word, n in all_of_it.most_common(6))
        yield "{:>5} {:>5} {:>9} {:>9}  {:<48} {}".format(*here.numbers, where, common)


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
    totals = [
        sum(column) for column in zip(*(here.numbers for here in rooms.values()), strict=True)
    ]
    heading = "names words compounds fragments"
    sys.stdout.write("\n".join([heading, *worst(rooms, len(rooms)), "", *worst(files, 15)]))
    sys.stdout.write("\n{:>5} {:>5} {:>9} {:>9}  in all\n".format(*totals))


if __name__ == "__main__":
    main()
