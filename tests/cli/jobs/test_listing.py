"""`everstep list`: a row for each job, and which of them are shown."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client

from everstep.cli import pages
from everstep.cli.jobs import listing
from tests.cli.conftest import AsyncCli, Cli, ended, submitted, until
from tests.cli.standin import document, working


async def test_list_shows_one_row_per_id(served: AsyncCli, client: Client) -> None:
    async with working(client):
        await ended(served, client, "failed")
        await submitted(served, document(), "--again")
        await ended(served, client, "stopped", name="second")

    async def are_listed() -> bool:
        jobs = (await served("list", "--json")).json
        return [job["state"] for job in jobs] == ["stopped", "running"]

    await until(are_listed)
    jobs = (await served("list", "--json")).json
    assert [job.keys() for job in jobs] == [
        {
            "id",
            "state",
            "phase",
            "step",
            "restarts",
            "reschedules",
            "labels",
            "started_at",
            "age_s",
        }
    ] * 2
    assert [(j["id"], j["phase"], j["restarts"]) for j in jobs] == [
        ("second", "main", 2),
        ("demo", "main", 2),
    ]
    assert "second" in (await served("list")).out


async def test_an_id_of_another_client_does_not_push_the_list_off_the_page(
    served: AsyncCli, client: Client
) -> None:
    odd = "a\tb" + "c" * 900
    await client.start_workflow("TrainingJob", document(), id=odd, task_queue="everstep")

    async def is_listed() -> bool:
        return [job["id"] for job in (await served("list", "--json")).json] == [odd]

    await until(is_listed)
    heading, row = (await served("list")).out.splitlines()
    name, *cells = row.split("  ", 1)
    assert name == "a b" + "c" * 60 + "…"
    assert heading.split() == ["ID", "STATE", "PHASE", "STEP", "RESTARTS", "AGE", "LABELS"]
    assert cells[0].split()[:4] == ["pending", "-", "-", "0"]


async def test_the_step_of_a_row_that_is_older_than_the_job_is_not_shown(client: Client) -> None:
    """The list lags behind, and its step may be of a generation before: the job itself names none now."""
    await client.start_workflow("TrainingJob", document(), id="demo", task_queue="everstep")
    row = {"id": "demo", "state": "running", "step": 65}
    assert await listing._with_newest_steps(client, [row]) == [{**row, "step": None}]


async def test_an_empty_list_says_how_to_fill_it(served: AsyncCli) -> None:
    assert "everstep submit" in (await served("list")).out
    assert (await served("list", "--json")).json == []


def labelled(name: str, **labels: str) -> dict[str, Any]:
    body = document(name)
    body["metadata"]["labels"] = labels
    return body


async def test_jobs_are_chosen_by_state_and_label_and_counted(
    served: AsyncCli, client: Client
) -> None:
    async def ids(*options: str) -> list[str]:
        return [job["id"] for job in (await served("list", "--json", *options)).json]

    async with working(client):
        await ended(served, client, "failed", name="done")
        await submitted(served, labelled("nlp", team="nlp", size="big"))
        await submitted(served, labelled("vision", team="vision"))

        async def are_listed() -> bool:
            return await ids("--state", "running", "--state", "failed") == ["vision", "nlp", "done"]

        await until(are_listed)
        assert await ids("--state", "running") == ["vision", "nlp"]
        assert await ids("--state", "paused") == []
        assert await ids("--limit", "2") == ["vision", "nlp"]
        assert await ids("--label", "team=nlp") == ["nlp"]
        assert await ids("--label", "team") == ["vision", "nlp"]
        assert await ids("--label", "team", "--label", "size=big", "--state", "running") == ["nlp"]
        assert "no job like that" in (await served("list", "--label", "team=x")).out
        assert "1 more; --limit" in (await served("list", "--limit", "2")).out
        page = (await served("list", "--label", "team=nlp")).out
        assert "size=big,team=nlp" in page.replace(" ", "")


async def test_of_a_job_that_runs_the_newest_step_is_shown(
    served: AsyncCli, client: Client
) -> None:
    """Its search attribute is as old as its last incident; its watch is newer."""
    async with working(client):
        await submitted(served, document())

        async def is_live() -> bool:
            return [job["step"] for job in (await served("list", "--json")).json] == [57]

        await until(is_live)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--state", "walking"), "--state"),
        (("--label", "=x"), "--label =x: write KEY=VALUE, or KEY"),
        (("--limit", "0"), "--limit"),
    ],
)
def test_what_cannot_be_chosen_by_is_one_sentence(
    cli: Cli, words: tuple[str, ...], sentence: str
) -> None:
    end = cli("list", *words)
    assert end.code == 2
    assert sentence in end.sentence


@pytest.mark.parametrize(
    ("passed_s", "age"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (7199, "119m"),
        (7200, "2h"),
        (47 * 3600, "47h"),
        (172800, "2d"),
    ],
)
def test_an_age_is_as_short_as_it_may_be(passed_s: float, age: str) -> None:
    assert pages.age(passed_s) == age
