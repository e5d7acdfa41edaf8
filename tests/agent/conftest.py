"""The agent as one file, and pods to try it in."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.pod import PYTHON, Pod
from tests.agent.prewarming.warm import Warm

STARTS_AGENT = frozenset({"idle", "lasting_pod"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what starts no agent, where the agent has an interpreter of its own."""
    if sys.executable != PYTHON:
        items[:] = [item for item in items if STARTS_AGENT & {*getattr(item, "fixturenames", ())}]


@pytest.fixture
def idle(pyz: Path, tmp_path: Path) -> Iterator[Pod]:
    """A pod whose agent is not started yet."""
    uid = f"demo-0-{uuid.uuid4().hex[:8]}"
    pod = Pod(pyz, tmp_path / uid, uid)
    yield pod
    pod.end()


@pytest.fixture
def pod(idle: Pod) -> Pod:
    """A pod with a living agent."""
    return idle.start()


@pytest.fixture(scope="module")
def lasting_pod(pyz: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """A pod with a living agent for all tests of a file that change nothing of it."""
    uid = f"demo-0-{uuid.uuid4().hex[:8]}"
    pod = Pod(pyz, tmp_path_factory.mktemp("pod") / uid, uid)
    try:
        yield pod.start()
    finally:
        pod.end()


@pytest.fixture
def warm(pod: Pod) -> Warm:
    return Warm(pod)
