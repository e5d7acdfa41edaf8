"""Carries a plan out on this machine and gathers the evidence of each job."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos import actions, checker
from tests.chaos.evidence import BUDGET_NAME, Evidence, lines_of
from tests.chaos.histories import story
from tests.chaos.on_machine import EVERY, NODES, RANKS, Folder, OnMachine, document
from tests.chaos.plan import JOBS, Event
from tests.chaos.undisturbed import Undisturbed
from tests.support.rehearsal import Rehearsal

AHEAD = 2 * EVERY
"""The last step is settled so far ahead of all ranks."""
ENDS_S = 120.0
"""Once nothing is done to a job any more, it has ended by then, however busy the machine."""


async def run(plan: Sequence[Event], folder: Path) -> list[str]:
    """Play the plan, and return the violations that the checker finds."""
    folders = {job: Folder(path=folder / job) for job in JOBS}
    async with Rehearsal(folder / "r", nodes=NODES) as r:
        ground = OnMachine(r, folders)
        for job in JOBS:
            await r.submit(document(job, folders[job]), job_id=job)
        for job in JOBS:
            await r.until(partial(_has_saved, folders[job]), f"a checkpoint of {job}")
        await _play(ground, plan)
        await ground.put_back()
        say("all that was away is back; the jobs end")
        for folder_of_job in folders.values():
            _settle_last_step(folder_of_job)
        reports = {job: await _ended(ground, job) for job in JOBS}
        left = await _left(r, folders)
        evidence = [await _evidence(ground, job, reports[job], left) for job in JOBS]
        sentences = [each for one in evidence for each in checker.violations(one)]
        if sentences:
            _keep(folder, evidence, reports)
        return sentences


def _keep(folder: Path, evidence: Sequence[Evidence], reports: Mapping[str, Any]) -> None:
    """Write down what was judged; the journals are there already."""
    for one in evidence:
        story_lines = [(each.at, str(each)) for each in one.recoveries]
        story_lines += [(each.at, str(each)) for each in one.injections]
        for at, text in sorted(story_lines):
            say(f"  {one.job} {at % 1000:7.2f}  {text}")
        rows = asdict(replace(one, lines=()))
        (folder / f"{one.job}-evidence.json").write_text(json.dumps(rows, indent=1))
        (folder / f"{one.job}-report.json").write_text(json.dumps(reports[one.job], indent=1))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _play(ground: OnMachine, plan: Sequence[Event]) -> None:
    began = time.monotonic()
    for event in plan:
        await asyncio.sleep(max(0.0, began + event.at_s - time.monotonic()))
        ground.raise_failures()
        text = await actions.carry_out(ground, event)
        say(
            f"{event.number:3} {time.monotonic() - began:6.2f} s  {event.action}, {event.job}: {text}"
        )


def _has_saved(folder: Folder) -> bool:
    return '"saved"' in folder.text()


def _settle_last_step(folder: Folder) -> None:
    last = max(line.step for line in lines_of(folder.text()))
    fresh = folder.finish.with_suffix(".tmp")
    fresh.write_text(str(last + AHEAD))
    fresh.replace(folder.finish)


async def _ended(ground: OnMachine, job: str) -> dict[str, Any]:
    try:
        return await ground.r.report(ground.handle(job), within_s=ENDS_S)
    except AssertionError as error:
        say(str(error))
        return {"status": f"one that does not end within {ENDS_S:g} s"}


async def _left(r: Rehearsal, folders: Mapping[str, Folder]) -> list[str]:
    """What outlives the jobs, of processes, files, sockets and reservations."""
    left = await r.is_clean(*(folder.path for folder in folders.values()))
    marks = [str(folder.path).encode() for folder in folders.values()]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if any(mark in environment for mark in marks) and int(entry.name) != os.getpid():
            left.append(f"process {entry.name}")
    return left


async def _evidence(
    ground: OnMachine, job: str, report: Mapping[str, Any], left: Sequence[str]
) -> Evidence:
    folder = ground.folders[job]
    lines = lines_of(folder.text())
    undisturbed = Undisturbed.up_to(int(folder.finish.read_text()))
    has_ended = "phases" in report
    job_story = await story(ground.r.client, job) if has_ended else None
    final = folder.checkpoints / "final.json"
    return Evidence(
        job=job,
        ranks=RANKS,
        lines=lines,
        injections=ground.injections.get(job, ()),
        recoveries=job_story.recoveries if job_story else (),
        expected=undisturbed.digests,
        final=json.loads(final.read_text()) if final.exists() else None,
        expected_final=undisturbed.final,
        spent=report["phases"][-1]["budgets"][BUDGET_NAME]["used"] if has_ended else None,
        lives=ground.lives[job],
        status=report["status"],
        stuck=job_story.stuck if job_story else (),
        left=left,
    )
