"""What came of a case, as users and scripts see it, and how it is held against what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cases.case import Case, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the script in one slot, in its own words."""

    generation: int
    schedule: int
    process: int
    pod: str
    resumed: int | None = None  # the step it was told to resume from
    checks: str | None = None  # for how many steps it was to check its numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    report: Mapping[str, Any]
    status: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]
    starts: Mapping[int, tuple[Start, ...]]
    isolated: tuple[str, ...]  # what the cluster says of its nodes
    prechecked: bool
    shown: Mapping[str, Any]  # as ModelArts would show the job
    events: tuple[str, ...] = ()
    log: tuple[str, ...] = ()  # lines of run.log


def differences(case: Case, seen: Seen) -> list[str]:
    """Everything that is not as the case says, a line each."""
    return [line for look in LOOKS for line in look(case, seen)]


def _end(case: Case, seen: Seen) -> Iterator[str]:
    report = seen.report
    yield from _differ("the job", case.ends, report["status"])
    if case.because not in report["reason"]:
        yield f"the reason is {report['reason']!r}, without {case.because!r}"


def _records(case: Case, seen: Seen) -> Iterator[str]:
    yield from _differ("the records", [*map(_expected, case.rows)], [*map(_found, seen.records)])

    kinds = tuple(record["fault"]["kind"] for record in seen.records)
    if case.kinds:
        yield from _differ("the kinds of faults", case.kinds, kinds)


def _expected(row: Row) -> tuple[object, ...]:
    billed = {} if row.result == "quotaExceeded" else dict(row.billed)
    kind = (row.recover, row.before, row.result, row.scenario)
    return (*kind, row.start_type, row.isolated, billed)


def _found(record: Mapping[str, Any]) -> tuple[object, ...]:
    names = ("recover", "recover_before_downgrade", "recover_result", "fault_scenario")
    kind = tuple(record[name] for name in names)
    return (*kind, record["start_type"], record["isolated"], record["bills"])


def _counts(case: Case, seen: Seen) -> Iterator[str]:
    for slot, expected in case.counts.items():
        found = tuple((start.schedule, start.process) for start in seen.starts.get(slot, ()))
        yield from _differ(f"what the script of slot {slot} was told", expected, found)


def _pods(case: Case, seen: Seen) -> Iterator[str]:
    for slot, expected in case.pods.items():
        uids = [start.pod for start in seen.starts.get(slot, ())]
        known = list(dict.fromkeys(uids))
        found = tuple(known.index(uid) for uid in uids)
        yield from _differ(f"the pods of slot {slot}", expected, found)


def _books(case: Case, seen: Seen) -> Iterator[str]:
    used = {name: budget["used"] for name, budget in seen.status["budgets"].items()}
    for name, units in case.used.items():
        yield from _differ(f"budget {name}", units, used.get(name))
    yield from _differ("reschedules", case.restarts, seen.status["reschedules"])
    yield from _differ(
        "the job's isolated nodes", list(case.isolated), seen.status["isolated_nodes"]
    )
    yield from _differ("the cluster's isolated nodes", case.isolated, seen.isolated)


def _checkpoints(case: Case, seen: Seen) -> Iterator[str]:
    if case.resumed:
        found = tuple(start.resumed for start in seen.starts.get(0, ()))
        yield from _differ("the steps it resumed from", case.resumed, found)
    if case.checks:
        checks = tuple(start.checks for start in seen.starts.get(0, ()))
        yield from _differ("the steps it was to check", case.checks, checks)
    if case.saved is not None:
        newest = seen.report["phases"][-1]["last_checkpoint_step"]
        yield from _differ("the newest checkpoint", case.saved, newest)


def _log(case: Case, seen: Seen) -> Iterator[str]:
    lines = iter(seen.log)
    if missing := [part for part in case.logged if not any(part in line for line in lines)]:
        yield f"run.log {seen.log} lacks {missing} in their order"
    if said := [part for part in case.unlogged if any(part in line for line in seen.log)]:
        yield f"run.log {seen.log} must not hold {said}"


def _as_theirs(case: Case, seen: Seen) -> Iterator[str]:
    if case.trainer is not None:
        return
    metadata, status = seen.shown["metadata"], seen.shown["status"]
    yield from _differ("the annotations", dict(case.annotations), metadata["annotations"])
    yield from _differ("their phase", case.ends, status["phase"])
    found = [record["start_type"] for record in status["running_records"]]
    restarts = [row.start_type for row in case.rows if row.result == "success"]
    yield from _differ("their running records", ["init_or_rescheduled", *restarts], found)


def _precheck(case: Case, seen: Seen) -> Iterator[str]:
    is_on = any(name.endswith("job-retry-num") for name in case.annotations)
    yield from _differ("checked before the start", is_on, seen.prechecked)


def _events(case: Case, seen: Seen) -> Iterator[str]:
    told = iter(seen.events)
    missing = [name for name in case.events if name not in told]
    if missing:
        yield f"events {seen.events} lack {missing} in their order"
    if said := set(case.silent) & {*seen.events}:
        yield f"events {seen.events} must not hold {said}"


def _place(case: Case, seen: Seen) -> Iterator[str]:
    if case.place_s is not None:
        low, high = case.place_s
        took = seen.records[-1]["stages_s"]["place"] or 0.0
        if not low <= took < high:
            yield f"places took {took} s, not {low} to {high}"


def _differ(what: str, expected: object, found: object) -> Iterator[str]:
    if expected != found:
        yield f"{what}: {expected} expected, {found} found"


LOOKS = (
    *(_end, _records, _counts, _pods, _books, _checkpoints, _log),
    *(_as_theirs, _precheck, _events, _place),
)
