"""Spare pods: what a record says of one that was taken, and which ones a watch keeps standing by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.backends.fake.settings import FakeSettings
from everstep.chronicle import record_rows
from everstep.core.loop.next_actions import watch_order
from everstep.core.recovering.spares import spares_order
from everstep.core.state import JobState, Mode
from everstep.dialects import responses
from tests.steps.test_waits import played
from tests.support.builders import running


def job(spares: int = 2, **changes: Any) -> JobState:
    """A job of two slots that runs, and whose document wants so many spares."""
    return replace(running(nodes=2, spares=spares).state, **changes)


async def test_a_record_says_how_many_seconds_the_spare_saved() -> None:
    driver = await played("spare_taken")
    (record,) = responses.restarts(driver.simulation.chronicle)
    assert record["spares"] == {"slots": [2], "saved_s": FakeSettings().pod_s}
    sentence = "spare    slot 2 got a pod that stood by: it had taken 2 s to stand up"
    assert sentence in record_rows.story(record)


async def test_a_record_of_a_restart_with_new_pods_has_no_spare() -> None:
    (record,) = responses.restarts((await played("node_lost")).simulation.chronicle)
    assert record["spares"] is None
    assert "spare " not in record_rows.story(record)


def test_several_spares_saved_what_the_slowest_of_them_took() -> None:
    row = record_rows.spares({3: 1.25, 1: 2.5})
    assert row == {"slots": [1, 3], "saved_s": 2.5}
    assert "slots 1,3 got pods that stood by: the slowest had taken 2.5 s" in (
        record_rows.spares_in_words({"spares": row})
    )


def test_a_watch_keeps_as_many_spares_as_the_document_wants() -> None:
    order = watch_order(job()).spares
    assert order is not None
    assert (order.places.slots, order.places.recreate) == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    "changes", [{"mode": Mode.PAUSED}, {"slots": {0: job().slots[0]}}], ids=["paused", "smaller"]
)
def test_a_job_that_gives_places_back_or_lacks_one_keeps_no_spare(changes: dict[str, Any]) -> None:
    order = spares_order(job(**changes))
    assert order is not None, "those that are there have to go"
    assert order.places.recreate == ()


def test_a_job_without_spares_pays_nothing_for_them() -> None:
    assert spares_order(job(spares=0)) is None
