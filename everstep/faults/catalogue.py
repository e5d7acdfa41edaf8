"""The catalogue: a file of rows for each vendor, and the rules for codes that no row names.

The first lines of each file have its sources and the rows that are exceptions. A row is read as it stands;
nothing is corrected here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from everstep.core.facts import Detail
from everstep.core.levels import Owner
from everstep.faults.severities import LEVELS, SEVERITY_WORDS, Grade, heals_by

VENDORS = ("ascend", "nvidia", "modelarts")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeEntry:
    """The meaning of one code. `level` is the word of the system that has the code."""

    code: str
    vendor: str
    level: str
    severity: str
    owner: Owner
    heals: bool
    means: str
    source: str
    # For a code that no row has: the sentence of the `CodeRule` that made this entry.
    rule: str = ""
    is_graded_by_report: bool = False  # its level depends on the severity of the report

    @property
    def is_known(self) -> bool:
        return not self.rule

    @property
    def is_sub_healthy(self) -> bool:
        return self.level in LEVELS and LEVELS[self.level].is_sub_healthy

    @property
    def details(self) -> Mapping[str, Detail]:
        """The details of a fact with this code, in the keys that the playbook reads."""
        details: dict[str, Detail] = {"severity": self.severity, "heals": self.heals}
        if self.owner is Owner.USER:
            details["user_induced"] = True
        if self.is_sub_healthy:
            details["sub_healthy"] = True
        if self.level in LEVELS:
            details["level"] = self.level
        return details


def look_up(code: str, severity: str | None = None) -> CodeEntry:
    """The entry of the code, or one made up for it, where the severity of the report counts."""
    name = canonical(code)
    return _by_code().get(name) or _unknown(name, (severity or "").lower())


@cache
def entries() -> tuple[CodeEntry, ...]:
    """Every row, vendor by vendor in the order of its file."""
    return tuple(entry for vendor in VENDORS for entry in _read(vendor))


@cache
def _by_code() -> Mapping[str, CodeEntry]:
    return {entry.code: entry for entry in entries()}


# -- Reading ------------------------------------------------------------------------------------


def _read(vendor: str) -> tuple[CodeEntry, ...]:
    text = resources.files("everstep.faults").joinpath(f"{vendor}.csv").read_text(encoding="utf-8")
    lines = text.splitlines()
    sources = dict(re.findall(r"^# (\w+): (.+)$", text, re.MULTILINE))
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return tuple(_entry(vendor, row, sources) for row in rows)


def _entry(vendor: str, row: Mapping[str, str], sources: Mapping[str, str]) -> CodeEntry:
    fields: dict[str, Any] = {
        **row,
        "owner": Owner(row["owner"]),
        "heals": {"yes": True, "no": False}[row["heals"]],
        "source": sources[row["source"]],
    }
    return CodeEntry(vendor=vendor, **fields)


# -- Codes without a row ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRule:
    """What a code without a row is taken for. The first rule that fits counts."""

    shape: str  # a pattern of the whole code
    vendor: str
    level: str
    grade: Grade | None = None  # None: that of the level, which is one of MindCluster's
    severities: frozenset[str] = frozenset()  # only for reports with one of these; none: for all
    is_graded_by_report: bool = False
    why: str

    def fits(self, code: str, severity: str) -> bool:
        is_for_it = not self.severities or severity in self.severities
        return is_for_it and re.fullmatch(self.shape, code) is not None


_RESET = Grade(severity="major", heals=True)

RULES: tuple[CodeRule, ...] = (
    CodeRule(
        shape=r"[0-9A-F]{8}",
        vendor="ascend",
        level="NotHandleFault",
        severities=frozenset({"hint", "minor", "warning"}),
        is_graded_by_report=True,
        why="an Ascend code that no list names, reported as no more than minor: nothing has to be done",
    ),
    CodeRule(
        shape=r"[0-9A-F]{8}",
        vendor="ascend",
        level="SeparateNPU",
        is_graded_by_report=True,
        why="an Ascend code that no list names, not reported as minor or less: the device is left",
    ),
    CodeRule(
        shape=r"\d{9}",
        vendor="ascend",
        level="NotHandleFault",
        why="a code of an external observer that no list names: MindCluster drops it as well",
    ),
    CodeRule(
        shape=r"XID \d+",
        vendor="nvidia",
        level="none",
        grade=_RESET,
        why="an XID that no list names: a reset is tried, and the third time the device is left",
    ),
    CodeRule(
        shape=r"SXID \d+",
        vendor="nvidia",
        level="none",
        grade=_RESET,
        why="an SXID that no list names: a reset is tried, and the third time the device is left",
    ),
    CodeRule(
        shape=r"A05\d{4}",
        vendor="modelarts",
        level="isolate",
        grade=Grade(severity="critical", heals=False),
        why="an isolation code of ModelArts that no list names: it keeps jobs off the node",
    ),
)

CATCH_ALL = CodeRule(
    shape=r".*",
    vendor="unknown",
    level="none",
    grade=_RESET,
    why="a code of an unknown vendor: a reset is tried, and the third time the device is left",
)


def _unknown(code: str, severity: str) -> CodeEntry:
    rule = next((rule for rule in RULES if rule.fits(code, severity)), CATCH_ALL)
    grade = rule.grade or LEVELS[rule.level]
    if rule is CATCH_ALL and severity in SEVERITY_WORDS:
        word = SEVERITY_WORDS[severity]
        grade = Grade(severity=word, heals=heals_by(word))
    return CodeEntry(
        code=code,
        vendor=rule.vendor,
        level=rule.level,
        severity=grade.severity,
        owner=Owner.INFRA,
        heals=grade.heals,
        means="not known",
        source="no list",
        rule=rule.why,
        is_graded_by_report=rule.is_graded_by_report,
    )


# -- Spelling ---------------------------------------------------------------------------------------

SXIDS_FROM = 10_000
"""A bare number below is an XID, from here on an SXID: NVIDIA gave neither of them the other's numbers."""


