"""What operators may say: what is refused is refused with a sentence, what is accepted can be kept."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from everstep.core.bounds import FIRST_SECOND, LAST_SECOND
from everstep.core.errors import CommandRejected
from everstep.core.loop import commands
from everstep.core.loop.commands import KEYS
from everstep.core.spec import Budget, Policy
from everstep.core.state import AvoidedNode, is_applied
from tests.support.builders import running

ARGUMENTS: dict[str, dict[str, Any]] = {
    "pause": {},
    "resume": {},
    "stop": {},
    "restart": {},
    "report_fault": {"kind": "subhealth.power"},
    "hot_update": {"patch": {"nodes": 2}},
    "set_budget": {"name": "any", "limit": 1},
    "adopt": {},
    "release": {"node": "n1"},
    "checkpoint": {},
}
"""The least that each of them has to say."""


# -- Nothing said -------------------------------------------------------------------------------

LEFT_OUT = [
    (name, key) for name in KEYS for key in ("id", *KEYS[name]) if key not in ARGUMENTS[name]
]


@pytest.mark.parametrize(("name", "key"), LEFT_OUT)
def test_null_says_nothing(name: str, key: str) -> None:
    job = running(Policy(budgets=(Budget(name="any", limit=9),)), save_signal="SIGUSR1")
    if name == "resume":
        job.command("pause")
    if name == "release":
        avoided = AvoidedNode(node="n1", why="precheck", since=0.0)
        job.state = replace(job.state, avoided=(avoided,))
    commands.accept(job.state, name, {**ARGUMENTS[name], key: None})


def test_a_limit_of_null_is_none() -> None:
    job = running(Policy(budgets=(Budget(name="any", limit=9),)))
    job.command("set_budget", name="any", limit=None)
    assert job.state.limits == {"any": None}


def test_a_patch_is_needed_before_the_job_is_known() -> None:
    wrong: tuple[dict[str, Any], ...] = ({}, {"patch": None}, {"patch": {}})
    for argument in wrong:
        with pytest.raises(CommandRejected, match="patch is a fragment"):
            commands.parse_arguments("hot_update", argument)


# -- Numbers and times --------------------------------------------------------------------------

ABSURD = (math.inf, -math.inf, math.nan, 10**400, -(10**400), 1e300)
NUMERIC = [
    (name, key)
    for name, keys in KEYS.items()
    for key, kind in keys.items()
    if {int, float} & {*(kind if isinstance(kind, tuple) else (kind,))}
]


@pytest.mark.parametrize("value", ABSURD, ids=[str(value)[:9] for value in ABSURD])
@pytest.mark.parametrize(("name", "key"), NUMERIC)
def test_no_key_takes_a_number_that_nobody_can_count_with(
    name: str, key: str, value: float
) -> None:
    with pytest.raises(CommandRejected, match=f"^{name}: {key} ") as error:
        commands.parse_arguments(name, {**ARGUMENTS[name], key: value})
    assert len(str(error.value)) < 250


TIMES: tuple[tuple[str, Any, str], ...] = (
    ("milliseconds", 1_795_295_905_000, "from 1970 to 9999, .* are these milliseconds?"),
    ("before 1970", -1, "from 1970 to 9999"),
    ("after 9999", 253_402_300_800, "from 1970 to 9999"),
    ("before the year 1", "0001-01-01T00:00:00+23:00", "from 1970 to 9999"),
    ("after 9999, by its zone", "9999-12-31T23:59:59-23:00", "from 1970 to 9999"),
    ("no time", "noon", "seconds or a time like 2026-01-31T12:00:00Z"),
)


@pytest.mark.parametrize(("at", "error"), [row[1:] for row in TIMES], ids=[row[0] for row in TIMES])
def test_a_report_of_a_time_out_of_this_world_is_refused(at: Any, error: str) -> None:
    with pytest.raises(CommandRejected, match=f"report_fault: at is .*{error}"):
        commands.parse_arguments("report_fault", {"kind": "node.down", "at": at})


def test_what_an_earlier_version_let_in_wedges_no_job() -> None:
    """A replay comes by here again: it does not check whether it would be accepted today."""
    for at in (math.inf, -math.inf, math.nan, 1e300, "0001-01-01T00:00:00+23:00"):
        args = {"kind": "node.down", "at": at}
        fact = commands.reported_fact(args, at=0.0, earlier_ids=frozenset())
        assert FIRST_SECOND <= fact.at <= LAST_SECOND


def test_a_patch_with_an_endless_number_is_refused() -> None:
    """On its way it would become null, which takes the key away."""
    patch = {"phases": [{"name": "main", "limits": {"first_step_s": math.inf}}]}
    with pytest.raises(CommandRejected, match="hot_update: patch may not hold an infinite number"):
        commands.parse_arguments("hot_update", {"patch": patch})


# -- Texts --------------------------------------------------------------------------------------

TEXTS = [
    (name, key)
    for name, keys in KEYS.items()
    for key, kind in {"id": str, **keys}.items()
    if str in {*(kind if isinstance(kind, tuple) else (kind,))}
]


@pytest.mark.parametrize(("name", "key"), TEXTS)
def test_no_key_takes_a_text_that_nobody_can_keep(name: str, key: str) -> None:
    """A close repeats the message in five places, of two megabytes together."""
    with pytest.raises(CommandRejected, match=f"{name}: {key} has more than [0-9]+ characters"):
        commands.parse_arguments(name, {**ARGUMENTS[name], key: "x" * 1_900_000})


def test_a_reason_may_be_a_page_and_a_name_as_long_as_names_are() -> None:
    job = {"reason": "x" * 2_000, "id": "y" * 253}
    assert commands.parse_arguments("stop", job) == job


LONG: dict[str, tuple[str, Any]] = {
    "a text instead of an object": ("stop", "x" * 1_900_000),
    "an unknown key": ("stop", {"x" * 1_900_000: 1}),
    "a text instead of a number": ("stop", {"grace_s": "x" * 1_900_000}),
    "a list": ("report_fault", {"kind": ["x"] * 100_000}),
    "a level": ("restart", {"level": "x" * 250}),
    "a patch of one text": ("hot_update", {"patch": {"env": {"A": "x" * 1_000_000}}}),
    "a patch of many": (
        "hot_update",
        {"patch": {"env": {f"A{i}": "x" * 99 for i in range(10_000)}}},
    ),
    "a patch of nothing much": ("hot_update", {"patch": {"mounts": [[]] * 5 + [1] * 500_000}}),
}


@pytest.mark.parametrize(("name", "value"), LONG.values(), ids=LONG)
def test_a_refusal_is_short_whatever_was_said(name: str, value: Any) -> None:
    with pytest.raises(CommandRejected) as error:
        commands.parse_arguments(name, value)
    assert len(str(error.value)) < 500


# -- Identities ---------------------------------------------------------------------------------


def test_identities_take_little_room_however_long_they_are() -> None:
    """A job keeps 1,000 of commands and 500 of facts, and hands them from run to run."""
    long = "\N{GRINNING FACE}" * 240
    job = running(Policy(budgets=(Budget(name="any", limit=9),)))
    for number in range(20):
        job.command("set_budget", name="any", limit=3, id=f"{long}{number}")
    assert len(set(job.state.applied_ids)) == 20
    assert max(len(one.encode()) for one in job.state.applied_ids) <= 100
    assert is_applied(job.state, f"{long}19")
    assert not is_applied(job.state, f"{long}20")
    for args in ({"id": long}, {"code": long}, {"code": long, "at": 5}):
        report = {"kind": "node.down", "node": "n1", **args}
        fact = commands.reported_fact(report, at=9.0, earlier_ids=frozenset())
        assert len(fact.id.encode()) <= 110
        again = commands.reported_fact(report, at=9.0, earlier_ids=frozenset({fact.id}))
        assert again.id == fact.id


# -- When a fault was ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_s", "why"),
    [
        (0.0, ""),
        (7_200.0, ""),
        (7_200.0 + 3_601.0, "in the future"),
        (-7 * 86_400.0 - 1.0, "more than 7 days ago"),
    ],
)
def test_a_fault_is_reported_with_its_time_two_hours_into_a_pause(at_s: float, why: str) -> None:
    """All that time the job has not seen the clock of its cluster."""
    job = running()
    job.command("pause")
    state = replace(job.state, now=1_700_000_000.0)
    args = {"kind": "subhealth.power", "at": state.now + at_s}
    now = state.now + 7_200.0
    if not why:
        assert commands.accept(state, "report_fault", args, now=now).args == args
        return
    with pytest.raises(CommandRejected, match=why):
        commands.accept(state, "report_fault", args, now=now)
