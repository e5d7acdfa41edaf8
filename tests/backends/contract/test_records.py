"""Lines that are to be recorded once. Held against every backend."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from everstep.core.errors import BackendUnavailable, WrongCluster
from tests.backends.lab import Run
from tests.backends.verbs import entries


async def test_what_is_recorded_is_there_once_however_often_and_late_it_comes(job: Run) -> None:
    await job.launch()
    await job.backend.ensure_recorded(job.ref, entries(job, 1, 2))
    await asyncio.gather(
        *(job.backend.ensure_recorded(job.ref, entries(job, 1, 2, 3)) for _ in range(3))
    )
    await job.gone()
    await job.backend.ensure_recorded(job.ref, entries(job, 2, 3, 4))
    assert await job.lab.recorded(job.id) == ["line 1", "line 2", "line 3", "line 4"]


async def test_what_is_recorded_is_there_once_whichever_pods_live(job: Run) -> None:
    await job.backend.ensure_recorded(job.ref, entries(job, 1))
    await job.launch()
    await job.backend.ensure_recorded(job.ref, entries(job, 1, 2))
    await job.lab.fault("node-down n0")
    await job.backend.ensure_recorded(job.ref, entries(job, 2, 3))
    await job.lab.fault("node-down n1 partition")
    await job.backend.ensure_recorded(job.ref, entries(job, 3, 4))
    assert await job.lab.recorded(job.id) == ["line 1", "line 2", "line 3", "line 4"]


async def test_a_storage_that_takes_no_records_is_said_to_be_unavailable(job: Run) -> None:
    await job.launch()
    await job.lab.fault("storage demo")
    with pytest.raises(BackendUnavailable):
        await job.backend.ensure_recorded(job.ref, entries(job, 1))
    await job.lab.fault("storage demo writable")
    await job.backend.ensure_recorded(job.ref, entries(job, 1))
    assert await job.lab.recorded(job.id) == ["line 1"]


async def test_records_of_a_job_of_other_books_are_refused(job: Run) -> None:
    await job.launch()
    with pytest.raises(WrongCluster):
        await job.backend.ensure_recorded(replace(job.ref, books="others"), entries(job, 1))
    assert await job.lab.recorded(job.id) == []
