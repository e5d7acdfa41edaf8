"""What the quarantine is told: refused with a sentence where it makes no sense, never wedged by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from everstep.core import names
from tests.support.devserver import DevServer
from tests.support.scene import Scene, refusal, shared_scene, tell, unreadable
from tests.support.stage import Handle
from workflows.node_quarantine import Opening


@pytest.fixture(scope="module")
async def shared(
    server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    async with shared_scene(server, tmp_path_factory.mktemp("stage")) as scene:
        yield scene


@pytest.fixture
async def quarantine(shared: Scene) -> AsyncIterator[Handle]:
    await shared.new_cluster()
    opening = Opening(cluster="local")
    handle = await shared.stage.client.start_workflow(
        names.NODE_QUARANTINE,
        opening,
        id=names.quarantine_id("local"),
        task_queue=names.TASK_QUEUE,
    )
    yield handle
    await handle.terminate()


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
        said = await refusal(quarantine, name, *arguments)
        assert len(said) > 10
    await tell(quarantine, "isolate", node="n1", reason="it smokes", by="me")
    (node,) = await quarantine.query("nodes")
    assert (node["name"], node["state"], node["reason"]) == ("n1", "isolated", "it smokes")


async def test_a_node_isolated_until_a_time_is_released_then(
    shared: Scene, quarantine: Handle
) -> None:
    began = "2026-01-01T00:00:00Z"  # by the clock of the cluster
    await tell(quarantine, "isolate", node="n1", at=began, until="2026-01-01T00:10:00Z")
    early = await tell(quarantine, "expire", now=1767225600.0 + 599)
    late = await tell(quarantine, "expire", now=1767225600.0 + 600)
    assert (early["released"], late["released"]) == ([], ["n1"])
    assert await quarantine.query("nodes") == []
    assert [n.name for n in await shared.stage.fake.nodes() if n.isolated] == []
