"""The page of `status` and `watch`: where a job is, from its pinned JSON shape."""

from __future__ import annotations

from everstep.chronicle.shapes import seconds
from everstep.cli import device_tables
from everstep.cli.output import Page, shown
from everstep.cli.pages import Value, age, restart_counts
from everstep.cli.tables import Column, TableRow, facts, folded, span, table
from everstep.core import slots

PODS = (
    Column("SLOT", "slot", is_pinned=True, width=30),
    Column("NODE", "node", is_pinned=True),
    Column("STATE", "state", is_pinned=True),
    Column("SCHEDULED", "schedule_count"),
    Column("STARTED", "process_start_count"),
)


def _checkpoint(value: Value) -> object:
    """The step of the checkpoint, or its name if it has no step."""
    step, path = value["checkpoint_step"], value.get("checkpoint_path")
    return path.rpartition("/")[2] if step is None and path else step


def _resumed(value: Value) -> str | None:
    """From which checkpoint the newest start went on. None: from none."""
    start = value.get("resumed_from") or {}
    return f"from {start['text']}" if start.get("path") or ";" in start.get("text", "") else None


def status(value: Value) -> Page:
    yield facts(
        (
            ("job", value["id"]),
            ("as of", _as_of(value)),
            ("state", value["state"]),
            ("reason", value.get("reason")),
            ("warning", [warning["message"] for warning in value.get("warnings") or ()]),
            ("waits for", value["waiting_for"]),
            ("waiting", _waiting(value)),
            ("recovery", value["recovery"]),
            ("phases", [f"{phase['name']} {phase['state']}" for phase in value["phases"]]),
            ("started", _started(value)),
            ("submitted", _submitted(value)),
            ("generation", value["generation"]),
            ("step", _step(value)),
            ("steps from", _quoted(value.get("steps_from"))),
            ("not seen", _age_of_look(value)),
            ("still", _still(value)),
            ("checkpoint", _checkpoint(value)),
            ("resumed", _resumed(value)),
            ("in memory", _in_memory(value.get("snapshot_step"))),
            ("prewarmed", _prewarmed(value)),
            ("spares", _spares(value.get("spares"))),
            ("restarts", restart_counts(value)),
            ("done again", _done_again(value)),
            ("budgets", [_used(name, budget) for name, budget in value["budgets"].items()]),
            ("series", {name: count for name, count in value["series"].items() if count}),
            ("isolated", _some(value["isolated_nodes"])),
            ("avoids", _avoided(value)),
            ("not with", _sizes(value.get("sizes", {}).get("failed"))),
            ("time scale", None if value.get("time_scale") in (None, 1) else value["time_scale"]),
            ("links", [f"{name} {at}" for name, at in (value.get("links") or {}).items()]),
            ("ui", value["ui"]),
        )
    )
    if value["pods"]:
        yield ""
        yield table(folded(value["pods"], _pods, "slot", "node", "uid", "first_rank"), PODS)
    if uses := value.get("device_use"):
        yield ""
        yield table(uses, device_tables.OF_JOB)


def _waiting(value: Value) -> str | None:
    """`since 2026-01-31 12:00:07Z, until 2026-01-31 12:10:07Z at most`."""
    since, until = value.get("waiting_since"), value.get("waiting_until")
    times = [f"since {_shown_time(since)}"] if since else []
    times += [f"until {_shown_time(until)} at most"] if until else []
    return ", ".join(times) or None


STILL_LEAST_S = 5.0
"""Shorter silences are shown only where they come near to their limit."""


def _started(value: Value) -> str | None:
    """When its processes first began, and how long the job is there."""
    at, duration_s = value.get("started_at") or value.get("created_at"), value.get("duration_s")
    if at is None:
        return None
    what = "took" if value.get("ended_at") else "here for"
    passed = "" if duration_s is None else f", {what} {age(duration_s)}"
    return f"{_shown_time(at)}{passed}"


def _submitted(value: Value) -> str | None:
    """`3 times`; None for a job that was submitted once."""
    times = value.get("submissions") or 1
    return f"{times} times" if times > 1 else None


def _shown_time(at: str) -> str:
    """A moment of the JSON, without its milliseconds."""
    return f"{at[:10]} {at[11:19]}Z"


