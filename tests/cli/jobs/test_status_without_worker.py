"""`everstep status` of a job whose worker is away: what the server has, and since when."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from temporalio.client import Client

from everstep.chronicle import shapes
from tests.cli.conftest import AsyncCli, submitted, until
from tests.cli.jobs.test_jobs import STATUS_KEYS
from tests.cli.standin import document, working


async def test_without_a_worker_status_shows_what_the_server_knows_and_how_old_it_is(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = datetime.now(UTC)
    async with working(client):
        await submitted(served, document())

        async def is_watched() -> bool:
            return bool((await served("status", "demo", "--json")).json["step"] == 57)

        await until(is_watched)
        answered = (await served("status", "demo", "--json")).json
        assert answered["silence"] is None
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")  # nobody is there to answer
    status = (await served("status", "demo", "--json")).json
    assert status.keys() >= STATUS_KEYS
    assert (status["state"], status["phase"], status["step"]) == ("running", "main", 57)
    assert (status["restarts"], status["pods"]) == (2, [])
    assert "no worker answered within 0.5 s" in status["silence"]
    assert began <= datetime.fromisoformat(status["as_of"]) <= datetime.now(UTC)
    page = (await served("status", "demo")).out
    assert re.search(
        r"^as of +\S+Z, \d+s ago: no worker answered within 0.5 s; ", page, re.MULTILINE
    )


async def test_a_job_that_no_worker_ever_took_up_is_pending_since_it_was_submitted(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")
    await submitted(served, document())
    begun = (await client.get_workflow_handle("demo").describe()).start_time
    status = (await served("status", "demo", "--json")).json
    assert (status["state"], status["step"]) == ("pending", None)
    assert status["as_of"] == shapes.moment(begun.timestamp())
