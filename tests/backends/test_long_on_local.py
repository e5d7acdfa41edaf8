"""The table of rows that are long on the local backend names tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.long_on_local import ROWS, WHOLE_FILES

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", ROWS)
def test_every_long_row_is_of_a_test_of_its_file_and_some_rows_stay_quick(file: str) -> None:
    lines = (HERE / file).read_text().splitlines()
    tests = {line.split()[2].partition("(")[0] for line in lines if line.startswith("async def t")}
    assert set(ROWS[file]) < tests


@pytest.mark.parametrize("file", WHOLE_FILES)
def test_every_file_that_is_long_as_a_whole_exists(file: str) -> None:
    assert (HERE / file).exists()
