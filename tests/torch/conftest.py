"""A state directory for each test, where there is a PyTorch to run in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import Machine
from tests.torch.ranks import PYTHON


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    assert PYTHON.exists(), "there is no PyTorch; try: make torch"
    test_machine = Machine.at(tmp_path / "home")
    yield test_machine
    test_machine.end()  # agents outlive whatever failed
