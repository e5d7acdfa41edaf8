"""The command `prune`: what ended pods left on this machine is taken away."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Annotated, Any

import typer

from everstep.backends.tools import Left
from everstep.chronicle import shapes
from everstep.cli import machine
from everstep.cli.durations import parse_duration
from everstep.cli.output import AsJson, Page, show, shown
from everstep.cli.pages import age
from everstep.cli.state import home
from everstep.cli.tables import Column, table


def prune(
    older_than: Annotated[
        str,
        typer.Option(metavar="AGE", help="Only what was not written to for so long: 12h, 7d, 2w."),
    ] = "7d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove logs and evidence of pods that ended, from EVERSTEP_HOME.

    A pod of which it is not proven that it ended keeps everything. Folders of jobs stay, whether you
    named them (model_dir, checkpoints) or not (EVERSTEP_HOME/jobs): records, results and the number of
    the last start are there. So do the server's database and the books of the cluster.
    """
    passed_s = parse_duration("--older-than", older_than, hint="; 0s is everything")
    now = time.time()
    with machine.books_can_be_read(", so nothing is removed"):
        pruned = machine.tools().prune(before=now - passed_s, is_rehearsal=dry_run)
        leftovers = asyncio.run(pruned)
    removed = [_row(left, now) for left in leftovers if left.kept is None]
    left_rows = [
        _row(left, now) | {"why": left.kept} for left in leftovers if left.kept is not None
    ]
    summary = {"removed": removed, "kept": left_rows, "bytes": sum(row["bytes"] for row in removed)}
    show({**summary, "dry_run": dry_run, "home": str(home())}, _page, as_json=as_json)


PRUNED = (
    Column("POD", "pod", is_pinned=True),
    Column("JOB", "job"),
    Column("SLOT", "slot"),
    Column("WRITTEN", lambda row: f"{age(row['age_s'])} ago"),
    Column("SIZE", lambda row: _size(row["bytes"])),
)


def _page(value: dict[str, Any]) -> Page:
    if value["removed"]:
        yield table(value["removed"], PRUNED)
    did = "would be removed" if value["dry_run"] else "removed"
    count = len(value["removed"])
    yield f"{count} ended pods, {_size(value['bytes'])} {did} from {shown(value['home'])}"
    for why, many in Counter(row["why"] for row in value["kept"]).items():
        yield f"{many} kept: {why}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _row(left: Left, now: float) -> dict[str, Any]:
    return {
        "pod": left.uid,
        "job": left.job,
        "slot": left.slot,
        "bytes": left.size,
        "written_at": shapes.moment(left.written_at or None),
        "age_s": round(max(0.0, now - left.written_at)),
    }
