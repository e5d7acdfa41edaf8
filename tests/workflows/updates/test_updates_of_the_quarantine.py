"""Updates of the quarantine: refused with a sentence where they make no sense, never wedging it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateStage
from temporalio.common import RetryPolicy

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.gates import Side
from everstep.backends.fake.settings import FakeSettings
from everstep.core import names
from everstep.core.errors import ClusterRefused
from everstep.core.recovering.quarantine import Quarantine
from tests.support.at_work import actor, at_work, thinker
from tests.support.patience import HUNG_S
from tests.support.scene import Scene, refusal, tell, unreadable
from tests.support.stage import Handle
from workflows import options
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

FAULT = {"node": "bad name!", "device": 0, "code": "a", "at": 1, "times": 3, "window_s": 60}
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
    ("isolate", [{"node": "bad name!"}]),
    ("release", [{"node": "bad name!"}]),
    ("note_faults", [{"faults": [FAULT]}]),
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
    other = await quarantine.start_update(
        then[0], then[1], wait_for_stage=WorkflowUpdateStage.ACCEPTED
    )
    await shared.admin.release()
    await asyncio.gather(one, other.result())
    book = {node["name"] for node in await quarantine.query("nodes")}
    marks = {node.name for node in await shared.stage.fake.nodes() if node.isolated}
    assert book == marks == ({"n1"} if is_isolated else set())


async def test_an_isolation_that_the_cluster_refuses_is_over_and_its_sender_reads_why(
    client: Client,
) -> None:
    quarantine = await client.start_workflow(
        names.NODE_QUARANTINE,
        {"cluster": "local"},
        id=names.quarantine_id("local"),
        task_queue=names.TASK_QUEUE,
    )
    async with at_work(thinker(client), actor(client, Full(FakeSettings(nodes=2)))):
        why = await refusal(quarantine, "isolate", {"node": "n1"})
        assert why == "CommandRejected: the cluster has no room for n1"
        await quarantine.signal("isolate", {"node": "n0"})
        assert await tell(quarantine, "expire", now=LATE) == {"released": []}
        async with asyncio.timeout(HUNG_S):
            while await quarantine.query("nodes"):
                await asyncio.sleep(0.05)
    await quarantine.terminate()


class Full(FakeBackend):
    """A cluster that can store no isolation."""

    async def ensure_isolated(self, node: str, *, reason: str) -> None:  # noqa: ARG002
        raise ClusterRefused(f"the cluster has no room for {node}")


async def test_a_release_ends_the_tries_to_isolate(
    shared: Scene, quarantine: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_attempts=2)
    for name in ("FIRST_SETTLING", "LATER_SETTLING"):
        monkeypatch.setattr(options, name, {**options.FIRST_SETTLING, "retry_policy": soon})
    await shared.admin.unavailable()
    isolating = asyncio.create_task(tell(quarantine, "isolate", node="n1"))
    async with asyncio.timeout(HUNG_S):
        while not [row for row in await quarantine.query("nodes") if row["failing"]]:
            await asyncio.sleep(0.05)
    (row,) = await quarantine.query("nodes")
    assert row["failing"] == "the fake cluster was made unavailable"
    assert await tell(quarantine, "release", node="n1") == {"released": True, "node": "n1"}
    assert await quarantine.query("nodes") == []
    await shared.admin.unavailable(on=False)
    await isolating
    assert [node.name for node in await shared.stage.fake.nodes() if node.isolated] == []
