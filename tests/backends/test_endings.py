"""Ends of ranks that no agent reported: anything written in that time may be cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.agent.storage import checkpoints
from everstep.agent.storage.checkpoint_formats import Item
from everstep.backends.agents import endings
from everstep.backends.agents.job_record import JobRecord

WALL_NOW, NOW = 1_700_000_000.0, 500.0


def is_covered(record: JobRecord, age_s: float) -> bool:
    """Whether a file that was changed so long ago counts as cut off."""
    item = Item(Path("step-1"), 1, WALL_NOW - age_s)
    return checkpoints._is_cut_off(item, [float(at) for at in record.endings])


@pytest.mark.parametrize("passed_s", [0.2, 1.0, 7.5, 35.0])
def test_all_of_the_time_in_which_ranks_ended_unseen_is_covered(passed_s: float) -> None:
    began = NOW - passed_s
    record = endings.between(JobRecord(id="demo"), began, NOW, now=NOW, wall_now=WALL_NOW)
    ages = [passed_s * share / 100 for share in range(101)]
    assert [age for age in ages if not is_covered(record, age)] == []
    assert not is_covered(record, passed_s + 5.0)
    assert not is_covered(record, -5.0)


def test_a_worker_that_comes_an_hour_later_notes_no_more_than_the_time_in_which_they_ended() -> (
    None
):
    began = NOW - 3600.0
    record = endings.between(JobRecord(id="demo"), began, began + 35.0, now=NOW, wall_now=WALL_NOW)
    assert len(record.endings) <= 14
    assert is_covered(record, 3600.0)
    assert is_covered(record, 3565.0)
    assert not is_covered(record, 3500.0)
