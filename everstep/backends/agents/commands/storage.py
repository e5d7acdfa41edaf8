"""The storage of a job, as its agents see it: its fence, its checkpoints, the journal beside its model.

All of it goes through an agent, which has the storage that the ranks have.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any

from everstep.backends.agents.client import agent_views
from everstep.backends.agents.client.link import REQUEST_S
from everstep.backends.agents.client.watch import Agents
from everstep.chronicle.chronicle import Entry
from everstep.chronicle.shapes import moment
from everstep.core.errors import BackendUnavailable, FolderTaken, NoAgentAvailable, Overlap
from everstep.core.world import Checkpoint, CheckpointListing, FenceOrder, SetAside, SetAsideOrder
from everstep.documents.text import to_yaml
from everstep.protocol import wire

TIMES = frozenset({"start_time", "end_time"})
"""Keys of a row of summary.json whose values are times."""

# -- The fence ------------------------------------------------------------------------------------


def fence_folders(order: FenceOrder) -> dict[str, str]:
    """The folders of the order, each with the field of the document that names it."""
    folders = ((order.run.model_dir, "model_dir"), (order.run.checkpoints_path, "checkpoints.path"))
    return {folder: field for folder, field in folders if folder is not None}


async def write_fence(
    agents: Agents,
    uid: str,
    order: FenceOrder,
    *,
    cluster: str,
    left: Collection[str],
    earlier: Collection[str] = (),
    question: wire.CheckpointsQuestion | None = None,
) -> wire.FenceAnswer:
    """The answer of the agent.

    `left`: folders that the job used before; its older generations are barred there.
    `earlier`: clusters that had the job before it was adopted; their generations are outdated everywhere.
    `question`: what to list once the fence is written. `listing` of the answer has the list.

    Raises NoAnswer or Refused, and FolderTaken if a folder is that of another job which has not ended.
    """
    folders = fence_folders(order)
    body: wire.FenceCommand = {
        "generation": order.generation,
        # A run that was continued or reset is the same job; one that was submitted anew is another.
        "run": order.job.first_run or order.job.run,
        "cluster": cluster,
        "folders": list(folders),
        "left": [folder for folder in left if folder not in folders],
        "earlier": [*earlier],
        "workdir": order.run.workdir if posixpath.isabs(order.run.workdir) else None,
        "begins": _begins(order),
        "checkpoints": question,
    }
    reply = await agents.request(uid, "POST", wire.FENCE, body, within_s=wire.STORAGE_S + REQUEST_S)
    answer: wire.FenceAnswer = reply  # type: ignore[assignment]  # an agent answers with this
    if claim := answer["taken_by"]:
        is_same_cluster = claim["cluster"] == cluster
        where = "" if is_same_cluster else " of another cluster (its EVERSTEP_HOME is not ours)"
        folder, owner = claim["folder"], f"{claim['job']}{where}"
        owned = claim.get("owned", folder)  # an agent of an earlier version has none
        overlap: Overlap = "is" if owned == folder else "around"
        if overlap == "around" and not owned.startswith(answer["real"].get(folder, folder)):
            overlap = "in"
        raise FolderTaken(
            folders[folder],
            folder,
            owner,
            overlap=overlap,
            owned=owned,
            is_same_cluster=is_same_cluster,
        )
    return answer


def listing(answer: wire.FenceAnswer) -> CheckpointListing | None:
    """What the agent listed behind the fence; None: unknown, as from an agent of an earlier version."""
    reply = answer.get("listing")
    if reply is None:
        return None
    return CheckpointListing(
        checkpoints=tuple(agent_views.checkpoint(saved) for saved in reply["checkpoints"]),
        set_aside=tuple(reply["set_aside"]),
    )


def _begins(order: FenceOrder) -> dict[str, str]:
    """The checkpoints folder -> its phase, if that has not run yet."""
    path, phase = order.run.checkpoints_path, order.run.checkpoints_of
    return {path: phase} if order.begins and path is not None and phase is not None else {}


# -- Checkpoints ----------------------------------------------------------------------------------


async def checkpoints(
    agents: Agents, uids: Iterable[str], question: wire.CheckpointsQuestion
) -> tuple[Checkpoint, ...]:
    """Raises NoAgentAvailable if no agent answers, BackendUnavailable if one cannot read the storage."""
    answer = await agents.request_any(uids, wire.CHECKPOINTS, question, within_s=wire.LIST_S)
    return tuple(agent_views.checkpoint(saved) for saved in answer["checkpoints"])


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
    answer = await agents.request_any(uids, wire.SET_ASIDE, command, within_s=wire.STORAGE_S)
    return SetAside(moved=tuple(answer["moved"]), why=answer["why"])


async def write_problem(agents: Agents, uids: Iterable[str], folder: str) -> str:
    """What keeps the job's agents from writing to the folder; empty: nothing, or no agent answers.

    An agent of an earlier version has no answer.
    """
    question: wire.WritableQuestion = {"path": folder}
    try:
        answer = await agents.request_any(uids, wire.WRITABLE, question, within_s=wire.STORAGE_S)
    except NoAgentAvailable:
        return ""
    except BackendUnavailable as error:
        return str(error)
    return str(answer["problem"])


# -- The journal ----------------------------------------------------------------------------------


def journal_commands(job: str, entries: Iterable[Entry]) -> Iterator[wire.JournalCommand]:
    """One command for each phase that has a model_dir. Folders of the entries must be absolute."""
    for (model_dir, phase, began), group in groupby(
        entries, key=lambda e: (e.model_dir, e.phase, e.began)
    ):
        if model_dir is not None:
            phase_entries = list(group)
            newest = phase_entries[-1]
            whose = owner(job, phase, began)
            source = newest.dialect_files
            files = {
                name: content
                for entry in phase_entries
                if entry.dialect_files
                for name, content in entry.dialect_files.files.items()
            }
            yield {
                "model_dir": model_dir,
                "workdir": newest.workdir,
                "began": began,
                "owner": whose,
                "lines": [_line(entry) for entry in phase_entries],
                "summary": whose if source is None else {"workflow_id": job, **source.summary},
                "runs": _runs(phase_entries),
                "files": {name: to_yaml(content) for name, content in files.items()},
                "folders": [] if source is None else [*source.folders],
            }


def owner(job: str, phase: str, began: float) -> dict[str, str]:
    """Identifies the job and phase that own a folder of records."""
    return {"workflow_id": job, "phase": phase, "began": moment(began) or ""}


def _line(entry: Entry) -> str:
    who = f"run_{entry.run}" if entry.run else "main"
    text = "".join(c if c.isprintable() else " " for c in entry.text)
    return f"[{who}] {moment(entry.at)} {text}"


def _runs(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    numbers = ((entry.about or entry.run, entry) for entry in entries if entry.row)
    return {str(number): _row(number, entry) for number, entry in numbers if number}


def _row(number: int, entry: Entry) -> dict[str, Any]:
    row = {
        key: moment(value) if key in TIMES and isinstance(value, int | float) else value
        for key, value in entry.row.items()
    }
    return {"run": number, **row} if entry.dialect_files is None else row
