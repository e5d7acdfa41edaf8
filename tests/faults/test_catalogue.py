"""The data files, and the answers for codes that are not in them."""

from __future__ import annotations

from collections import Counter

import pytest

from everstep.core.deciding.decide import decide
from everstep.core.deciding.decision_input import decision_input
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Owner
from everstep.faults.catalogue import entries, look_up
from everstep.faults.meanings import fault_class, with_meaning
from everstep.faults.rules import frequency_rules
from everstep.faults.severities import LEVELS, SEVERITIES, heals_by
from tests.support.builders import COLUMNS, running

_C = FaultClass
CLASSES = {_C.SUBHEALTH, _C.DEVICE, _C.DEVICE_USER, _C.DEVICE_FATAL}


def shown_by(code: str) -> Fact:
    """A device of slot 1 shows the code, without any other detail."""
    return with_meaning(
        Fact(
            id=f"cluster/{code}",
            kind="device.fault",
            at=1_000.0,
            node="n1",
            slot=1,
            device=0,
            code=code,
        )
    )


# -- Every row ----------------------------------------------------------------------------------


def test_no_code_has_two_rows() -> None:
    codes = [entry.code for entry in entries()]
    assert len(codes) == len(set(codes))


def test_every_row_is_found_by_its_code() -> None:
    lost = [entry.code for entry in entries() if look_up(entry.code) is not entry]
    assert not lost, "write the code as `canonical` spells it"


def test_every_row_uses_our_words_and_says_what_and_where_from() -> None:
    wrong = [
        entry.code
        for entry in entries()
        if entry.severity not in SEVERITIES
        or entry.owner not in {Owner.INFRA, Owner.USER}
        or not (entry.means and entry.source and entry.is_known)
    ]
    assert not wrong


def test_severity_and_heals_of_a_row_agree() -> None:
    wrong = [
        entry.code
        for entry in entries()
        if entry.heals != heals_by(entry.severity) and not entry.is_sub_healthy
    ]
    assert not wrong


def test_a_row_of_ascend_is_what_its_level_comes_to() -> None:
    wrong = [
        entry.code
        for entry in entries()
        if entry.vendor == "ascend"
        and (entry.severity, entry.heals)
        != (LEVELS[entry.level].severity, LEVELS[entry.level].heals)
    ]
    assert not wrong


@pytest.mark.parametrize("column", COLUMNS)
def test_every_code_has_a_class_and_an_answer(column: str) -> None:
    state = running(COLUMNS[column]).state
    for entry in entries():
        decision = decide(decision_input(state, now=1_000.0, facts=(shown_by(entry.code),)))
        assert fault_class(entry) in CLASSES, entry.code
        assert decision.fault.cls is fault_class(entry), entry.code
        assert decision.fault.code == entry.code


def test_every_code_of_mindcluster_has_its_level() -> None:
    """862 codes: of chips, of switches between them, and of external observers; one is listed twice.

    Without switches the levels come to the sizes of its own lists, of chips and of external observers.
    """
    sources = ("MindCluster, device plugin", "MindCluster, ClusterD")
    rows = [entry for entry in entries() if entry.source.startswith(sources)]
    switches = [entry for entry in rows if entry.code.startswith("[")]
    chips = Counter(entry.level for entry in rows) - Counter(e.level for e in switches)
    assert (len(rows), len(switches)) == (862, 30)
    assert chips == {
        "NotHandleFault": 132 + 5,
        "RestartRequest": 33,
        "RestartBusiness": 25 - 1,
        "FreeRestartNPU": 23,
        "RestartNPU": 162,
        "SeparateNPU": 215 + 13,
        "PreSeparateNPU": 200 + 2,
        "SubHealthFault": 13 + 10,
    }
    assert look_up("A2301001").level == "SeparateNPU", "listed twice: the graver level holds"


# -- What everyone says -------------------------------------------------------------------------

