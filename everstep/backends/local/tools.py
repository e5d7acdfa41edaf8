"""The local cluster for its operators: its books and folders, without a worker.

Each method imports what it alone needs: `run` only reads logs, and the books cost it as much as a
quarter of its own imports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from everstep.backends.local import logs
from everstep.backends.tools import (
    Examined,
    LeftFiles,
    LogLine,
    LogReader,
    RankLog,
    SilentAgent,
    Tools,
)
from everstep.core.world import NodeView


class LocalTools(Tools):
    """The tools of the cluster in this state directory."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def fault_usages(self) -> Mapping[str, str]:
        from everstep.backends.local import faults

        return {name: usage for name, (usage, _) in faults.FAULTS.items()}

    async def fault(self, line: str) -> None:
        from everstep.backends.local import faults

        faults.refuse_slips(line)
        await faults.rehearse(self.home, line)

    async def nodes(self) -> tuple[NodeView, ...]:
        from everstep.backends.local import clock
        from everstep.backends.local.database import nodes
        from everstep.backends.local.database.store import Store
        from everstep.backends.local.settings import LocalSettings

        settings = LocalSettings(home=self.home)
        if not settings.database.exists():
            return ()
        with closing(Store(settings.database)) as store:
            offset = await store.run(clock.anchor)
            return await store.run(lambda db: nodes.views(db, settings, clock.now(offset)))

    async def ensure_nodes(self, count: int, *, devices: int) -> None:
        from everstep.backends.local.database import nodes
        from everstep.backends.local.database.store import Store
        from everstep.backends.local.settings import LocalSettings

        settings = LocalSettings(home=self.home, nodes=count, devices=devices)
        with closing(Store(settings.database)) as store:
            await store.run(lambda db: nodes.set_up(db, settings))

    async def silent_agents(self) -> tuple[SilentAgent, ...]:
        from everstep.backends.local import examining

        return await examining.silent(self.home)

    async def examine(self) -> Examined:
        from everstep.backends.local import examining

        return await asyncio.to_thread(examining.examine, self.home)

    async def prune(self, *, before: float, is_dry_run: bool) -> list[LeftFiles]:
        from everstep.backends.local import pruning

        return await pruning.prune(self.home, before=before, is_dry_run=is_dry_run)

    async def logs(self, job: str) -> list[RankLog]:
        return logs.of_job(self.home / "agents", job)

    def no_logs(self, beginning: str) -> str:
        return f"{beginning} in {self.home}"

    def read(self, log: RankLog) -> LogReader:
        return logs.LocalLogReader(log)

    async def read_end(self, log: RankLog, count: int) -> tuple[list[LogLine], LogReader]:
        return await logs.last(log, count)

    async def clear(self) -> None:
        from everstep.backends.local import clearing

        await asyncio.to_thread(clearing.end_all, self.home)
