"""SQL is written in one package: everything else of the local cluster goes through it."""

from __future__ import annotations

import re
from pathlib import Path

import everstep
from everstep.backends.local import database

PRODUCT = Path(everstep.__file__).parent
BOOKS = Path(database.__file__).parent
STATEMENT = re.compile(r"\bsqlite3\b|\.execute(many|script)?\(")


def test_statements_are_made_by_the_database_package_alone() -> None:
    files = [path for path in PRODUCT.rglob("*.py") if STATEMENT.search(path.read_text())]
    assert files, "the pattern finds what it is for"
    elsewhere = [str(path.relative_to(PRODUCT)) for path in files if BOOKS not in path.parents]
    assert not elsewhere, "move the statement to everstep/backends/local/database"
