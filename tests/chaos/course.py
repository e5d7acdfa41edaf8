"""Carries a plan out on this machine and gathers the evidence of each job."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.chaos import checker
from tests.chaos.actions import Action, carry_out
from tests.chaos.before import Clone, NoneBefore
from tests.chaos.evidence import BUDGET_NAME, Evidence, lines_of
from tests.chaos.ground import EVERY, RANKS, Folder, Ground, say
from tests.chaos.histories import story
from tests.chaos.plan import JOBS, Event
from tests.chaos.undisturbed import Undisturbed
from tests.support.workerproc import ROOT

G = TypeVar("G", bound=Ground)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Generic[G]):
    """Where a plan is played, and what can be done there."""

    begun: Callable[[Path], AbstractAsyncContextManager[G]]
    actions: Mapping[str, Action[G]]


AHEAD = 2 * EVERY
"""The last step is settled so far ahead of all ranks."""
ENDS_S = 120.0
"""Once nothing is done to a job any more, it has ended by then, however busy the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The violations of a course, and the names of the rules that it broke."""

    sentences: Sequence[str] = ()
    rules: frozenset[str] = frozenset()


async def judged(plan: Sequence[Event], folder: Path, backend: Backend[G]) -> Verdict:
    """Play the plan, and judge it. What goes wrong with the chaos itself is printed, and a violation too."""
    try:
        return await _run(plan, folder, backend)
    except Exception as error:  # noqa: BLE001  # the edge: the course is shrunken as any other
        traceback.print_exc()
        name = type(error).__name__
        return Verdict(
            sentences=[f"the course broke off: {name}: {error}"], rules=frozenset({name})
        )


async def _run(plan: Sequence[Event], folder: Path, backend: Backend[G]) -> Verdict:
    async with backend.begun(folder) as ground:
        ground.before = _version_before(folder)
        await _play(ground, plan, backend.actions)
        await ground.put_back()
        say("all that was away is back; the jobs end")
        for folder_of_job in ground.folders.values():
            _settle_last_step(folder_of_job)
        reports = {job: await _ended(ground, job) for job in JOBS}
        have_ended = all("phases" in report for report in reports.values())
        left = {JOBS[0]: await ground.left() if have_ended else []}
        evidence = [await _evidence(ground, job, reports[job], left.get(job, ())) for job in JOBS]
        sentences = [each for one in evidence for each in checker.violations(one)]
        if sentences:
            _keep(folder, evidence, reports)
        rules = frozenset[str]().union(*map(checker.broken_rules, evidence))
        return Verdict(sentences=sentences, rules=rules)


def _version_before(folder: Path) -> Path | None:
    clone = Clone(root=ROOT)
    try:
        commit = clone.version_before()
        say(f"the version before is {commit[:12]}")
        return clone.extract(commit, folder / "before")
    except NoneBefore as error:
        say(f"all workers are of today: {error}")
        return None


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


async def _play(ground: G, plan: Sequence[Event], table: Mapping[str, Action[G]]) -> None:
    began = time.monotonic()
    for event in plan:
        await asyncio.sleep(max(0.0, began + event.at_s - time.monotonic()))
        ground.raise_failures()
        text = await carry_out(table[event.action], ground, event)
        say(
            f"{event.number:3} {time.monotonic() - began:6.2f} s  {event.action}, {event.job}: {text}"
        )


def _settle_last_step(folder: Folder) -> None:
    last = max(line.step for line in lines_of(folder.text()))
    fresh = folder.finish.with_suffix(".tmp")
    fresh.write_text(str(last + AHEAD))
    fresh.replace(folder.finish)


async def _ended(ground: Ground, job: str) -> dict[str, Any]:
    try:
        return await ground.report(job, within_s=ENDS_S)
    except AssertionError as error:  # it failed otherwise than our jobs do
        return {"status": f"Failed: {error}"}
    except TimeoutError:
        status = await ground.handle(job).query("status")
        say(f"{job} does not end: {status}")
        return {"status": f"{status['state']}, which does not end within {ENDS_S:g} s"}


async def _evidence(
    ground: Ground, job: str, report: Mapping[str, Any], left: Sequence[str]
) -> Evidence:
    folder = ground.folders[job]
    lines = lines_of(folder.text())
    undisturbed = Undisturbed.up_to(int(folder.finish.read_text()))
    has_ended = "phases" in report
    job_story = await story(ground.client, job)
    final = folder.checkpoints / "final.json"
    return Evidence(
        job=job,
        ranks=RANKS,
        lines=lines,
        injections=ground.injections.get(job, ()),
        recoveries=job_story.recoveries,
        expected=undisturbed.digests,
        final=json.loads(final.read_text()) if final.exists() else None,
        expected_final=undisturbed.final,
        spent=report["phases"][-1]["budgets"][BUDGET_NAME]["used"] if has_ended else None,
        lives=ground.lives[job],
        status=report["status"],
        stuck=job_story.stuck if has_ended else job_story.failed_tasks,
        left=left,
    )
