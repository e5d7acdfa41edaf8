"""What ended pods left behind, and taking it away: their logs, stacks, times. Nothing of a job's own.

A pod has ended when that is proven: the books have let go of it, its token is removed, without which no agent
begins in its folder, and its agent and all that it started are gone. If any of this is unknown, all its files
stay.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from everstep.agent.storage import files, permissions
from everstep.backends.local.database import pods
from everstep.backends.local.database.store import Store
from everstep.backends.local.logs import ABOUT
from everstep.backends.local.reconciling.agents import AgentFolder
from everstep.backends.local.reconciling.liveness import Life, of_processes
from everstep.backends.local.settings import LocalSettings
from everstep.backends.tools import LeftFiles
from everstep.protocol import wire

NOT_KNOWN = "not known whether it has ended"
TAKEN_AWAY = "pruned"
"""A folder is moved here before it is removed: a half-removed one is then never taken for a pod's."""


async def prune(home: Path, *, before: float, is_dry_run: bool) -> list[LeftFiles]:
    """Every folder of a pod: those that stay say why, the others are gone, or would be."""
    settings = LocalSettings(home=home)
    if not settings.agents.is_dir():
        return []
    with closing(Store(settings.database)) as store:
        uids = await store.run(pods.uids)
    if not is_dry_run:
        shutil.rmtree(home / TAKEN_AWAY, ignore_errors=True)  # of one that was killed half-way
    return [
        _pruned(settings, path.name, uids, before=before, is_dry_run=is_dry_run)
        for path in sorted(settings.agents.iterdir())
        if path.is_dir()
    ]


def _pruned(
    settings: LocalSettings, uid: str, uids: Collection[str], *, before: float, is_dry_run: bool
) -> LeftFiles:
    folder = settings.folder(uid)
    life = folder.life()
    with _locked(folder) as is_shut:
        if life is Life.GONE and not is_shut:  # an agent may begin there meanwhile
            life = Life.UNKNOWN
        why = _alive(folder, uids, life)
        left = _check(folder, why=why, before=before)
        if left.kept_because is None and not is_dry_run:
            away = settings.home / TAKEN_AWAY
            permissions.folder(away)
            folder.path.rename(away / uid)
            shutil.rmtree(away / uid, ignore_errors=True)
    return left


@contextmanager
def _locked(folder: AgentFolder) -> Iterator[bool]:
    """Whether its lock is ours while inside, so that no agent begins there."""
    try:
        handle = os.open(folder.path / wire.LOCK, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(handle)


def _alive(folder: AgentFolder, uids: Collection[str], life: Life) -> str | None:
    """Why it may be that it lives, None once it is proven that it does not."""
    if folder.path.name in uids:
        return "the cluster still has this pod"
    if life is Life.ALIVE:
        return "its agent lives"
    if life is Life.UNKNOWN or (folder.path / wire.TOKEN).exists():
        return NOT_KNOWN
    return {Life.ALIVE: "processes of it live", Life.UNKNOWN: NOT_KNOWN, Life.GONE: None}[
        of_processes(folder.path)
    ]


def _check(folder: AgentFolder, *, why: str | None, before: float) -> LeftFiles:
    about: dict[str, object] = {}
    with suppress(OSError, ValueError):
        about = files.read_json(folder.path / ABOUT)
    size, written_at = 0, 0.0
    for path in folder.path.rglob("*"):
        with suppress(OSError):
            status = path.lstat()
            size += status.st_size
            written_at = max(written_at, status.st_mtime)
    slot = about.get("slot")
    return LeftFiles(
        uid=folder.path.name,
        job=str(about["job"]) if "job" in about else None,
        slot=slot if isinstance(slot, int) else None,
        size=size,
        written_at=written_at,
        kept_because=why or ("written lately" if written_at >= before else None),
    )
