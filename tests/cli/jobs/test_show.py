"""`everstep show`: the document that a job follows, and who changed it."""

from __future__ import annotations

import json

from temporalio.client import Client

from everstep.chronicle.shapes import moment
from tests.cli.conftest import AsyncCli, ended, submitted
from tests.cli.standin import CHANGE, document, working


async def test_it_prints_the_document_in_force_and_its_changes(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        await submitted(served, document())
        page = (await served("show", "demo")).out.splitlines()
        value = json.loads((await served("show", "demo", "--json")).out)
        await client.get_workflow_handle("demo").terminate()
    assert page[:3] == ["spec:", "  nodes: 4", ""]
    assert page[-1].split() == [
        *("2026-01-31", "12:00:07Z", "ada@node"),
        *("a", "restart", "for", "it", "limits.hang_s=600"),
    ]
    assert value["changes"][0]["by"] == "ada@node"


async def test_of_a_job_that_has_ended_it_prints_what_it_began_with_and_what_changed(
    served: AsyncCli, client: Client
) -> None:
    """Only the job itself has the document in force, and it is gone."""
    async with working(client):
        await ended(served, client, "completed")
    value = json.loads((await served("show", "demo", "--json")).out)
    assert value["document"]["metadata"]["name"] == "demo"
    begun = (await client.get_workflow_handle("demo").describe()).start_time
    assert value["as_of"] == moment(begun.timestamp())
    assert value["changes"] == [CHANGE]
    page = (await served("show", "demo")).out.splitlines()
    assert f"# as of {value['as_of']}; later changes are not in it" in page
    assert page[-1].split()[2:] == ["ada@node", "a", "restart", "for", "it", "limits.hang_s=600"]
