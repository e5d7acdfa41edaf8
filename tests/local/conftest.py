"""Every test here has a machine to itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    test_machine = Machine.at(tmp_path / "home")
    yield test_machine
    test_machine.end()  # agents outlive whatever failed
