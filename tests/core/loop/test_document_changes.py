"""What a change of a document is called in events, run.log and `show`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle.fold import folded
from everstep.core.errors import CommandRejected
from everstep.core.loop import commands
from everstep.core.loop.document_changes import changed_keys
from everstep.core.loop.job_events import DocumentChanged
from everstep.core.state import PhaseResult
from tests.support.builders import running


def test_keys_are_named_with_their_values_but_for_those_of_variables() -> None:
    patch = {
        "limits": {"hang_s": 600},
        "env": {"TOKEN": "secret", "KEY": {"from": "HF"}},
        "nodes": 3,
        "prewarm": ["torch"],
        "phases": [{"name": "main", "env": {"TOKEN": "secret"}}],
    }
    keys = ("limits.hang_s=600", "env.TOKEN", "env.KEY.from", "nodes=3", "prewarm", "phases")
    assert changed_keys(patch) == keys


def test_many_keys_are_counted() -> None:
    keys = changed_keys({"env": {f"V{n}": "" for n in range(30)}})
    assert (len(keys), keys[-1]) == (21, "and 10 more")


def test_a_change_is_an_event_a_line_of_the_log_and_a_row() -> None:
    job = running()
    job.chronicle = replace(job.chronicle, entries=())
    event = DocumentChanged(at=1_100.0, what=("nodes=3",), is_now=False, by="ada@node")
    chronicle = folded(job.chronicle, [event])
    text = "the document was changed by ada@node: nodes=3; it holds from the next restart on"
    assert chronicle.happenings[-1][1:4] == (1_100.0, "changed", text)
    assert chronicle.entries[-1].text == text
    assert chronicle.changes[-1] == (1_100.0, ("nodes=3",), False, "ada@node")


ENDED = PhaseResult(
    name="warmup",
    state="completed",
    last_checkpoint_step=None,
    restarts=0,
    ledger=running().state.ledger,
)


@pytest.mark.parametrize(
    ("patch", "has_effect"),
    [
        ({"phases": [{"name": "warmup", "env": {"LR": "1"}}]}, False),
        ({"phases": [{"name": "warmup"}, {"name": "main", "env": {"LR": "1"}}]}, True),
        ({"env": {"LR": "1"}, "phases": [{"name": "warmup"}]}, True),
        ({"phases": []}, True),
        ({"phases": "none"}, True),  # the document says what is wrong with it
        ({"phases": [{"name": []}, {"name": {}}]}, True),  # so it does here
    ],
)
def test_a_change_of_ended_phases_alone_is_refused(patch: dict[str, Any], has_effect: bool) -> None:
    state = replace(running().state, finished=(ENDED,))
    if has_effect:
        commands.accept(state, "hot_update", {"patch": patch})
        return
    with pytest.raises(CommandRejected, match="phase 'warmup' has ended"):
        commands.accept(state, "hot_update", {"patch": patch})
