"""Updates of the quarantine: refused with a sentence where they make no sense, never wedging it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from everstep.backends.fake.gates import Side
from everstep.core import names
from everstep.core.recovering.quarantine import Quarantine
from tests.support.patience import HUNG_S
from tests.support.scene import Scene, refusal, tell, unreadable
from tests.support.stage import Handle
from workflows.node_quarantine import Opening


@pytest.fixture
async def quarantine(shared: Scene) -> AsyncIterator[Handle]:
    await shared.new_cluster()
    opening = Opening(cluster="local", quarantine=Quarantine(cluster="local"))
    handle = await shared.stage.client.start_workflow(
        names.NODE_QUARANTINE,
        opening,
        id=names.quarantine_id("local"),
        task_queue=names.TASK_QUEUE,
    )
    yield handle
    await handle.terminate()


BEGAN, OVER = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z"  # by the clock of the cluster
LATE = 1767225600.0 + 600

WRONG: list[list[Any]] = [[], [None], ["n1"], [{}], [[1]], [{"when": 1}], [unreadable()]]
REFUSALS: list[tuple[str, list[Any]]] = [
    *((name, w) for name in ("isolate", "release", "note_faults", "expire") for w in WRONG),
    ("isolate", [{"node": "n1", "until": "noon"}]),
    ("isolate", [{"node": "n1", "until": 1_795_295_905_000}]),
    ("isolate", [{"node": "n1", "until": "0001-01-01T00:00:00+23:00"}]),
    ("isolate", [{"node": "n1", "until": "2020-01-01T00:00:00Z"}]),
    ("isolate", [unreadable(b'{"node": "n1", "until": 1e999}')]),
    ("isolate", [unreadable(b'{"node": "n1", "at": NaN}')]),
    ("expire", [unreadable(b'{"now": 1e999}')]),
    ("isolate", [{"node": 3}]),
    ("release", [{"node": ""}]),
    ("note_faults", [{"faults": "all"}]),
    ("expire", [{"now": "soon"}]),
    ("expire", [{"now": None}]),
]


async def test_every_refusal_is_a_sentence_and_harms_nothing(quarantine: Handle) -> None:
    for name, arguments in REFUSALS:
        error = await refusal(quarantine, name, *arguments)
        assert len(error) > 10
    await tell(quarantine, "isolate", node="n1", reason="it smokes", by="me")
    (node,) = await quarantine.query("nodes")
    assert (node["name"], node["state"], node["reason"]) == ("n1", "isolated", "it smokes")


async def test_a_node_isolated_until_a_time_is_released_then(
    shared: Scene, quarantine: Handle
) -> None:
    await tell(quarantine, "isolate", node="n1", at=BEGAN, until=OVER)
    early = await tell(quarantine, "expire", now=LATE - 1)
    late = await tell(quarantine, "expire", now=LATE)
    assert (early["released"], late["released"]) == ([], ["n1"])
    assert await quarantine.query("nodes") == []
    assert [n.name for n in await shared.stage.fake.nodes() if n.isolated] == []


ISOLATE, RELEASE = ("isolate", {"node": "n1"}), ("release", {"node": "n1"})
EXPIRE = ("expire", {"now": LATE})
Update = tuple[str, dict[str, Any]]


@pytest.mark.parametrize("held_when", ["before", "after"])
@pytest.mark.parametrize(
    ("held_at", "first", "then", "is_isolated"),
    [
        ("ensure_released", RELEASE, ISOLATE, True),
        ("ensure_isolated", ISOLATE, RELEASE, False),
        ("ensure_released", EXPIRE, ISOLATE, True),
        ("ensure_isolated", ISOLATE, EXPIRE, True),  # for this isolation has no end
    ],
    ids=["release-isolate", "isolate-release", "expire-isolate", "isolate-expire"],
)
async def test_book_and_mark_agree_whatever_is_told_at_once(
    shared: Scene,
    quarantine: Handle,
    *,
    held_at: str,
    first: Update,
    then: Update,
    is_isolated: bool,
    held_when: Side,
) -> None:
    if first is not ISOLATE:
        await tell(quarantine, "isolate", node="n1", at=BEGAN, until=OVER)
    await shared.admin.hold(held_at, when=held_when)
    one = asyncio.create_task(tell(quarantine, first[0], **first[1]))
    await shared.admin.wait_held()
    other = asyncio.create_task(tell(quarantine, then[0], **then[1]))
    await _accepted(quarantine, then[0], other)
    await shared.admin.release()
    await asyncio.gather(one, other)
    book = {node["name"] for node in await quarantine.query("nodes")}
    marks = {node.name for node in await shared.stage.fake.nodes() if node.isolated}
    assert book == marks == ({"n1"} if is_isolated else set())


async def _accepted(quarantine: Handle, name: str, update: asyncio.Task[Any]) -> None:
    """Until the quarantine has begun to carry out this update, the second one of its name at most."""
    updates: list[str] = []
    try:
        async with asyncio.timeout(HUNG_S):
            while not update.done():  # a refused one is never accepted
                updates = await _accepted_updates(quarantine)
                if updates[-1:] == [name]:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{name} was never accepted, only {updates}") from None
    await update


async def _accepted_updates(quarantine: Handle) -> list[str]:
    """The names of the updates in its history."""
    history = await quarantine.fetch_history()
    return [
        event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name
        for event in history.events
        if event.HasField("workflow_execution_update_accepted_event_attributes")
    ]
