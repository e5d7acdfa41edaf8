"""Pages for people: each takes a value in its pinned JSON shape and says what to print of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.text import Text

from everstep.chronicle import record_rows
from everstep.cli import device_tables
from everstep.cli.output import Page, shown
from everstep.cli.tables import Column, TableRow, facts, folded, span, table

Value = dict[str, Any]


def _bold(text: str) -> Text:
    return Text(shown(text), style="bold")


def _time(key: str) -> Callable[[TableRow], str | None]:
    """`2026-01-31 12:00:07Z`: the JSON has the milliseconds."""

    def local_time(row: TableRow) -> str | None:
        at = row[key]
        return at and f"{at[:10]} {at[11:19]}Z"

    return local_time


# -- documents ----------------------------------------------------------------------------------


def verdict(value: Value) -> Page:
    yield f"{value['dialect'] or 'unknown'} document: {'valid' if value['ok'] else 'not valid'}"
    yield from (f"error  {_problem_text(problem)}" for problem in value["errors"])
    yield from (f"note   {_problem_text(note)}" for note in value["notes"])
    yield from _levels(value)


def _levels(value: Value) -> Iterator[str]:
    """The levels that faults can lead to, where they are in the value."""
    if levels := value.get("levels"):
        yield f"levels {', '.join(levels)}"
        if more := value["levels_with_library"]:
            yield f"       with everstep.train.torch in every rank also {', '.join(more)}"
        yield from (f"       not {line}" for line in value["levels_missing"])


def _problem_text(problem: TableRow) -> str:
    return f"{problem['field']}: {problem['message']}"


def explanation(value: Value) -> Page:
    yield _bold(f"{value['name']} on cluster {value['cluster']}, {value['dialect']} document")
    yield from (f"note   {_problem_text(note)}" for note in value["notes"])
    yield from _levels(value)
    different: list[TableRow] = []
    for phase in value["phases"]:
        yield ""
        yield _bold(f"phase {phase['name']}, {_nodes(phase['nodes'])}")
        same = next((other["name"] for other in different if _are_alike(phase, other)), None)
        yield from _phase(phase) if same is None else (f"everything as in phase {same}",)
        different.append(phase)


def _are_alike(phase: TableRow, other: TableRow) -> bool:
    """Whether all that is printed below the headings is the same."""
    return {**phase, "name": "", "nodes": {}} == {**other, "name": "", "nodes": {}}


def _phase(phase: TableRow) -> Page:
    if "counted" in phase:
        yield from _counted(phase["counted"])
    yield from map(_rule, phase["rules"])
    yield from (_budget(budget) for budget in phase["budgets"])
    yield from (_series(series) for series in phase["series"])
    yield from _endings(phase)
    yield from _watched(phase)
    differs = any(fault["with_library"] for fault in phase["faults"])
    yield table(phase["faults"], (*FAULTS, WITH_LIBRARY) if differs else FAULTS)
    if phase["code_levels"]:
        yield table(phase["code_levels"], BY_CODE_LEVEL)
        yield from map(_repeat_line, phase["repeats"])
    for fault in phase["faults"]:
        yield from (f"{fault['class']} passes over {line}" for line in fault["passed_over"])


def _counted(counts: TableRow) -> Iterator[str]:
    """What a running job has used and has in a row, which the answers below depend on."""
    yield f"as of now; restarts so far: {counts['restarts']}"
    for name, budget in counts["budgets"].items():
        if budget["used"] or budget["limit"] is not None:
            limit = "no limit" if budget["limit"] is None else f"of {budget['limit']}"
            yield f"budget {name}: {budget['used']} used, {limit}"
    for name, restarts in counts["series"].items():
        if restarts:
            yield f"series {name}: {restarts} in a row"


def _nodes(nodes: TableRow) -> str:
    least, most = nodes["min"], nodes["wanted"]
    if least != most:
        return f"{least} to {most} nodes"
    return "1 node" if most == 1 else f"{most} nodes"


def _rule(rule: TableRow) -> str:
    action = {"levels": " → ".join(rule["levels"]), "class": f"as {rule['class']}"}
    why = f" ({rule['why']})" if rule["why"] else ""
    return f"{rule['origin']}: {shown(rule['match'])}: {action.get(rule['action'], rule['action'])}{why}"


def _budget(budget: TableRow) -> str:
    limit = "counted, no limit" if budget["limit"] is None else f"at most {budget['limit']}"
    return (
        f"budget {budget['name']}: {limit}, when {budget['when']}, "
        f"for levels {shown(budget['levels'])} and owners {shown(budget['owners'])}"
    )


def _series(series: TableRow) -> str:
    return f"series {series['name']}: {series['limit']} in a row, the next one ends the phase"


def _endings(phase: TableRow) -> Iterator[str]:
    limit = phase["no_progress_restarts"]
    if limit is not None:
        owners = shown(phase["no_progress_owners"])
        what = "restarts without a new checkpoint" if phase["only_checkpoints"] else "restarts"
        yield f"no progress: {limit} {what}, the next fault ends the phase (owners {owners})"
    if phase["rollbacks"] is not None:
        yield f"rollback behind a whole checkpoint: at most {phase['rollbacks']} in a row"
    if phase["suspects_checkpoints"]:
        yield "two runs in a row that end alike make the newest checkpoint suspect: rollback, once"
    if phase["needs_checkpoint"]:
        yield "a failure before anything was saved ends the phase"
    if phase["checks_numbers_steps"] is not None:
        steps = phase["checks_numbers_steps"]
        yield f"after numbers went wrong they are checked for {steps} steps, until the cause is known"
    if phase["escalates"]:
        yield "the same class again without progress starts one level further down"
    if phase["spacing_s"]:
        waits = ", ".join(f"{seconds:g}" for seconds in phase["spacing_s"])
        yield f"restarts without progress wait {waits} s, then the last of these"


def _watched(phase: TableRow) -> Iterator[str]:
    """What is looked at before a start, and for how long nothing may happen after it."""
    limits = phase["limits"]
    if spares := phase["spares"]:
        what = "pod stands by" if spares == 1 else "pods stand by"
        yield f"{spares} {what}: the first slots that need another pod get them"
    if phase["prechecked"]:
        yield "every new place is checked before the command runs there"
    if limits["still_s"] is not None:
        yield f"suspended: neither I/O nor the use of devices changes for {limits['still_s']:g} s"
    elif limits["hang_s"] is not None:
        yield f"a hang: no new step for {limits['hang_s']:g} s"
    if limits["run_s"] is not None:
        yield f"after {limits['run_s']:g} s the job ends: {limits['run_s_over']}"


def _ladder(fault: TableRow) -> str:
    return " → ".join(_rung(rung) for rung in fault["ladder"])


def _rung(rung: TableRow) -> str:
    bills = [f"bills {name}" for name in rung["bills"]]
    marks = [*bills, *(f"in series {name}" for name in rung["counts_in"])]
    marks += ["isolates"] if rung["isolates"] else []
    if "standby" in rung["steps"]:
        marks.append("once a backup pod is ready; without one the job stays")
    return f"{rung['level']} ({', '.join(marks)})" if marks else str(rung["level"])


def code(value: Value) -> Page:
    """What a fault code is; `document` says what a job would do about it."""
    yield _bold(f"{value['code']}: {value['means']}")
    names = ("vendor", "level", "severity", "owner", "heals", "class")
    yield facts(
        (
            *((name, value[name]) for name in names),
            ("known from", value["source"]),
            ("because", value["rule"]),
        )
    )
    for phase in value["document"]["phases"] if value["document"] else ():
        yield ""
        yield _bold(f"under {value['document']['name']}, phase {phase['name']}")
        yield _ladder(phase)
        repeats = phase["repeats"]
        if repeats is not None and (
            repeats["counts_over_jobs"] or phase["again"] != phase["ladder"]
        ):
            yield f"{_repeats(repeats)}: {_ladder({'ladder': phase['again']})}"
        yield shown(phase["reason"])


def _repeats(rule: TableRow) -> str:
    """`2 times within 86400 s on one device, isolated then until an operator releases it`."""
    release = "an operator releases it"
    if rule["release_s"] is not None:
        release = f"it was quiet for {rule['release_s']:g} s"
    isolated = f", isolated then until {release}" if rule["counts_over_jobs"] else ""
    return f"{rule['times']} times within {rule['window_s']:g} s on one device{isolated}"


def _repeat_line(rule: TableRow) -> str:
    codes = rule["codes"]
    some = ", ".join(codes[:3]) + (f" and {len(codes) - 3} more" if len(codes) > 3 else "")
    return f"{some or 'any other code that is answered'}: {_repeats(rule)}"


FAULTS = (
    Column("FAULT", "class", is_pinned=True),
    Column("OWNER", "owner"),
    Column("WHAT HAPPENS", _ladder, wraps=True),
)
BY_CODE_LEVEL = (Column("LEVEL OF A CODE", "code_level", is_pinned=True), *FAULTS[1:])
WITH_LIBRARY = Column(
    "WITH THE TRAIN LIBRARY", lambda fault: " → ".join(fault["with_library"] or ()), wraps=True
)


# -- jobs ---------------------------------------------------------------------------------------


def submitted(value: Value) -> Page:
    yield facts((("job", value["id"]), ("run", value["run_id"]), ("ui", value["ui"])))
    if value.get("was_used"):
        yield f"it goes on from its newest whole checkpoint, which `everstep status {value['id']}` names"
    yield from (f"note   {_problem_text(note)}" for note in value["notes"])


ID_WIDTH = 64  # no ID that `submit` takes is longer; other clients may take longer ones


def restart_counts(job: TableRow) -> str:
    """`7 (2 rescheduled, 1 failed)`: all restarts, those with new pods, those that failed."""
    kinds = {"rescheduled": job.get("reschedules"), "failed": job.get("failed_levels")}
    parts = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    return f"{job['restarts']} ({parts})" if parts else str(job["restarts"])


JOBS = (
    Column("ID", "id", width=ID_WIDTH, is_pinned=True),
    Column("STATE", "state", is_pinned=True),
    Column("PHASE", "phase"),
    Column("STEP", "step"),
    Column("RESTARTS", restart_counts),
    Column("AGE", lambda job: age(job["age_s"])),
    Column("LABELS", lambda job: ", ".join(f"{k}={v}" for k, v in sorted(job["labels"].items()))),
)

AGES = ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (60, 60, "m"), (0, 1, "s"))
"""From so many seconds on, in this unit."""


def age(passed_s: float) -> str:
    """`59s`, `119m`, `47h`, `2d`: two figures are enough."""
    passed = int(passed_s)
    return next(f"{passed // unit}{name}" for least, unit, name in AGES if passed >= least)


def jobs(value: list[Value], *, left: int = 0, is_choosing: bool = False) -> Page:
    if not value:
        yield "no job like that" if is_choosing else "no jobs; `everstep submit FILE` starts one"
        return
    yield table(value, JOBS)
    if left:
        yield f"and {left} more; --limit says how many are shown"


def cause(record: TableRow) -> str:
    fault = record["fault"]
    return f"{fault['code'] or fault['class']}{_where(fault)}"


def _where(fault: TableRow) -> str:
    device = f"/{fault['device']}" if fault["device"] is not None else ""
    return f" on {fault['node']}{device}" if fault["node"] else ""


def cause_and_end(record: TableRow) -> str:
    """`crash of rank 0 on n2: signal 9`: of one rank also how it ended, with which the reason begins."""
    fault = record["fault"]
    if fault["rank"] is None or fault["code"]:
        return cause(record)
    rank = f"{fault['class']} of rank {fault['rank']}"
    label, _, end = record["reason"].partition("; ")[0].partition(": ")
    return f"{rank}{_where(fault)}" + (f": {end}" if label == rank and end else "")


def _took(record: TableRow) -> str:
    took_s = record_rows.took_s(record)
    return "-" if took_s is None else f"{took_s:.1f} s"


RESTARTS = (
    Column("N", "n", is_pinned=True),
    Column("PHASE", "phase"),
    Column("AT", _time("at")),
    Column("CAUSE", cause, is_pinned=True),
    Column("LEVEL", "level", is_pinned=True),
    Column("RESULT", record_rows.result_in_words, is_pinned=True),
    Column("TOOK", _took),
    Column("FROM STEP", "resume_step"),
    Column("WHY", "reason", wraps=True),
)


LIFE = Column("LIFE", "life", is_pinned=True)
"""Shown where the ID of a job was used several times."""


def restarts(value: list[Value], *, is_brief: bool = False, has_lives: bool = False) -> Page:
    columns = (LIFE, *RESTARTS) if has_lives else RESTARTS
    yield table(value, columns, is_brief=is_brief) if value else "no restarts"


EVENTS = (
    Column("TIME", _time("time"), is_pinned=True),
    Column("LEVEL", "level", is_pinned=True),
    Column("SOURCE", "source"),
    Column("EVENT", "event"),
    Column("MESSAGE", "message", wraps=True),
)


def events(value: list[Value], *, has_lives: bool = False) -> Page:
    columns = (LIFE, *EVENTS) if has_lives else EVENTS
    yield table(value, columns) if value else "no events"


CHANGES = (
    Column("AT", _time("at"), is_pinned=True),
    Column("BY", "by"),
    Column(
        "FROM", lambda change: "a restart for it" if change["when"] == "now" else "the next restart"
    ),
    Column("CHANGED", lambda change: " ".join(change["what"]), wraps=True),
)


def document(value: Value) -> Page:
    from everstep.documents.text import to_yaml  # YAML, for this page alone

    yield from to_yaml(value["document"]).splitlines()
    if value["changes"]:
        yield ""
        if value["as_of"]:
            yield f"# as of {value['as_of']}; later changes are not in it"
        yield table(value["changes"], CHANGES)


def why(value: Value) -> Page:
    yield from value["text"].splitlines()


def command_result(value: Value) -> Page:
    """The page of a command to a job. The state is that in which the job accepted it, before it acts."""
    if value.get("joined"):
        joined = shown(value["joined"])
        yield f"{value['id']}: {value['command']} joins {joined}, which is under way"
        return
    done = "was accepted before; the job is" if value.get("again") else "accepted; the job was"
    yield f"{value['id']}: {value['command']} {done} {shown(value.get('state'))}"


def save_result(value: Value) -> Page:
    yield f"{value['id']}: {shown(value['text'])}"


def reported(value: Value) -> Page:
    faults = "1 fault is" if value["reported"] == 1 else f"{value['reported']} faults are"
    elsewhere = value["elsewhere"]
    rest = f"; {are(elsewhere)} on nodes that it does not have" if elsewhere else ""
    yield f"{value['id']}: {faults} reported{rest}"


def are(count: int) -> str:
    """`1 is`, `2 are`."""
    return f"{count} {'is' if count == 1 else 'are'}"


# -- nodes --------------------------------------------------------------------------------------


def _devices(node: TableRow) -> str | None:
    """`4 of 8 used; 3 80E01801`: how many jobs have, and what those show that are not sound."""
    devices = node["devices"] or ()
    broken = [device for device in devices if device["health"] != "ok"]
    used = [f"{node['devices_used'] or 0} of {len(devices)} used"] if devices else []
    shows = [" ".join([str(d["index"]), *(d["codes"] or [d["health"]])]) for d in broken]
    return "; ".join([*used, *shows]) or None


def _counts(node: TableRow) -> str | None:
    """`3 80E01801 1 of 2`: device, code, how often, and how many times isolate the device."""
    counts = node.get("counts") or ()
    return (
        "; ".join(f"{c['device']} {c['code']} {c['times']} of {c['limit']}" for c in counts) or None
    )


def _why(node: TableRow) -> str | None:
    """Why it is as it is, which agents there do not answer, and which jobs avoid it for what."""
    maintenance, failing = node.get("maintenance"), node.get("failing")
    parts = [node["reason"], *(node.get("silent") or ())]
    parts += [f"its cluster does not store this yet: {failing}"] if failing else []
    parts += [maintenance] if maintenance != node["reason"] else []
    parts += [
        f"{row['job']} avoids it until {row['until']} ({row['why']})"
        for row in node.get("avoided_by") or ()
    ]
    return "; ".join(filter(None, parts)) or None


NODES = (
    Column("NODE", "name", is_pinned=True),
    Column("STATE", "state", is_pinned=True),
    Column("JOBS", "jobs"),
    Column("DEVICES", _devices),
    Column("COUNTED", _counts),
    Column("BY", "by"),
    Column("SINCE", _time("since")),
    Column("UNTIL", _time("until")),
    Column("WHY", _why, wraps=True),
)


def nodes(value: list[Value]) -> Page:
    if not value:
        yield "no node is isolated"
        return
    yield table(folded(value, _merged_nodes, "name", "device_use"), NODES)
    if uses := [use for node in value for use in node.get("device_use") or ()]:
        yield ""
        yield table(uses, device_tables.OF_NODES)


def _merged_nodes(same: list[TableRow]) -> TableRow:
    return {**same[0], "name": span([node["name"] for node in same])}


def isolated(value: Value) -> Page:
    name, cluster = value["node"], value["cluster"]
    yield f"no new pod gets {name} on cluster {cluster}: `everstep release {name}` ends that"


def released(value: Value) -> Page:
    jobs = f" by {', '.join(value['jobs'])}" if value.get("jobs") else ""
    yield f"{value['node']} may be used again on cluster {value['cluster']}{jobs}"
