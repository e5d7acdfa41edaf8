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


OTHER_FILES = {".lock", "run.log", "params.yaml", "summary.json", "prefetched_compiles"}


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
class CaseResult:
    report: Mapping[str, Any]
    status: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]
    starts: Mapping[int, tuple[Start, ...]]
    isolated: tuple[str, ...]  # what the cluster says of its nodes
    prechecked: bool
    modelarts_view: Mapping[str, Any]  # as ModelArts would show the job
    events: tuple[str, ...] = ()
    log: tuple[str, ...] = ()  # lines of run.log
    directories: tuple[Directory, ...] = ()  # one for each phase that began


def differences(case: Case, result: CaseResult) -> list[str]:
    """Everything that is not as the case says, a line each."""
    return [line for look in LOOKS for line in look(case, result)]


def _end(case: Case, result: CaseResult) -> Iterator[str]:
    report = result.report
    yield from _differ("the job", case.ends, report["status"])
    if case.because not in report["reason"]:
        yield f"the reason is {report['reason']!r}, without {case.because!r}"


def _records(case: Case, result: CaseResult) -> Iterator[str]:
    yield from _differ(
        "the records", [*map(_expected, case.rows)], [*map(_record_columns, result.records)]
    )

    kinds = tuple(record["fault"]["kind"] for record in result.records)
    if case.kinds:
        yield from _differ("the kinds of faults", case.kinds, kinds)


def _expected(row: Row) -> tuple[object, ...]:
    billed = {} if row.result == "quotaExceeded" else dict(row.billed)
    kind = (row.recover, row.before, row.result, row.scenario)
    return (*kind, row.start_type, row.isolated, billed)


def _record_columns(record: Mapping[str, Any]) -> tuple[object, ...]:
    names = ("recover", "recover_before_downgrade", "recover_result", "fault_scenario")
    kind = tuple(record[name] for name in names)
    return (*kind, record["start_type"], record["isolated"], record["bills"])


def _counts(case: Case, result: CaseResult) -> Iterator[str]:
    for slot, expected in case.counts.items():
        actual = tuple((start.schedule, start.process) for start in result.starts.get(slot, ()))
        yield from _differ(f"what the script of slot {slot} was told", expected, actual)


def _pods(case: Case, result: CaseResult) -> Iterator[str]:
    for slot, expected in case.pods.items():
        uids = [start.pod for start in result.starts.get(slot, ())]
        distinct_uids = list(dict.fromkeys(uids))
        pod_numbers = tuple(distinct_uids.index(uid) for uid in uids)
        yield from _differ(f"the pods of slot {slot}", expected, pod_numbers)


def _slots(case: Case, result: CaseResult) -> Iterator[str]:
    if not case.slots:
        return
    slots_by_generation: dict[int, dict[int, int]] = {}
    for slot, starts in sorted(result.starts.items()):
        for start in starts:
            slots_by_generation.setdefault(start.generation, {})[slot] = start.nodes
    expected = [dict.fromkeys(slots, len(slots)) for slots in case.slots]
    yield from _differ(
        "who was told how many",
        expected,
        [slots_by_generation[n] for n in sorted(slots_by_generation)],
    )


def _micro_batches(case: Case, result: CaseResult) -> Iterator[str]:
    if case.micro_batches:
        micro_batches = [MICRO_BATCH.findall(start.params) for start in result.starts.get(0, ())]
        yield from _differ(
            "its micro-batches", [[size] for size in case.micro_batches], micro_batches
        )


def _books(case: Case, result: CaseResult) -> Iterator[str]:
    used = {name: budget["used"] for name, budget in result.status["budgets"].items()}
    for name, units in case.used.items():
        yield from _differ(f"budget {name}", units, used.get(name))
    yield from _differ("reschedules", case.restarts, result.status["reschedules"])
    yield from _differ(
        "the job's isolated nodes", list(case.isolated), result.status["isolated_nodes"]
    )
    yield from _differ("the cluster's isolated nodes", case.isolated, result.isolated)
    if case.ends == "Completed":
        nodes_used = {pod["node"] for pod in result.status["pods"] if pod["state"] != "absent"}
        yield from _differ("isolated nodes in use", set(), nodes_used & {*case.isolated})


