"""The job of most promises: two slots show them, and four take twice as long with real processes."""

from __future__ import annotations

import pytest

from tests.backends.lab import Lab, Run


@pytest.fixture
def job(lab: Lab) -> Run:
    """A job of two slots with one device each, on five nodes."""
    return Run(lab, slots=(0, 1))
