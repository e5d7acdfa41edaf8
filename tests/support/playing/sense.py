"""What of a job's course has to be the same on every cluster: everything but times and the order of deeds.

The decisions one after the other (level, class, place, bills, reason, what was passed over or refused,
what was seen), the records row for row with the places that changed, the end, and what was shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.core.deciding.decision import Decision
from everstep.core.levels import FaultClass
from tests.support.playing.scenario import Played
from tests.support.playing.transcript import COLUMNS, row

SECONDS = re.compile(r"\d+(\.\d+)?(e[+-]\d+)? s\b")
WITH_TIME = re.compile(r", step \w+, checkpoint \w+|; waiting for [^;]* to (?:go|be ready)")
"""What a status shows of moments that come and go: how far training is, whose turn to start it is."""


FILE = re.compile(r"(?<=set aside: )\S*/(?:\d+-)?(?=step-)|(?<=step-\d\d)\.json$")
"""Where a checkpoint was put is another place on every cluster."""

ANSWERS = re.compile(r"(?<=an answer from )[^;]*")


def sense(played: Played) -> list[str]:
    """A line each, so that a difference can be read."""
    return [_timeless(line) for line in _lines(played)]


def _timeless(line: str) -> str:
    return SECONDS.sub("some s", line)


def _lines(played: Played) -> Iterator[str]:
    for decision in played.decisions:
        yield from _decision(decision)
    for record in played.restarts:
        yield from _record(record)
    report, status = played.report, played.status
    yield f"{report['status']}: {report['reason']}"
    phases = [f"{phase['name']} {phase['state']}" for phase in status["phases"]]
    yield f"phases: {', '.join(phases)}"
    if report["status"] == "Completed":  # else the newest steps may not have been told
        yield f"step {status['step']}"
    yield f"checkpoint {status['checkpoint_step']}"
    yield f"budgets {status['budgets']}, {status['reschedules']} rescheduled"
    yield f"isolated: {' '.join(status['isolated_nodes']) or 'none'}"
    for answer in played.notes:
        if answer.what == "status":
            yield f"status: {_sorted(WITH_TIME.sub('', answer.text))}"
        elif "refused" in answer.text:
            yield f"told: {answer.text[answer.text.index('refused') :]}"


def _sorted(status: str) -> str:
    """Agents that fall silent at once are reported in any order."""
    return ANSWERS.sub(lambda match: ", ".join(sorted(match[0].split(", "))), status)


def _decision(decision: Decision) -> Iterator[str]:
    fault, bills = decision.fault, f" [bills {dict(decision.bills)}]" if decision.bills else ""
    if fault.cls is FaultClass.UNREACHABLE:  # heard of in any order
        yield f"{decision.level}: {fault.cls} on {sorted(fault.nodes)}{bills}"
    else:
        yield f"{decision.level}: {fault.cls} on {fault.where or 'no place'}: {decision.reason}{bills}"
    yield f"  seen: {', '.join(sorted({fact_id.split()[0] for fact_id in decision.seen}))}"
    yield from (f"  refused: {one.level} by {one.budget}" for one in decision.refused)
    yield from (f"  not: {one}" for one in decision.passed_over)


def _record(record: Mapping[str, Any]) -> Iterator[str]:
    columns = dict(zip(COLUMNS, row(record), strict=True))
    del columns["took"]
    yield ", ".join(f"{name} {value}" for name, value in columns.items())
    yield f"  from {record['nodes']['before']} to {record['nodes']['after']}"
    if record["isolated"]:
        yield "  isolated"
    yield from (f"  note: {FILE.sub('', note)}" for note in record["notes"])
