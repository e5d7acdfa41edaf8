"""What the catalogue adds to a fact, and that the reporter's own words are never changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.local_activities import LocalActivities
from everstep.core.deciding.decision_input import decision_input
from everstep.core.deciding.playbook import row_for
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level
from everstep.core.loop import commands
from everstep.faults.catalogue import entries, look_up
from everstep.faults.meanings import with_meaning
from everstep.faults.severities import LEVELS, SEVERITIES
from tests.support.builders import ScriptedJob, fact, running

_C = FaultClass
MINOR, MAJOR = {"severity": "minor", "heals": True}, {"severity": "major", "heals": True}
CRITICAL = {"severity": "critical", "heals": False}
WARNING = {"severity": "warning", "heals": True}
USER, NOT_USER = {"user_induced": True}, {"user_induced": False}
NOTHING = {"severity": None, "heals": None}
STUBBORN = {**MINOR, "heals": False}
UNWELL = {"severity": "warning", "heals": True, "sub_healthy": True}
TO_BE_LEFT = {"severity": "major", "heals": False, "sub_healthy": True}
LEVEL = {"level": "RestartNPU"}


def graded(level: str) -> dict[str, Any]:
    """The default severity where none is given."""
    return {"level": level}


SEPARATE, BUSINESS, REQUEST, IGNORED = (
    graded("SeparateNPU"),
    graded("RestartBusiness"),
    graded("RestartRequest"),
    graded("NotHandleFault"),
)


def device_fact(code: str | None, **details: Any) -> Fact:
    return fact("device.fault", node="n1", device=0, code=code, **details)


ROWS: tuple[tuple[str, str, dict[str, Any], dict[str, Any], FaultClass], ...] = (
    ("a code alone", "80E01801", {}, {**MINOR, **BUSINESS}, _C.DEVICE),
    ("a critical code alone", "80E18402", {}, {**CRITICAL, **SEPARATE}, _C.DEVICE_FATAL),
    ("a user's code alone", "80CB8002", {}, {**MINOR, **USER, **REQUEST}, _C.DEVICE_USER),
    ("severity wins", "79", {"severity": "minor"}, MINOR, _C.DEVICE),
    ("severity wins upwards", "80E01801", {"severity": "critical"}, CRITICAL, _C.DEVICE_FATAL),
    ("its spelling does not matter", "80E01801", {"severity": "Critical"}, CRITICAL, _C.DEVICE_FATAL),
    ("a hint is a warning", "79", {"severity": "Hint"}, {"severity": "warning", "heals": True}, _C.SUBHEALTH),
    ("heals wins", "79", {"heals": True}, MAJOR, _C.DEVICE),
    ("not healing shows when it is tried", "80E01801", {"heals": False}, STUBBORN, _C.DEVICE),
    ("what cannot heal is not tried", "79", {"heals": False}, CRITICAL, _C.DEVICE_FATAL),
    ("both win", "79", {"severity": "critical", "heals": True}, {**CRITICAL, "heals": True}, _C.DEVICE_FATAL),
    ("the owner wins", "80CB8002", NOT_USER, {**MINOR, **NOT_USER, **REQUEST}, _C.DEVICE),
    ("the owner wins for any code", "80E01801", USER, {**MINOR, **USER, **BUSINESS}, _C.DEVICE_USER),
    ("nothing said is nothing", "80E01801", NOTHING, {**MINOR, **BUSINESS}, _C.DEVICE),
    ("what else is said stays", "80E01801", {"bank": 3}, {**MINOR, "bank": 3, **BUSINESS}, _C.DEVICE),
    ("sub-health stops nothing", "81AD8605", {}, {**UNWELL, **graded("SubHealthFault")}, _C.SUBHEALTH),
    ("to be left is sub-health", "110001024", {}, {**TO_BE_LEFT, **graded("PreSeparateNPU")}, _C.SUBHEALTH),
    ("a severity says it is more", "81AD8605", {"severity": "major"}, MAJOR, _C.DEVICE),
    ("the cluster's level wins", "80E18402", LEVEL, {**MAJOR, **LEVEL}, _C.DEVICE),
    ("an unknown code", "80FFFFFF", {}, {**CRITICAL, **SEPARATE}, _C.DEVICE_FATAL),
    ("an unknown code, hint", "80FFFFFF", {"severity": "hint"}, {**WARNING, **IGNORED}, _C.SUBHEALTH),
    ("an unknown code, minor", "80FFFFFF", {"severity": "Minor"}, {**WARNING, **IGNORED}, _C.SUBHEALTH),
    ("an unknown code, major", "80FFFFFF", {"severity": "major"}, {**CRITICAL, **SEPARATE}, _C.DEVICE_FATAL),
    ("an unknown code that heals", "80FFFFFF", {"heals": True}, MAJOR, _C.DEVICE),
    ("an unknown major code that heals", "80FFFFFF", {"severity": "major", "heals": True}, MAJOR, _C.DEVICE),
    ("an unknown code of a level", "80FFFFFF", {"severity": "minor", **LEVEL}, {**MINOR, **LEVEL}, _C.DEVICE),
    ("a separated code of a user", "80C98002", SEPARATE, {**CRITICAL, **SEPARATE}, _C.DEVICE_FATAL),
    ("an unknown code of an observer, major", "219999999", {"severity": "major"}, MAJOR, _C.DEVICE),
    ("a user's code of another level", "80C98002", LEVEL, {**MAJOR, **USER, **LEVEL}, _C.DEVICE_USER),
    ("nobody's code", "ecc", {}, MAJOR, _C.DEVICE),
)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "optional_details", "details", "cls"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_the_catalogue_fills_in_and_the_reporter_wins(
    code: str, optional_details: dict[str, Any], details: dict[str, Any], cls: FaultClass
) -> None:
    meaning = with_meaning(device_fact(code, **optional_details))
    assert meaning.details == details
    assert row_for(meaning).cls is cls
    assert with_meaning(meaning) == meaning
    assert meaning.code == code, (
        "the code stays as it was spelt: rules and histories know it by that"
    )


CODES = st.one_of(st.sampled_from([entry.code for entry in entries()]), st.text(min_size=1))
DETAILS = st.fixed_dictionaries(
    {},
    optional={
        "severity": st.one_of(st.sampled_from(SEVERITIES), st.text()),
        "heals": st.booleans(),
        "user_induced": st.booleans(),
        "level": st.one_of(st.sampled_from(sorted(LEVELS)), st.text()),
        "bank": st.integers(),
    },
)


@given(code=CODES, details=DETAILS)
def test_whatever_is_said_is_kept_and_every_fact_has_an_answer(
    code: str, details: dict[str, Any]
) -> None:
    meaning = with_meaning(device_fact(code, **details))
    expected = {key: value for key, value in details.items() if key != "severity"}
    assert meaning.details.items() >= expected.items()
    if details.get("severity") in SEVERITIES and not look_up(code).is_graded_by_report:
        assert meaning.details["severity"] == details["severity"]
    assert {"severity", "heals"} <= meaning.details.keys()
    assert with_meaning(meaning) == meaning


def test_twice_is_the_same_as_once() -> None:
    facts = [with_meaning(device_fact(entry.code)) for entry in entries()]
    assert [with_meaning(once) for once in facts] == facts


@pytest.mark.parametrize(
    "other",
    [
        device_fact(None),
        device_fact(""),
        fact("device.healed", code="79"),
        fact("device.heal_failed", code="79"),
        fact("node.down", code="79"),
    ],
    ids=lambda fact: f"{fact.kind} {fact.code}",
)
def test_only_device_faults_with_a_code_are_told(other: Fact) -> None:
    assert with_meaning(other) is other


# -- What an operator reports -------------------------------------------------------------------


def reported(code: str) -> Fact:
    args = {"kind": "device.fault", "node": "n1", "device": 0, "code": code}
    return commands.reported_fact(args, at=1_000.0, earlier_ids=frozenset())


def answered(job: ScriptedJob, *facts: Fact) -> tuple[FaultClass, Level]:
    decision = LocalActivities().decide(decision_input(job.state, now=1_000.0, facts=facts))
    return decision.fault.cls, decision.level


@pytest.mark.parametrize(
    ("code", "cls", "level"),
    [
        ("80E01801", _C.DEVICE, Level.IN_PLACE),
        ("80C98002", _C.DEVICE_USER, Level.IN_PLACE),
        ("xid 79", _C.DEVICE_FATAL, Level.POD),
        ("81078603", _C.SUBHEALTH, Level.NOTE),
        ("81AD8605", _C.SUBHEALTH, Level.NOTE),
    ],
)
def test_a_reported_code_is_answered_by_what_it_means(
    code: str, cls: FaultClass, level: Level
) -> None:
    assert answered(running(), reported(code)) == (cls, level)


def test_a_report_is_made_without_the_catalogue_so_that_replays_do_not_depend_on_it() -> None:
    assert reported("79").details == {}


LINES = (
    ("NVRM: Xid (PCI:0000:3b:00): 48, pid={pid}, name=python, Ch 00000008", "XID 48"),
    ("[{pid}.123456] NVRM: Xid (PCI:0000:3b:00): 48, pid='{pid}', name=python", "XID 48"),
    (
        "2026-11-27T10:00:{pid}Z mlx5_core 0000:3b:00.0: device {pid:#x} hangs, process {pid}",
        "# MLX5_CORE 0000:3B:00.0: DEVICE # HANGS, PROCESS #",
    ),
)


@pytest.mark.parametrize(("line", "code"), LINES)
def test_a_line_of_a_log_is_one_code_whatever_process_it_names(line: str, code: str) -> None:
    facts = [with_meaning(device_fact(line.format(pid=pid))) for pid in (11, 12)]
    assert [fact.code for fact in facts] == [code, code]
    assert facts[1].details["line"] == line.format(pid=12)
    assert with_meaning(facts[0]) == facts[0]


def test_a_code_that_comes_in_lines_of_a_log_counts_as_the_same() -> None:
    job = running()
    for pid in (11, 12, 13):
        line = f"NVRM: Xid (PCI:0000:3b:00): 13, pid={pid}, name=python"
        job.see(with_meaning(device_fact(line, severity="major", at=1_000.0 + pid)))
        job.succeeds()
        job.saves(pid)
    assert "XID 13 came 3 times" in job.decisions[-1].reason


SPACED_CODE = "[0x08520003, na, cpu, na]"


@pytest.mark.parametrize(
    "code", ["79", "xid79", "0x80e01801", "NT_NPU 3", "fan 2 failed", SPACED_CODE]
)
def test_any_other_code_stays_as_it_was_reported(code: str) -> None:
    assert with_meaning(device_fact(code)).code == code


def test_a_code_of_a_switch_with_spaces_in_it_is_no_line_of_a_log() -> None:
    meaning = with_meaning(device_fact(SPACED_CODE)).details
    assert (meaning["level"], meaning["heals"]) == ("SeparateFault", False)