CODES: tuple[tuple[str, str, FaultClass], ...] = (
    # Ascend, by MindCluster's level
    ("80E21007", "NotHandleFault", _C.SUBHEALTH),
    ("80E00209", "NotHandleFault", _C.SUBHEALTH),
    ("81078603", "NotHandleFault", _C.SUBHEALTH),
    ("200001002", "NotHandleFault", _C.SUBHEALTH),
    ("80C98002", "RestartRequest", _C.DEVICE_USER),
    ("80CB8002", "RestartRequest", _C.DEVICE_USER),
    ("80C98003", "RestartRequest", _C.DEVICE),
    ("80C98008", "RestartRequest", _C.DEVICE),
    ("80CB8008", "RestartRequest", _C.DEVICE),
    ("80C98009", "RestartRequest", _C.DEVICE),
    ("80CF8003", "RestartRequest", _C.DEVICE),
    ("80E01801", "RestartBusiness", _C.DEVICE),
    ("816F8002", "RestartNPU", _C.DEVICE),
    ("81B38004", "RestartNPU", _C.DEVICE),
    ("81B38009", "RestartNPU", _C.DEVICE),
    ("[0x08520003,na,cpu,na]", "SeparateFault", _C.DEVICE_FATAL),
    ("[0x00f1fef5,155914,npu,na]", "RestartRequest", _C.DEVICE),
    ("[0x00f1ff06,132134,na,na]", "SubHealthFault", _C.SUBHEALTH),
    ("8C204E00", "RestartBusiness", _C.DEVICE),
    ("8C0A4E00", "FreeRestartNPU", _C.DEVICE),
    ("8C084E00", "FreeRestartNPU", _C.DEVICE),
    ("40F84E00", "RestartNPU", _C.DEVICE),
    ("80E18005", "RestartNPU", _C.DEVICE),
    ("80E18008", "RestartNPU", _C.DEVICE),
    ("80DE1801", "RestartNPU", _C.DEVICE),
    ("80E78000", "RestartNPU", _C.DEVICE),
    ("8C03A000", "RestartNPU", _C.DEVICE),
    ("80E18402", "SeparateNPU", _C.DEVICE_FATAL),
    ("80E0020B", "SeparateNPU", _C.DEVICE_FATAL),
    ("80E3A201", "SeparateNPU", _C.DEVICE_FATAL),
    ("80818C05", "SeparateNPU", _C.DEVICE_FATAL),
    ("110001024", "PreSeparateNPU", _C.SUBHEALTH),
    ("80E20207", "SubHealthFault", _C.SUBHEALTH),
    ("80818C06", "SubHealthFault", _C.SUBHEALTH),
    ("8C2FA001", "SubHealthFault", _C.SUBHEALTH),
    ("2C000031", "SeparateFault", _C.DEVICE_FATAL),
    ("0000001D", "PreSeparateFault", _C.SUBHEALTH),
    ("29000001", "NotHandleFault", _C.SUBHEALTH),
    ("220001001", "SeparateNPU", _C.DEVICE_FATAL),
    ("010001001", "SubHealthFault", _C.SUBHEALTH),
    ("200001006", "NotHandleFault", _C.SUBHEALTH),
    # NVIDIA, by what it says to do at once
    ("XID 13", "RESTART_APP", _C.DEVICE_USER),
    ("XID 31", "RESTART_APP", _C.DEVICE_USER),
    ("XID 43", "IGNORE", _C.DEVICE_USER),
    ("XID 45", "WORKFLOW_XID_45", _C.SUBHEALTH),
    ("XID 48", "WORKFLOW_XID_48", _C.DEVICE),
    ("XID 62", "RESET_GPU", _C.DEVICE),
    ("XID 63", "IGNORE", _C.SUBHEALTH),
    ("XID 64", "RESET_GPU", _C.DEVICE_FATAL),
    ("XID 74", "WORKFLOW_NVLINK_ERR", _C.DEVICE),
    ("XID 79", "RESTART_BM", _C.DEVICE_FATAL),
    ("XID 92", "IGNORE", _C.SUBHEALTH),
    ("XID 94", "RESTART_APP", _C.DEVICE),
    ("XID 95", "RESET_GPU", _C.DEVICE),
    ("XID 119", "RESET_GPU", _C.DEVICE),
    ("XID 120", "RESET_GPU", _C.DEVICE),
    ("XID 140", "RESET_GPU", _C.DEVICE),
    ("SXID 12028", "non-fatal", _C.DEVICE),
    ("SXID 20001", "non-fatal", _C.SUBHEALTH),
    ("SXID 20034", "fatal", _C.DEVICE),
    ("SXID 23001", "always fatal", _C.DEVICE_FATAL),
    # ModelArts' own
    ("A050101", "isolate", _C.DEVICE_FATAL),
    ("NT_NPU_ECC_COUNT", "repair", _C.DEVICE_FATAL),
)


