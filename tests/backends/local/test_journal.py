"""Who writes a journal on the local cluster: an agent of the job, and this machine where none answers."""

from __future__ import annotations

import asyncio
import fcntl
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.agent.storage import journal as storage
from everstep.agent.storage import reading
from everstep.backends.local.reconciling.liveness import agent_of
from everstep.chronicle.chronicle import Entry
from everstep.core.errors import BackendUnavailable
from everstep.protocol import wire
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.backends.verbs import NEVER_ENDS, entries
from tests.support.patience import HUNG_S
from tests.support.starving import stopped


@pytest.fixture
def job(local_lab: LocalLab) -> Run:
    return Run(local_lab, slots=(0, 1), env=NEVER_ENDS)


@pytest.fixture
def by_us(monkeypatch: pytest.MonkeyPatch) -> list[wire.JournalCommand]:
    """What is written by this process, and not by that of an agent."""
    written: list[wire.JournalCommand] = []
    write = storage.write

    def record_and_write(command: wire.JournalCommand) -> None:
        written.append(command)
        write(command)

    monkeypatch.setattr(storage, "write", record_and_write)
    return written


async def agents(job: Run) -> list[int]:
    """Their processes, in the order of the slots."""
    assert isinstance(job.lab, LocalLab)
    home = job.lab.backend.settings.agents
    agents = [agent_of(home / pod.uid) for pod in (await job.observe_now()).pods]
    return [agent.pid for agent in agents if agent is not None]


async def until_ordered_to_end(job: Run) -> None:
    """Every agent reports that its ranks are being ended, so it has answered that request."""
    assert isinstance(job.lab, LocalLab)
    watched = job.lab.backend.agents.by_uid
    async with asyncio.timeout(HUNG_S):
        while not all(
            one.state and one.state["run"] and one.state["run"]["stopped"]
            for one in watched.values()
        ):
            await job.observe(wait_s=0.1)


async def recorded_at_last(job: Run, entries: tuple[Entry, ...]) -> None:
    """The write under way has to end first."""
    async with asyncio.timeout(HUNG_S):
        while True:
            with suppress(BackendUnavailable):
                return await job.backend.ensure_recorded(job.ref, entries)


async def test_while_an_agent_lives_this_process_opens_no_file(
    job: Run, by_us: list[wire.JournalCommand]
) -> None:
    await job.launch()
    await job.backend.ensure_recorded(job.ref, entries(job, 1, 2))
    assert await job.lab.recorded(job.id) == ["line 1", "line 2"]
    assert by_us == []


async def test_where_one_agent_is_stopped_another_one_writes(
    job: Run, by_us: list[wire.JournalCommand]
) -> None:
    await job.launch()
    first, _ = await agents(job)
    with stopped(first):
        await job.backend.ensure_recorded(job.ref, entries(job, 1))
    await job.backend.ensure_recorded(job.ref, entries(job, 1, 2))
    assert await job.lab.recorded(job.id) == ["line 1", "line 2"]
    assert by_us == []


async def test_where_no_agent_answers_this_machine_writes_and_who_wakes_up_adds_nothing(
    job: Run, by_us: list[wire.JournalCommand]
) -> None:
    await job.launch()
    with stopped(*await agents(job)):
        await job.backend.ensure_recorded(job.ref, entries(job, 1, 2))
    assert len(by_us) == 1
    await job.backend.ensure_recorded(job.ref, entries(job, 1, 2, 3))
    await job.gone()
    await job.backend.ensure_recorded(job.ref, entries(job, 3, 4))
    assert await job.lab.recorded(job.id) == [f"line {n}" for n in (1, 2, 3, 4)]


async def test_an_agent_on_its_way_out_still_writes(
    local_lab: LocalLab, job: Run, by_us: list[wire.JournalCommand]
) -> None:
    local_lab.command = ("/bin/sh", "-c", "trap '' TERM; echo step 1; exec sleep 1000")
    await job.launch()
    await job.step(1)  # from here on its ranks do not end when they are asked to
    assert not (await job.backend.ensure_gone(job.ref, grace_s=HUNG_S)).done
    await until_ordered_to_end(job)
    await job.backend.ensure_recorded(job.ref, entries(job, 1))
    assert await job.lab.recorded(job.id) == ["line 1"]
    assert by_us == []


@pytest.mark.long
async def test_an_agent_that_does_not_know_us_is_one_that_does_not_answer(
    job: Run, by_us: list[wire.JournalCommand]
) -> None:
    """Only this one has an agent of another token."""
    await job.launch()
    assert isinstance(job.lab, LocalLab)
    for pod in (await job.observe_now()).pods:
        (job.lab.backend.settings.agents / pod.uid / wire.TOKEN).write_text("of others")
    await job.lab.another_worker()
    await job.backend.ensure_recorded(job.ref, entries(job, 1))
    assert len(by_us) == 1
    assert await job.lab.recorded(job.id) == ["line 1"]


@pytest.mark.long
async def test_a_journal_that_hangs_holds_up_no_restart_and_is_written_later(
    job: Run, by_us: list[wire.JournalCommand]
) -> None:
    """Only this one has a real agent whose write hangs."""
    await job.launch()
    await job.backend.ensure_recorded(job.ref, entries(job, 1))
    (folder,) = Path(job.model_dir).glob("*_restartable")
    with (folder / storage.LOCK).open() as held:  # as by a writer that was stopped half way
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(reading.MOST + 1):
            with pytest.raises(BackendUnavailable, match="does not answer"):
                await job.backend.ensure_recorded(job.ref, entries(job, 1, 2))
        await job.again("crash")
    await recorded_at_last(job, entries(job, 1, 2, 3))
    assert await job.lab.recorded(job.id) == ["line 1", "line 2", "line 3"]
    assert by_us == []


async def test_a_worker_that_is_gone_half_way_is_followed_by_one_that_writes_the_rest(
    job: Run, by_us: list[wire.JournalCommand]
) -> None:
    await job.launch()
    await job.backend.ensure_recorded(job.ref, entries(job, 1))
    assert isinstance(job.lab, LocalLab)
    await job.lab.another_worker()
    await job.backend.ensure_recorded(job.ref, entries(job, 1, 2))
    assert await job.lab.recorded(job.id) == ["line 1", "line 2"]
    assert by_us == []
