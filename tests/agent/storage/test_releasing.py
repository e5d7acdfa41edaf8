"""The folders of an ended job are released together: one that hangs keeps none of the others."""

from __future__ import annotations

import threading

import pytest

from everstep.agent.storage import fence, releasing
from everstep.protocol import wire
from tests.support.patience import HUNG_S

FOLDERS = ["model", "checkpoints", "elsewhere"]
COMMAND: wire.ReleaseCommand = {
    "job": "demo",
    "cluster": "c",
    "generation": 3,
    "folders": FOLDERS,
    "earlier": [],
}


def test_the_release_of_each_folder_begins_before_any_other_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Together they have the time of one: a worker gives up a call that takes longer."""
    all_have_begun = threading.Barrier(len(FOLDERS))
    monkeypatch.setattr(fence, "release", lambda *_, **__: all_have_begun.wait(HUNG_S))
    assert releasing.release(COMMAND, within_s=HUNG_S) == {}


def test_a_folder_that_hangs_is_named_and_the_others_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released, goes_on = [], threading.Event()

    def release(folder: str, _: object, **__: object) -> None:
        if folder == "checkpoints":
            goes_on.wait(HUNG_S)
        released.append(folder)

    monkeypatch.setattr(fence, "release", release)
    problems = releasing.release(COMMAND, within_s=1.0)
    assert problems == {"checkpoints": "the storage of checkpoints does not answer"}
    assert sorted(released) == ["elsewhere", "model"]
    goes_on.set()
