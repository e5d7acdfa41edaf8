"""Every test here has a machine to itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    own = Machine.at(tmp_path / "home")
    yield own
    own.end()  # agents outlive whatever failed