_LOGGED = re.compile(r"\b(S?XID) \(PCI:[^()]*\): (\d{1,6})\b")
"""How NVIDIA's drivers log a code, in capitals."""

VARIES = re.compile(
    r"\[ *\d+\.\d+\]"  # the kernel's clock
    r"|\b(\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:?\d\d)?\b"
    r"|\b0X[0-9A-F]+\b"
    r"|(?<=\bPID)[ =:]*['\"]?\d+['\"]?"
    r"|(?<=\bPROCESS )\d+\b"
)
"""What of a logged line, in capitals, differs each time: times, addresses, processes."""


def without_what_varies(code: str) -> str:
    """The code, or what the lines of one fault have in common if it is a line of a log."""
    text = code.strip().upper()
    if _LOGGED.search(text):
        return canonical(code)
    is_line = " " in text and canonical(text) == text  # not a code of a switch, with spaces in it
    return VARIES.sub("#", text) if is_line and VARIES.search(text) else code


def canonical(code: str) -> str:
    """The spelling of the data files: `XID 79` for `79`, `xid79` and the line that a driver logs,
    `80E01801` for `0x80e01801`.

    A code of a switch between chips is a group of four, `[0x08520003,na,L2,na]`. Any other text is only
    trimmed and in capitals.
    """
    text = code.strip().upper()
    written = re.fullmatch(r"(S?XID)[\s:#_-]*(\d{1,6})", text)
    if match := written or _LOGGED.search(text):
        return f"{match[1]} {int(match[2])}"
    if re.fullmatch(r"\d{1,5}", text):
        return f"{'XID' if int(text) < SXIDS_FROM else 'SXID'} {int(text)}"
    if match := re.fullmatch(r"0X([0-9A-F]{1,8})", text):
        return match[1].zfill(8)
    if re.fullmatch(r"\[0X[0-9A-F]{8}(, *\w{1,12}){3}\]", text):
        return text.replace(" ", "").lower().replace("l2", "L2")
    return text
