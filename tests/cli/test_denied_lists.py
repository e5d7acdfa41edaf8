"""Commands for one job or node of a user who has no right to list workflows, or whose list is old."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep.cli.cluster import nodes
from tests.cli.conftest import AsyncCli, ended
from tests.cli.standin import working


@pytest.fixture
async def worker(client: Client) -> AsyncIterator[None]:
    async with working(client):
        yield


def deny_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_args: object, **_options: object) -> None:
        raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")

    monkeypatch.setattr(Client, "list_workflows", refused)


@pytest.mark.usefixtures("worker")
async def test_the_newest_life_is_shown_and_a_note_says_that_earlier_ones_are_not(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended(served, client, "failed")
    deny_lists(monkeypatch)
    for command in ("restarts", "events", "why"):
        answer = await served(command, "demo")
        assert answer.code == 0, command
        assert "earlier lives of this ID are not shown: the server denies it" in answer.err
    assert (await served("status", "demo", "--json")).json["submissions"] is None


async def test_nodes_are_shown_without_the_jobs_that_avoid_them(
    served: AsyncCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny_lists(monkeypatch)
    answer = await served("nodes")
    assert answer.code == 0
    assert "which nodes are avoided by jobs is not known: the server denies it" in answer.err


async def test_a_job_that_ended_since_it_was_listed_avoids_no_node(
    served: AsyncCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed_before(*_args: object) -> list[dict[str, str]]:
        return [{"job": "gone", "node": "n2"}]

    monkeypatch.setattr(nodes, "avoidances_known", listed_before)
    answer = await served("release", "n2")
    assert (answer.code, "no job avoids it" in answer.sentence) == (3, True)
