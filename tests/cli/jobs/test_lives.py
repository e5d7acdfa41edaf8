"""A job's ID that was used several times: each command shows the earlier lives beside the newest one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from everstep.client.jobs.lives import LIVES_LISTED
from tests.cli.conftest import AsyncCli, ended, submitted, until
from tests.cli.standin import JOB, PHASE, document, record, working

ENDED = "WorkflowType = 'TrainingJob' AND ExecutionStatus != 'Running'"


@pytest.fixture
async def worker(client: Client) -> AsyncIterator[None]:
    async with working(client):
        yield


async def until_listed(client: Client, closed: int) -> None:
    """The server lists so many runs that are closed."""

    async def are_listed() -> bool:
        return (await client.count_workflows(ENDED)).count == closed

    await until(are_listed)


async def lived(served: AsyncCli, client: Client, *ends: str) -> None:
    """A job of the name `demo` that came to the first end, was submitted again, came to the next one..."""
    await ended(served, client, ends[0])
    for number, end in enumerate(ends[1:], 1):
        await until_listed(client, number)
        assert (await submitted(served, document(end=end), "--again")).code == 0
        if end:
            assert await client.get_workflow_handle("demo").result()
    await until_listed(client, sum(map(bool, ends)))


@pytest.mark.usefixtures("worker")
async def test_restarts_of_earlier_lives_come_first(served: AsyncCli, client: Client) -> None:
    await lived(served, client, "failed", "")
    rows = (await served("restarts", "demo", "--json")).json
    assert [(row["life"], row["n"]) for row in rows] == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert rows[0] == {**record(1), "life": 1}, "fields are added only"
    heading, *_ = (await served("restarts", "demo")).out.splitlines()
    assert heading.split()[:2] == ["LIFE", "N"]


@pytest.mark.usefixtures("worker")
async def test_a_job_with_one_life_is_shown_without_its_number(
    served: AsyncCli, client: Client
) -> None:
    await ended(served, client, "stopped")
    rows = (await served("restarts", "demo", "--json")).json
    assert [(row["life"], row["n"]) for row in rows] == [(1, 1), (1, 2)]
    assert "LIFE" not in (await served("restarts", "demo")).out
    assert "LIFE" not in (await served("events", "demo")).out
    assert "life" not in (await served("why", "demo")).out
    assert "submitted" not in (await served("status", "demo")).out


@pytest.mark.usefixtures("worker")
async def test_events_of_earlier_lives_come_first(served: AsyncCli, client: Client) -> None:
    await lived(served, client, "failed", "stopped")
    rows = (await served("events", "demo", "--json")).json
    assert [row["life"] for row in rows] == [1, 2]
    assert "LIFE" in (await served("events", "demo")).out
    (newest,) = (await served("events", "demo", "--offset", "1", "--json")).json
    assert newest["life"] == 2


@pytest.mark.usefixtures("worker")
async def test_a_restart_is_looked_for_in_the_newest_life_first(
    served: AsyncCli, client: Client
) -> None:
    await lived(served, client, "failed", "")
    newest = (await served("why", "demo", "--json")).json
    assert (newest["life"], newest["restart"]["n"]) == (2, 4)
    earlier = (await served("why", "demo", "1", "--json")).json
    assert (earlier["life"], earlier["restart"]["n"]) == (1, 1)
    assert (await served("why", "demo", "1")).out.startswith("life 1 of 2\n")
    chosen = (await served("why", "demo", "--life", "1", "--json")).json
    assert (chosen["life"], chosen["restart"]["n"]) == (1, 2)
    absent = await served("why", "demo", "3", "--life", "1")
    assert (absent.code, "demo has no restart 3 in life 1" in absent.sentence) == (3, True)
    absent = await served("why", "demo", "--life", "3")
    assert (absent.code, "demo has no life 3; it has 2" in absent.sentence) == (3, True)


@pytest.mark.usefixtures("worker")
async def test_restarts_that_no_life_keeps_are_listed_in_the_life_in_which_they_began(
    served: AsyncCli, client: Client
) -> None:
    async def old(n: int) -> None:
        row = await client.start_workflow(
            "Recovery",
            {"recover_result": "success", "generation_to": 9, "stages_s": {}, "resume_step": 20},
            id=f"demo/main/recovery-{n}-pod-node-n2",
            task_queue="everstep",
            memo={"record": record(n, result="recovering")},
            search_attributes=TypedSearchAttributes([SearchAttributePair(JOB, "demo")]),
        )
        await row.result()

    async def are_listed() -> bool:
        return (await client.count_workflows("WorkflowType = 'Recovery'")).count == 2

    assert (await submitted(served, document())).code == 0
    await old(7)
    await client.get_workflow_handle("demo").terminate(reason="by hand")
    await until_listed(client, 1)
    assert (await submitted(served, document(), "--again")).code == 0
    await old(8)
    await until(are_listed)
    rows = (await served("restarts", "demo", "--all", "--json")).json
    assert [(row["life"], row["n"]) for row in rows] == [(1, 7), (2, 3), (2, 4), (2, 8)]
    rows = (await served("restarts", "demo", "--json")).json
    assert [(row["life"], row["n"]) for row in rows] == [(1, 7), (2, 3), (2, 4)]


@pytest.mark.usefixtures("worker")
async def test_a_reset_stays_in_its_life(served: AsyncCli, client: Client) -> None:
    await ended(served, client, "failed")
    begun = await client.get_workflow_handle("demo").describe()
    request = ResetWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id="demo", run_id=begun.run_id),
        reason="to see it again",
        request_id="once",
        workflow_task_finish_event_id=3,
    )
    await client.workflow_service.reset_workflow_execution(request)
    await until_listed(client, 2)
    rows = (await served("restarts", "demo", "--json")).json
    assert [(row["life"], row["n"]) for row in rows] == [(1, 1), (1, 2)]


async def stopped(client: Client, count: int, **labels: str) -> None:
    """The job `demo`, started so often and stopped each time."""
    body = document(end="stopped")
    body["metadata"]["labels"] |= labels
    for _ in range(count):
        await client.execute_workflow("TrainingJob", body, id="demo", task_queue="everstep")


@pytest.mark.usefixtures("worker")
async def test_a_job_that_continues_as_a_new_run_stays_in_its_life(
    served: AsyncCli, client: Client
) -> None:
    await stopped(client, 2, runs="2")
    await until_listed(client, 4)
    rows = (await served("restarts", "demo", "--all", "--json")).json
    assert [(row["life"], row["n"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.usefixtures("worker")
async def test_the_newest_lives_are_listed(served: AsyncCli, client: Client) -> None:
    await stopped(client, LIVES_LISTED + 1)
    await until_listed(client, LIVES_LISTED + 1)
    lives = [row["life"] for row in (await served("events", "demo", "--json")).json]
    assert lives == list(range(1, LIVES_LISTED + 1))


@pytest.mark.usefixtures("worker")
async def test_the_report_has_what_became_of_each_life_and_the_steps_done_again(
    served: AsyncCli, client: Client
) -> None:
    assert (await submitted(served, document(end="stopped", steps="0-117"))).code == 0
    await until_listed(client, 1)
    assert (await submitted(served, document(), "--again")).code == 0
    handle = client.get_workflow_handle("demo")

    async def is_in_its_phase() -> bool:
        return (await handle.describe()).typed_search_attributes.get(PHASE) is not None

    await until(is_in_its_phase)
    await handle.terminate(reason="by hand")
    await until_listed(client, 2)
    last = document(end="stopped", steps="100-200")
    assert (await submitted(served, last, "--again")).code == 0
    await until_listed(client, 3)
    made = (await served("report", "demo", "--json")).json
    assert [
        (row["life"], row["state"], row["reason"], row["lost_steps"]) for row in made["lives"]
    ] == [
        (1, "stopped", "because", None),
        (2, "stopped", "terminated: by hand", None),
        (3, "stopped", "because", 0),
    ]
    assert {row["life"] for row in made["restarts"]} == {3}
    assert "2 lives of this ID came before, with 4 restarts" in made["summary"][-1]


@pytest.mark.usefixtures("worker")
async def test_the_report_of_all_jobs_has_every_life_that_ran_in_the_time(
    served: AsyncCli, client: Client
) -> None:
    await lived(served, client, "failed", "stopped", "stopped")
    await ended(served, client, "stopped", name="other")
    await until_listed(client, 4)
    made = (await served("report", "--since", "1h", "--json")).json
    rows = sorted((row["id"], row["life"], row["state"]) for row in made["jobs"])
    assert rows == [
        ("demo", 1, "failed"),
        ("demo", 2, "stopped"),
        ("demo", 3, "stopped"),
        ("other", 1, "stopped"),
    ]
    assert made["summary"][0].startswith("2 jobs ran in 4 lives")


@pytest.mark.usefixtures("worker")
async def test_status_says_how_often_a_job_was_submitted(served: AsyncCli, client: Client) -> None:
    await lived(served, client, "failed", "stopped", "stopped")
    assert (await served("status", "demo", "--json")).json["submissions"] == 3
    assert "submitted   3 times" in (await served("status", "demo")).out
