"""Replays one recorded history of every way through the loop with the code of today.

A job lives for weeks and its history may be replayed by any later worker. Rules may change under it,
because decisions are recorded; the order of commands may not. Until a version is released no such job
exists: a change of the loop records new histories (`make histories`), and its diff shows the change.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from everstep.core import levels, spec
from everstep.core.deciding import decide, naming, playbook
from everstep.core.levels import LAUNCH_STEPS, FaultClass, Level, Step
from everstep.core.recovering import plans
from everstep.plugin import EverstepPlugin
from tests.replay.record import FOLDER
from tests.replay.stories import OTHER_STORIES, RECOVERIES, STORIES
from workflows import options

FILES = sorted(FOLDER.glob("*.json"))


def loaded(path: Path) -> WorkflowHistory:
    history = json.loads(path.read_text(encoding="utf-8"))
    started = history["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], history)


async def replay(*paths: Path) -> dict[str, str]:
    """What went wrong, by file."""
    replayer = Replayer(
        workflows=[],
        plugins=[EverstepPlugin()],
        debug_mode=True,  # else a turn that takes 2 s, as on a busy machine, fails as a deadlock
    )
    failures = {}
    for path in paths:
        result = await replayer.replay_workflow(loaded(path), raise_on_replay_failure=False)
        if result.replay_failure is not None:
            failures[path.stem] = f"{type(result.replay_failure).__name__}: {result.replay_failure}"
    return failures


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
async def test_a_recorded_history_replays(path: Path) -> None:
    assert await replay(path) == {}, (
        "a living job would be stuck here; not released yet: make histories"
    )


def test_every_story_is_recorded() -> None:
    recorded = {path.stem.rstrip("_0123456789") for path in FILES}
    expected = {*STORIES, *OTHER_STORIES, *(f"{name}_recovery" for name in RECOVERIES)}
    assert recorded == expected, "make histories"


def test_the_histories_show_every_level_and_every_end() -> None:
    """A story that stopped showing what it is for would replay well for ever."""
    counts: Counter[str] = Counter()
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        counts.update(event["eventType"] for event in json.loads(text)["events"])
        counts.update(
            level for level in Level if f'"level":"{level}"' in decoded_text(json.loads(text))
        )
    ends = ("COMPLETED", "FAILED", "CANCELED", "CONTINUED_AS_NEW")
    missing = [end for end in ends if not counts[f"EVENT_TYPE_WORKFLOW_EXECUTION_{end}"]]
    online = {Level.OPERATOR_ONLINE, Level.PROCESS_ONLINE, Level.PROCESS}
    missing += [level for level in Level if level not in online and not counts[level]]
    assert missing == []


def decoded_text(value: Any) -> str:
    """Everything the payloads of a history say."""
    if isinstance(value, dict):
        decoded = (
            base64.b64decode(value["data"]).decode()
            if "metadata" in value and "data" in value
            else ""
        )
        return decoded + "".join(decoded_text(item) for item in value.values())
    return "".join(decoded_text(item) for item in value) if isinstance(value, list) else ""


# -- What may change under a living job -------------------------------------------------------------


async def test_other_rules_and_time_outs_change_nothing_about_what_was_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ladders upside down, every fault called a hang, no decision possible, longer time-outs."""

    def unable(*_args: object, **_keys: object) -> None:
        raise AssertionError("a workflow decides for itself")

    upside_down = tuple(row._replace(levels=row.levels[::-1]) for row in spec.DEFAULT_ROWS)
    monkeypatch.setattr(spec, "DEFAULT_ROWS", upside_down)
    rows = tuple(_called(row, FaultClass.HANG) for row in playbook.PLAYBOOK)
    monkeypatch.setattr(playbook, "PLAYBOOK", rows)
    monkeypatch.setattr(playbook, "rows_of", playbook.rows_of.__wrapped__)  # without its cache
    monkeypatch.setattr(levels, "STEPS", dict.fromkeys(Level, (Step.STOP, Step.START)))
    for module, name in ((decide, "decide"), (naming, "name_fault"), (playbook, "name")):
        monkeypatch.setattr(module, name, unable)
    monkeypatch.setitem(options.STEP, "heartbeat_timeout", 10 * options.HEARTBEAT)
    monkeypatch.setitem(options.RECOVERY, "task_timeout", 10 * options.TASK_TIMEOUT)
    assert await replay(*FILES) == {}


def _called(row: playbook.PlaybookRow, cls: FaultClass) -> playbook.PlaybookRow:
    return playbook.PlaybookRow(kinds=row.kinds, cls=cls, owner=row.owner, why="for a test")


# -- What may not -----------------------------------------------------------------------------------


async def test_a_launch_with_a_step_less_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = tuple(step for step in LAUNCH_STEPS if step is not Step.RESUME)
    monkeypatch.setattr(plans, "LAUNCH_STEPS", steps)
    failures = await replay(FOLDER / "success.json")
    assert NondeterminismError.__name__ in failures["success"]


async def test_a_step_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = workflow.execute_activity

    async def twice(*args: Any, **keys: Any) -> Any:
        await before("clock", **options.CALL)
        return await before(*args, **keys)

    monkeypatch.setattr(workflow, "execute_activity", twice)
    failures = await replay(FOLDER / "pod_recovery.json", FOLDER / "janitor.json")
    assert [NondeterminismError.__name__ in text for text in failures.values()] == [True, True]