@pytest.mark.parametrize(("code", "level", "cls"), CODES, ids=[row[0] for row in CODES])
def test_a_known_code_is_what_its_system_says(code: str, level: str, cls: FaultClass) -> None:
    entry = look_up(code)
    assert (entry.level, fault_class(entry)) == (level, cls)


@pytest.mark.parametrize("xid", ["13", "31", "43", "45"])
def test_what_a_program_does_to_a_gpu_is_the_users(xid: str) -> None:
    assert look_up(xid).owner is Owner.USER


# -- Spelling -----------------------------------------------------------------------------------

SPELLINGS: tuple[tuple[str, str], ...] = (
    ("79", "XID 79"),
    ("XID 79", "XID 79"),
    ("xid79", "XID 79"),
    ("Xid: 79", "XID 79"),
    (" xid-079 ", "XID 79"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.", "XID 79"),
    ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 27", "SXID 12028"),
    ("12028", "SXID 12028"),
    ("SXid 12028", "SXID 12028"),
    ("sxid12028", "SXID 12028"),
    ("80e01801", "80E01801"),
    ("0x80E01801", "80E01801"),
    ("0X80e01801\n", "80E01801"),
    ("0x1d", "0000001D"),
    ("220001001", "220001001"),
    ("[0X08520003, NA, l2, na]", "[0x08520003,na,L2,na]"),
    ("a050101", "A050101"),
    ("nt_npu_device", "NT_NPU_DEVICE"),
)


@pytest.mark.parametrize(("spelt", "code"), SPELLINGS, ids=[repr(row[0]) for row in SPELLINGS])
def test_a_code_is_known_in_every_spelling(spelt: str, code: str) -> None:
    assert look_up(spelt) is look_up(code)
    assert look_up(spelt).code == code
    assert look_up(spelt).is_known


# -- Codes without a row ------------------------------------------------------------------------

UNKNOWN: tuple[tuple[str, str | None, str, str], ...] = (
    ("80FFFFFF", None, "SeparateNPU", "critical"),
    ("80FFFFFF", "Hint", "NotHandleFault", "warning"),
    ("0x80ffffff", "Minor", "NotHandleFault", "warning"),
    ("80FFFFFF", "Major", "SeparateNPU", "critical"),
    ("80FFFFFF", "Critical", "SeparateNPU", "critical"),
    ("80FFFFFF", "a word of nobody", "SeparateNPU", "critical"),
    ("999999999", None, "NotHandleFault", "warning"),
    ("XID 9999", None, "none", "major"),
    ("5", None, "none", "major"),
    ("SXID 99999", None, "none", "major"),
    ("A050199", None, "isolate", "critical"),
    ("ecc", None, "none", "major"),
    ("ecc", "Critical", "none", "critical"),
    ("ecc", "hint", "none", "warning"),
    ("", None, "none", "major"),
)


@pytest.mark.parametrize(
    ("code", "stated_severity", "level", "severity"),
    UNKNOWN,
    ids=[f"{r[0]} {r[1]}" for r in UNKNOWN],
)
def test_a_code_that_nobody_names_is_taken_for_something_and_says_why(
    code: str, stated_severity: str | None, level: str, severity: str
) -> None:
    entry = look_up(code, stated_severity)
    assert (entry.level, entry.severity) == (level, severity)
    assert entry.heals == heals_by(severity)
    assert entry.rule
    assert not entry.is_known


# -- How often ----------------------------------------------------------------------------------


def test_every_code_that_is_counted_is_known() -> None:
    rules = frequency_rules()
    assert {times: sum(r.times == times for r in rules.values()) for times in (2, 3, 5)} == {
        2: 41,
        3: 1,
        5: 1,
    }
    assert all(look_up(code).is_known and look_up(code).code == code for code in rules)
    assert {r.window_s for r in rules.values()} == {86_400.0}
    assert {code: r.release_s for code, r in rules.items() if r.release_s} == {
        "81078603": 172_800.0
    }
