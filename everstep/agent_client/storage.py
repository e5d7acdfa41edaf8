"""The storage of a job, as its agents see it: its fence, its checkpoints, the journal beside its model.

Everything here is asked of an agent, which sees the storage that the ranks see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any

from everstep.agent import wire
from everstep.agent_client import views
from everstep.agent_client.link import ASK_S
from everstep.agent_client.watch import Agents
from everstep.chronicle.chronicle import Entry
from everstep.chronicle.shapes import moment
from everstep.core.errors import FolderTaken
from everstep.core.world import Checkpoint, FenceOrder, SetAside, SetAsideOrder
from everstep.documents.text import to_yaml

TIMES = frozenset({"start_time", "end_time"})
"""What of a row of summary.json is a time."""

# -- The fence ------------------------------------------------------------------------------------


def fence_folders(order: FenceOrder) -> dict[str, str]:
    """Those of the order, each with the field of the document that names it."""
    named = ((order.model_dir, "model_dir"), (order.checkpoints_path, "checkpoints.path"))
    return {folder: field for folder, field in named if folder is not None}


async def write_fence(
    agents: Agents,
    uid: str,
    order: FenceOrder,
    *,
    cluster: str,
    left: Collection[str],
    earlier: Collection[str] = (),
) -> wire.FenceAnswer:
    """What the agent says of it. `left`: where earlier generations may still write; it is outdated there.

    `earlier`: clusters that had the job before it was adopted; their generations are outdated everywhere.

    Raises NoAnswer or Refused, and FolderTaken if a folder is that of another job which has not ended.
    """
    named = fence_folders(order)
    body: wire.FenceCommand = {
        "generation": order.generation,
        "run": order.job.run,
        "cluster": cluster,
        "folders": list(named),
        "left": [folder for folder in left if folder not in named],
        "earlier": [*earlier],
        "workdir": order.workdir,
        "begins": _begins(order),
    }
    said = await agents.ask(uid, "POST", wire.FENCE, body, within_s=wire.STORAGE_S + ASK_S)
    answer: wire.FenceAnswer = said  # type: ignore[assignment]  # what an agent says is this
    if taken := answer["taken"]:
        is_ours = taken["cluster"] == cluster
        where = "" if is_ours else " of another cluster (its EVERSTEP_HOME is not ours)"
        folder, owner = taken["folder"], f"{taken['job']}{where}"
        raise FolderTaken(named[folder], folder, owner, is_ours=is_ours)
    return answer


def _begins(order: FenceOrder) -> dict[str, str]:
    if order.checkpoints_path is None or order.checkpoints_of is None or not order.begins:
        return {}
    return {order.checkpoints_path: order.checkpoints_of}


# -- Checkpoints ----------------------------------------------------------------------------------


async def checkpoints(
    agents: Agents, uids: Iterable[str], question: wire.CheckpointsQuestion
) -> tuple[Checkpoint, ...]:
    """Raises NobodyToAsk if no agent answers, BackendUnavailable if one cannot read the storage."""
    said = await agents.ask_any(uids, wire.CHECKPOINTS, question, within_s=wire.LOOK_S)
    return tuple(views.checkpoint(saved) for saved in said["checkpoints"])


async def set_aside(
    agents: Agents, uids: Iterable[str], folder: str, pattern: str | None, order: SetAsideOrder
) -> SetAside:
    """Raises as `checkpoints` does."""
    command: wire.SetAsideCommand = {
        "generation": order.generation,
        "path": folder,
        "checkpoints": list(order.paths),
        "pattern": pattern,
        "resume": order.resume,
    }
    said = await agents.ask_any(uids, wire.SET_ASIDE, command, within_s=wire.STORAGE_S)
    return SetAside(moved=tuple(said["moved"]), why=said["why"])


# -- The journal ----------------------------------------------------------------------------------


def journal_commands(job: str, entries: Iterable[Entry]) -> Iterator[wire.JournalCommand]:
    """One for each phase that has a model_dir. The folders of the entries are absolute."""
    for (place, phase, began), found in groupby(
        entries, key=lambda e: (e.model_dir, e.phase, e.began)
    ):
        if place is not None:
            mine = list(found)
            whose = owner(job, phase, began)
            beside = mine[-1].beside
            files = {name: said for e in mine if e.beside for name, said in e.beside.files.items()}
            yield {
                "model_dir": place,
                "workdir": mine[-1].workdir,
                "began": began,
                "owner": whose,
                "lines": [_line(entry) for entry in mine],
                "summary": whose if beside is None else {"workflow_id": job, **beside.summary},
                "runs": _runs(mine),
                "files": {name: to_yaml(said) for name, said in files.items()},
                "folders": [] if beside is None else [*beside.folders],
            }


def owner(job: str, phase: str, began: float) -> dict[str, str]:
    """Whose folder it is."""
    return {"workflow_id": job, "phase": phase, "began": moment(began) or ""}


def _line(entry: Entry) -> str:
    who = f"run_{entry.run}" if entry.run else "main"
    text = "".join(c if c.isprintable() else " " for c in entry.text)
    return f"[{who}] {moment(entry.at)} {text}"


def _runs(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    numbers = ((entry.about or entry.run, entry) for entry in entries if entry.row)
    return {str(number): _row(number, entry) for number, entry in numbers if number}


def _row(number: int, entry: Entry) -> dict[str, Any]:
    said = {
        key: moment(value) if key in TIMES and isinstance(value, int | float) else value
        for key, value in entry.row.items()
    }
    return {"run": number, **said} if entry.beside is None else said