def _checkpoints(case: Case, result: CaseResult) -> Iterator[str]:
    if case.resumed:
        resumed_steps = tuple(start.resumed for start in result.starts.get(0, ()))
        yield from _differ("the steps it resumed from", case.resumed, resumed_steps)
    if case.checks:
        checks = tuple(start.checks for start in result.starts.get(0, ()))
        yield from _differ("the steps it was to check", case.checks, checks)
    if case.saved is not None:
        newest = result.report["phases"][-1]["last_checkpoint_step"]
        yield from _differ("the newest checkpoint", case.saved, newest)


def _log(case: Case, result: CaseResult) -> Iterator[str]:
    lines = iter(result.log)
    if missing := [part for part in case.logged if not any(part in line for line in lines)]:
        yield f"run.log {result.log} lacks {missing} in their order"
    if forbidden := [part for part in case.unlogged if any(part in line for line in result.log)]:
        yield f"run.log {result.log} must not hold {forbidden}"


def _attempts(case: Case, result: CaseResult) -> Iterator[str]:
    if not case.attempts:
        return
    attempts = [[_attempt(run) for run in folder.runs] for folder in result.directories]
    expected = [[(a.status, a.start, a.end, a.systems) for a in phase] for phase in case.attempts]
    yield from _differ("the attempts", expected, attempts)
    for phase, folder in zip(case.attempts, result.directories, strict=False):
        for attempt, run in zip(phase, folder.runs, strict=False):
            if attempt.because not in run["failure_reason"]:
                yield f"the reason is {run['failure_reason']!r}, without {attempt.because!r}"
        numbers = [f"[run_{n}]" for n in range(1, len(phase) + 1)]
        spoken = [who for who in folder.speakers if who != "[main]"]
        yield from _differ("whose lines are in run.log", numbers, spoken)
        yield from _differ("what lies in a directory", OTHER_FILES, folder.names)


def _attempt(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(run.get(key) for key in ("status", "starting_step", "ending_step", "num_csx"))


def _as_expected_there(case: Case, result: CaseResult) -> Iterator[str]:
    if case.trainer is not None:
        return
    metadata, status = result.modelarts_view["metadata"], result.modelarts_view["status"]
    yield from _differ("the annotations", dict(case.annotations), metadata["annotations"])
    yield from _differ("their phase", case.ends, status["phase"])
    start_types = [record["start_type"] for record in status["running_records"]]
    restarts = [row.start_type for row in case.rows if row.result == "success"]
    yield from _differ("their running records", ["init_or_rescheduled", *restarts], start_types)


def _precheck(case: Case, result: CaseResult) -> Iterator[str]:
    is_on = any(name.endswith("job-retry-num") for name in case.annotations)
    yield from _differ("checked before the start", is_on, result.prechecked)


def _events(case: Case, result: CaseResult) -> Iterator[str]:
    events = iter(result.events)
    missing = [name for name in case.events if name not in events]
    if missing:
        yield f"events {result.events} lack {missing} in their order"
    if forbidden := set(case.silent) & {*result.events}:
        yield f"events {result.events} must not hold {forbidden}"


def _place(case: Case, result: CaseResult) -> Iterator[str]:
    if case.place_s is not None:
        low, high = case.place_s
        took = result.records[-1]["stages_s"]["place"] or 0.0
        if not low <= took < high:
            yield f"places took {took} s, not {low} to {high}"


def _differ(what: str, expected: object, actual: object) -> Iterator[str]:
    if expected != actual:
        yield f"{what}: {expected} expected, {actual} found"


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
    *(_as_expected_there, _precheck, _events, _place),
)
