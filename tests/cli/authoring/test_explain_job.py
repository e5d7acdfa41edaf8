"""`everstep explain --job`: what the next fault of a running job leads to, after all that was counted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import Client

from everstep.cli.authoring.explain import explained, explained_now
from everstep.cli.output import Page
from everstep.cli.pages import explanation
from everstep.core.levels import FaultClass
from everstep.dialects.modelarts.policy import modelarts
from tests.cli.conftest import AsyncCli, ended
from tests.cli.standin import working
from tests.support.builders import ScriptedJob, running, sighting

POLICY = modelarts(job_retry=2, pod_retry=1, unconditional=True, hang_retry=True)


def ladder(value: dict[str, Any], cls: str) -> list[str]:
    (phase,) = value["phases"]
    (row,) = [row for row in phase["faults"] if row["class"] == cls]
    return [rung["level"] for rung in row["ladder"]]


def after(*classes: FaultClass) -> ScriptedJob:
    job = running(POLICY)
    for n, cls in enumerate(classes):
        job.see(sighting(cls, node=f"n{n % 4}"))
        job.succeeds()
    return job


def test_a_job_that_met_no_fault_is_explained_like_its_document() -> None:
    job = running(POLICY)
    now, of_document = explained_now(job.state), explained(job.state.spec)
    assert [ladder(now, cls) for cls in FaultClass] == [
        ladder(of_document, cls) for cls in FaultClass
    ]


def test_a_budget_that_is_used_up_is_passed_over_the_next_time() -> None:
    assert ladder(explained_now(running(POLICY).state), "node") == ["pod", "job", "fail"]
    assert ladder(explained_now(after(FaultClass.NODE).state), "node") == ["job", "fail"]


def test_the_last_of_a_series_is_the_next_fault_that_ends_the_job() -> None:
    hangs = [FaultClass.HANG] * 3
    assert ladder(explained_now(after(*hangs[:2]).state), "hang") == ["suspension", "fail"]
    assert ladder(explained_now(after(*hangs).state), "hang") == ["fail"]


def test_a_job_in_the_middle_of_a_restart_is_asked_about_the_one_after_it() -> None:
    job = running(POLICY)
    job.see(sighting(FaultClass.CRASH))
    assert ladder(explained_now(job.state), "crash")


def test_the_page_says_what_was_counted() -> None:
    page: Page = explanation(explained_now(after(FaultClass.NODE).state))
    text = "\n".join(str(part) for part in page)
    assert "as of now; restarts so far: 1" in text
    assert "budget pod: 1 used, of 1" in text


@pytest.mark.parametrize(
    "words", [("explain", "job.yaml", "--job", "demo"), ("explain", "--job", "demo", "--code", "C")]
)
async def test_a_job_is_explained_by_itself(served: AsyncCli, words: tuple[str, ...]) -> None:
    assert "--job stands alone" in (await served(*words)).sentence


async def test_nothing_follows_in_a_job_that_has_ended(served: AsyncCli, client: Client) -> None:
    async with working(client):
        await ended(served, client, "failed")
        end = await served("explain", "--job", "demo")
    assert end.code == 2
    assert "nothing follows a fault any more" in end.sentence


def test_what_is_printed_for_programs_is_json() -> None:
    json.dumps(explained_now(after(FaultClass.NODE).state))


def test_a_level_that_a_job_cannot_have_yet_is_named_with_what_is_missing() -> None:
    state = replace(running(nodes=2).state, can=("pause", "rebuild"))
    value = explained_now(state)
    assert value["levels"][:3] == ["process_online", "process", "in_place"]
    assert value["levels_with_library"] == ["operator_online"]
    assert "operator_online: not every rank declares guard" in value["levels_missing"]
    page: Page = explanation(value)
    assert "       not operator_online: not every rank declares guard" in [
        str(part) for part in page
    ]
