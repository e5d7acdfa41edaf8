"""SQL is written in one package of the product and one file of the tests; all else goes through them."""

from __future__ import annotations

import re
from pathlib import Path

import everstep
from everstep.backends.local import database

PRODUCT = Path(everstep.__file__).parent
BOOKS = Path(database.__file__).parent
STATEMENT = re.compile(r"\bsqlite3\b|\.execute(many|script)?\(")
TESTS = Path(__file__).parents[2]
QUERY = re.compile(
    r"""\.execute(many|script)?\(|["'](SELECT .|INSERT .*INTO|UPDATE .* SET|DELETE FROM|CREATE TABLE)\b"""
)


def test_statements_are_made_by_the_database_package_alone() -> None:
    files = [path for path in PRODUCT.rglob("*.py") if STATEMENT.search(path.read_text())]
    assert files, "the pattern finds what it is for"
    elsewhere = [str(path.relative_to(PRODUCT)) for path in files if BOOKS not in path.parents]
    assert not elsewhere, "move the statement to everstep/backends/local/database"


def test_statements_of_the_tests_are_in_one_file() -> None:
    files = {path for path in TESTS.rglob("*.py") if QUERY.search(path.read_text())}
    elsewhere = files - {Path(__file__)} ^ {TESTS / "support/books.py"}
    assert not elsewhere, "move the statement to tests/support/books.py"
