"""What came of a case, as users and scripts see it, and how it is held against what was expected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.cases.case import Case, Row

MICRO_BATCH = re.compile(r"csx\.performance\.micro_batch_size\W+(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the script in one slot, in its own words."""

    generation: int
    schedule: int
    process: int
    pod: str
    nodes: int  # so many it was told there are
    resumed: int | None = None  # the step it was told to resume from
    checks: str | None = None  # for how many steps it was to check its numbers
    params: str = ""  # the configuration that its command was given


BESIDE = {".lock", "run.log", "params.yaml", "summary.json", "prefetched_compiles"}


class Directory(NamedTuple):
    """A restart directory: what its summary says of each run, who says each line of its log."""

    runs: tuple[Mapping[str, Any], ...]
    speakers: tuple[str, ...]
    names: frozenset[str]  # of what lies in it


def directories(model_dir: Path) -> tuple[Directory, ...]:
    return tuple(map(_directory, sorted(model_dir.glob("*_restartable"))))


def _directory(folder: Path) -> Directory:
    lines = (folder / "run.log").read_text().splitlines()
    summary = json.loads((folder / "summary.json").read_text())
    return Directory(
        runs=tuple(summary["runs"]),
        speakers=tuple(line.partition(" ")[0] for line in lines),
        names=frozenset(path.name for path in folder.iterdir()),
    )


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
    directories: tuple[Directory, ...] = ()  # one for each phase that began


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


def _slots(case: Case, seen: Seen) -> Iterator[str]:
    if not case.slots:
        return
    found: dict[int, dict[int, int]] = {}
    for slot, starts in sorted(seen.starts.items()):
        for start in starts:
            found.setdefault(start.generation, {})[slot] = start.nodes
    expected = [dict.fromkeys(slots, len(slots)) for slots in case.slots]
    yield from _differ("who was told how many", expected, [found[n] for n in sorted(found)])


def _micro_batches(case: Case, seen: Seen) -> Iterator[str]:
    if case.micro_batches:
        told = [MICRO_BATCH.findall(start.params) for start in seen.starts.get(0, ())]
        yield from _differ("its micro-batches", [[size] for size in case.micro_batches], told)


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


def _attempts(case: Case, seen: Seen) -> Iterator[str]:
    if not case.attempts:
        return
    found = [[_attempt(run) for run in folder.runs] for folder in seen.directories]
    wanted = [[(a.status, a.start, a.end, a.systems) for a in phase] for phase in case.attempts]
    yield from _differ("the attempts", wanted, found)
    for phase, folder in zip(case.attempts, seen.directories, strict=False):
        for attempt, run in zip(phase, folder.runs, strict=False):
            if attempt.because not in run["failure_reason"]:
                yield f"the reason is {run['failure_reason']!r}, without {attempt.because!r}"
        numbers = [f"[run_{n}]" for n in range(1, len(phase) + 1)]
        spoken = [who for who in folder.speakers if who != "[main]"]
        yield from _differ("whose lines are in run.log", numbers, spoken)
        yield from _differ("what lies in a directory", BESIDE, folder.names)


def _attempt(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(run.get(key) for key in ("status", "starting_step", "ending_step", "num_csx"))


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
    *(
        _end,
        _records,
        _counts,
        _pods,
        _slots,
        _micro_batches,
        _books,
        _checkpoints,
        _log,
        _attempts,
    ),
    *(_as_theirs, _precheck, _events, _place),
)
