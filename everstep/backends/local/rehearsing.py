"""A fault, done now, by whoever asks: a worker, the command line, a test."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from everstep.agent import wire
from everstep.agent.observing import checks
from everstep.agent_client.link import NoAnswer, Refused
from everstep.backends.local import clock
from everstep.backends.local.database import pods
from everstep.backends.local.database.placing import Moment
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.faults import LocalScene, happen, parse_fault
from everstep.backends.local.reconciling.agents import Folder
from everstep.backends.local.settings import LocalSettings

Ranks = dict[tuple[str, int], wire.RankSeen]


async def inflict(store: Store, settings: LocalSettings, line: str) -> None:
    """A ValueError says in one sentence how the line should read, or that there is no such thing."""
    fault = parse_fault(line)
    offset = await store.run(clock.anchor)
    uids = await store.run(_uids)
    ranks = await ranks_of_all(settings, uids)

    def work(db: Db) -> None:
        moment = Moment(db=db, settings=settings, now=clock.now(offset))
        happen(LocalScene(moment=moment, ranks=ranks), fault)

    await store.run(work)


def _uids(db: Db) -> list[str]:
    return [pod.uid for pod in pods.everybody(db) if not pod.is_leaving]


async def ranks_of_all(settings: LocalSettings, uids: list[str]) -> Ranks:
    """Every rank that lives, as its agent tells it now; of one that is silent nothing is known."""
    found = await asyncio.gather(*(_ranks_of(settings.folder(uid), uid) for uid in uids))
    return {key: rank for ranks in found for key, rank in ranks.items()}


async def _ranks_of(folder: Folder, uid: str) -> Ranks:
    try:
        said = await folder.ask("GET", f"{wire.STATE}?since=-1&wait_s=0")
    except (NoAnswer, Refused):
        return {}
    run: wire.RunSeen | None = said["run"]
    return {} if run is None else {(uid, rank["rank"]): rank for rank in run["ranks"]}


def refuse_slips(line: str) -> None:
    """A check that nobody makes is one, though it could be failed."""
    fault = parse_fault(line)
    if fault.name == "precheck" and fault.words[1] not in checks.NAMES:
        raise ValueError(f"{line!r} names no check; known are {', '.join(checks.NAMES)}")


async def rehearse(home: Path, line: str) -> None:
    """The same for who has no worker: the books of this state directory are opened and closed."""
    parse_fault(line)
    settings = LocalSettings(home=home)
    if not settings.database.exists():
        raise ValueError(f"there is no local cluster in {home}; `everstep dev` makes one")
    with closing(Store(settings.database)) as store:
        await inflict(store, settings, line)
