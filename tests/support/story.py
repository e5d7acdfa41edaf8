"""Running records and events of any ended job agree: one story, whole and in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest

from everstep.chronicle.chronicle import HAPPENINGS_KEPT, RECORDS_KEPT, STARTS_KEPT, Chronicle
from everstep.chronicle.happenings import KINDS
from everstep.chronicle.views import ENDED_STATE
from everstep.core.state import JobState
from everstep.dialects import job_memo, responses
from everstep.report.accounting import Account, account, seconds
from everstep.report.job_report import causes

SHARED = ("recover_start_at", "recover", "reason", "recover_result", "related_task")


def assert_views_agree(state: JobState, chronicle: Chronicle) -> None:
    left = responses.closing_memo(state, chronicle)
    runs, events = left["report"]["running_records"], left["report"]["events"]
    if (
        len(job_memo.restarts_of(left["report"])) < RECORDS_KEPT
        and len(chronicle.starts) < STARTS_KEPT
    ):
        _every_recovery_is_where_it_belongs(runs, job_memo.restarts_of(left["report"]))
    _runs_follow_each_other(chronicle, runs)
    _time_adds_up(left["report"])
    if len(chronicle.records) < RECORDS_KEPT:
        _totals_agree_with_the_records(chronicle)
        _totals_agree_with_the_report(chronicle, left["report"])
    _events_follow_each_other(state, chronicle, events)
    _spans_form_one_trace(chronicle)


def _every_recovery_is_where_it_belongs(
    runs: list[dict[str, Any]], restarts: list[dict[str, Any]]
) -> None:
    records = [{key: r[key] for key in SHARED} for run in runs for r in run["recover_records"]]
    assert records == [{key: r[key] for key in SHARED} for r in restarts]


def _runs_follow_each_other(chronicle: Chronicle, runs: list[dict[str, Any]]) -> None:
    started = [run for run in runs if run["start_at"] is not None]
    assert len(started) == len(chronicle.starts)
    for run in runs:
        assert run["end_at"] is not None, run
        assert run["end_reason"], run
    for run in started:
        assert run["start_at"] <= run["end_at"], run
    for earlier, later in pairwise(started):
        assert earlier["end_at"] <= later["start_at"], (earlier, later)


def _totals_agree_with_the_records(chronicle: Chronicle) -> None:
    """Every record is counted once, with all its stages."""
    counted = Counter(
        f"{r.decision.fault.cls}/{r.decision.level}/{r.result}" for r in chronicle.records
    )
    assert dict(counted) == dict(chronicle.totals.restarts)
    stages: dict[str, float] = defaultdict(float)
    for record in chronicle.records:
        for stage, took in record.stages_s.items():
            stages[stage] += took
    stage_totals = {
        stage: sum(took for _, took in buckets.values())
        for stage, buckets in chronicle.totals.stages.items()
    }
    assert stage_totals == pytest.approx(dict(stages), abs=0.001)


def _spans_form_one_trace(chronicle: Chronicle) -> None:
    """Each span once, the job's own last; no parent is missing where none was given up."""
    spans = {span.key: span for span in chronicle.spans}
    assert len(spans) == len(chronicle.spans)
    assert chronicle.spans[-1].key == "job"
    assert all(span.began <= span.ended for span in chronicle.spans)
    if chronicle.span_number == len(chronicle.spans):
        assert {span.parent for span in chronicle.spans} <= {*spans, ""}
        assert sum("/restart/" in key for key in spans) == sum(chronicle.totals.restarts.values())


def seconds_by_use(time: Account) -> dict[str, float]:
    """The time of the account by the names that totals have for its uses."""
    return {
        "wait": time.wait_s,
        "training": time.training_s,
        "down": time.down_s,
        "lost": time.lost_s,
        "paused": time.paused_s,
    }


def _totals_agree_with_the_report(chronicle: Chronicle, report: dict[str, Any]) -> None:
    """Where the time went, and what each cause cost, counted as it happened and from the report."""
    if len(chronicle.starts) >= STARTS_KEPT:
        return
    end = seconds(report["ended_at"])
    assert end is not None
    time = account(report, job_memo.restarts_of(report), now=end)
    uses = seconds_by_use(time)
    totals = chronicle.totals
    assert {use: totals.time_s.get(use, 0.0) for use in uses} == pytest.approx(uses, abs=0.05)
    for row in causes(time.restarts):
        lost_s = [totals.lost_s.get(f"{row['class']}/{kind}", 0.0) for kind in ("down", "again")]
        assert lost_s == pytest.approx([row["down_s"], row["lost_s"]], abs=0.05)


def _time_adds_up(report: dict[str, Any]) -> None:
    """Each second of the job has one use, and no restart costs more than there was."""
    end = seconds(report["ended_at"])
    assert end is not None
    time = account(report, job_memo.restarts_of(report), now=end)
    uses = (time.wait_s, time.training_s, time.down_s, time.lost_s, time.paused_s)
    assert min(uses) >= 0.0
    assert abs(sum(uses) - time.total_s) < 0.01, (uses, time.total_s)
    assert abs(sum(time.stages_s.values()) - time.down_s) < 0.01
    assert sum(restart.down_s for restart in time.restarts) <= time.down_s + 0.01


def _events_follow_each_other(
    state: JobState, chronicle: Chronicle, events: list[dict[str, Any]]
) -> None:
    numbers = [event["number"] for event in events]
    assert numbers == [
        *range(chronicle.happening_number - len(events) + 1, chronicle.happening_number + 1)
    ]
    assert len(events) <= HAPPENINGS_KEPT
    names = [event["event"] for event in events if event["event"]]
    assert names[-1] == KINDS[ENDED_STATE[state.ending or ""]].event
    if numbers[0] == 1 and len({start.phase for start in chronicle.starts}) == 1:
        assert names.count("JobStarted") == min(len(chronicle.starts), 1)
        assert names.count("JobRestarted") == max(len(chronicle.starts) - 1, 0)