def _step(value: Value) -> str | None:
    """`120, 3 s ago`: the age of the step, not of the look that saw it."""
    step, at, as_of = value["step"], value.get("step_at"), value.get("as_of")
    if step is None or not at or not as_of:
        return step if step is None else str(step)
    age_s = value.get("step_age_s")
    if age_s is None:  # of a job that has ended, one in virtual time, or one without a worker
        age_s = max(0.0, seconds(as_of) - seconds(at))
        age_s += value["age_s"] if value.get("silence") else 0.0
    return f"{step}, {age(age_s)} ago"


def _quoted(text: str | None) -> str | None:
    return f"'{text}'" if text else None


UNSEEN_LEAST_S = 10.0


def _age_of_look(value: Value) -> str | None:
    """`for 52s: API server ...`: since when no look at the job succeeded, if that is long ago."""
    age_s = value.get("seen_age_s")
    if age_s is None or age_s < UNSEEN_LEAST_S or value.get("silence"):
        return None
    why = f": {value['unseen_why']}" if value.get("unseen_why") else ""
    return f"for {age(age_s)}{why}"


def _done_again(value: Value) -> str | None:
    """`20 steps`: of all runs that are over and were followed by one that trains."""
    if not value["restarts"] or value.get("lost_steps", 0) == 0:
        return None
    return (
        "an unknown number of steps"
        if value["lost_steps"] is None
        else f"{value['lost_steps']} steps"
    )


def _still(value: Value) -> str | None:
    """`45s of 300s`: how long nothing has moved that counts, and how long that may last."""
    still_s, limit_s = value.get("still_s"), value.get("still_limit_s")
    if still_s is None or limit_s is None or still_s < min(STILL_LEAST_S, limit_s / 2):
        return None
    if value.get("silence") or _age_of_look(value):  # nothing is judged that is not seen
        return None
    return f"for {still_s:.0f} s of {limit_s:g} s, then it counts as a hang"


def _sizes(failed: list[int] | None) -> str | None:
    return f"{', '.join(map(str, failed))} nodes" if failed else None


def _avoided(value: Value) -> list[str]:
    """`n2 until its cordon or taint is removed (maintenance: the node is drained)`."""
    nodes = value.get("avoided_nodes") or []
    return _some([f"{node['node']} until {node['until']} ({node['why']})" for node in nodes])


NAMES_SHOWN = 16


def _some(names: list[str]) -> list[str]:
    """The JSON has them all."""
    more = len(names) - NAMES_SHOWN
    return [*names[:NAMES_SHOWN], f"and {more} more"] if more > 0 else names


def _as_of(value: Value) -> str | None:
    """The age of the data, if no worker answered."""
    if not value.get("silence"):
        return None
    return f"{value['as_of']}, {age(value['age_s'])} ago: {value['silence']}"


def _pods(pods: list[TableRow]) -> TableRow:
    return {
        **pods[0],
        "slot": slots.format_ranges(sorted(pod["slot"] for pod in pods)).replace(",", " "),
        "node": span([shown(pod["node"]) for pod in pods]),
    }


def _in_memory(step: int | None) -> str | None:
    """From which step a restart in place would go on."""
    return None if step is None else f"step {step} of every rank"


def _prewarmed(value: Value) -> str | None:
    """What the helpers hold that ranks are forked from: `torch, torch._dynamo; 612 MB held`."""
    size, modules = value.get("prewarm_bytes"), value.get("prewarm_modules") or ()
    return None if size is None else f"{', '.join(modules)}; {size / 1e6:.0f} MB held"


def _spares(spares: TableRow | None) -> str | None:
    """`1 of 2 ready, waiting for room for 1 more pod`; None: the job wants none."""
    if not spares:
        return None
    wait = f", waiting for {spares['waiting_for']}" if spares["waiting_for"] else ""
    return f"{spares['ready']} of {spares['wanted']} ready{wait}"


def _used(name: str, budget: TableRow) -> str:
    limit, used = budget["limit"], budget["used"]
    if limit is None:
        return f"{name} {used}"
    return f"{name} {used} of {limit}, {max(0, limit - used)} left"
