"""Server and worker of a run are child processes: each run ends its own, however many one process has."""

from __future__ import annotations

import asyncio
from pathlib import Path

from everstep.processes import Process, ended_with_block


def is_running(process: Process) -> bool:
    return process.is_alive


async def test_of_two_runs_at_once_each_ends_only_its_own_processes(tmp_path: Path) -> None:
    is_begun, is_over = asyncio.Event(), asyncio.Event()

    def sleeper(name: str) -> Process:
        return Process(["sleep", "600"], name=name, log=tmp_path / name)

    async def longer() -> None:
        with ended_with_block():
            process = sleeper("longer")
            is_begun.set()
            await is_over.wait()
            assert is_running(process)
        assert not is_running(process)

    async def shorter() -> None:
        await is_begun.wait()
        with ended_with_block():
            # As a server is kept alive: by a task of the run.
            process = await asyncio.create_task(asyncio.to_thread(sleeper, "shorter"))
            assert is_running(process)
        assert not is_running(process)
        is_over.set()

    await asyncio.gather(longer(), shorter())
