"""Writes docs/faults.md from the catalogue of faults: `make docs`. A test says if it is stale.

Only presentation belongs here, as in `write_playbook`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from docs.markdown import table
from everstep.core.levels import LADDERS, Owner
from everstep.faults.catalogue import CATCH_ALL, RULES, VENDORS, CodeEntry, CodeRule, entries
from everstep.faults.meanings import fault_class
from everstep.faults.severities import LEVELS, SEVERITIES, Grade, heals_by

PAGE = Path(__file__).with_name("faults.md")

INTRODUCTION = """\
# Fault codes

What a code of a device means, who owns it, and what is done about it. Written by `make docs` from the files
of `everstep/faults`; a test compares. One code, and what a document would do about it:
`everstep explain --code "XID 79" job.yaml`.

The catalogue fills in what a reporter leaves out; what a reporter says wins, except for the severity of an
Ascend code in [no list](#codes-that-no-list-names). The severity says whether healing is tried at all; that
it does not work shows only then. A class is answered by its ladder, natively
that of [the playbook](playbook.md).
"""

SEVERITY_MEANS: Mapping[str, str] = {
    "warning": "nothing has to be done",
    "minor": "a reset, then the command runs again in the same containers",
    "major": "a reset, then the command runs again in the same containers",
    "critical": "it does not heal: the node is left",
}

VENDOR_TITLES: Mapping[str, str] = {
    "ascend": "Ascend, as MindCluster grades it",
    "nvidia": "NVIDIA",
    "modelarts": "ModelArts' own",
}

RULE_EXAMPLES: Mapping[str, str] = {
    r"[0-9A-F]{8}": "8 hexadecimal digits",
    r"\d{9}": "9 digits",
    r"XID \d+": "`XID N`, or a number below 10000",
    r"SXID \d+": "`SXID N`, or a number of 5 digits",
    r"A05\d{4}": "`A05` and 4 digits",
    r".*": "anything else",
}


def page() -> str:
    sections = (_severities(), _levels(), _rules(), *(_vendor(vendor) for vendor in VENDORS))
    return "\n".join([INTRODUCTION, *("\n".join(section) for section in sections)])


def _severities() -> Iterator[str]:
    yield "## Severities\n"
    rows = ((f"`{s}`", _yes(heals_by(s)), SEVERITY_MEANS[s]) for s in SEVERITIES)
    yield from table(("severity", "heals", "what has to be done"), rows)
    classes = dict.fromkeys(fault_class(entry) for entry in entries())
    yield "\nThe classes that codes come to, and their native ladders:\n"
    ladders = ((f"`{cls}`", " → ".join(str(level) for level in LADDERS[cls])) for cls in classes)
    yield from table(("class", "ladder"), ladders)
    users = [entry.code for entry in entries() if entry.owner is Owner.USER]
    yield (
        "\nThe user's own, never a reason to isolate a node when they come again, unless the cluster reports "
        f"one as SeparateNPU: {', '.join(users)}.\n"
    )


def _levels() -> Iterator[str]:
    yield "## MindCluster's levels\n"
    yield "Where a cluster gives a code another level than these lists, the fact's `level` wins."
    yield "What is sub-healthy stops no job; what does not heal either is given to no other job.\n"
    rows = ((f"`{level}`", *_graded(grade)) for level, grade in LEVELS.items())
    yield from table(("level", "severity", "heals", "sub-healthy"), rows)
    yield ""


def _graded(grade: Grade) -> tuple[str, str, str]:
    return grade.severity, _yes(grade.heals), _yes(grade.is_sub_healthy)


def _rules() -> Iterator[str]:
    yield "## Codes that no list names\n"
    rows = ((_shape(rule), *_answer(rule), rule.why) for rule in (*RULES, CATCH_ALL))
    yield from table(("code", "level", "severity", "because"), rows)
    yield ""


def _shape(rule: CodeRule) -> str:
    said = " or ".join(sorted(rule.severities))
    return RULE_EXAMPLES[rule.shape] + (f", reported as {said}" if said else "")


def _answer(rule: CodeRule) -> tuple[str, str]:
    grade = rule.grade or LEVELS[rule.level]
    return f"`{rule.level}`", grade.severity


def _vendor(vendor: str) -> Iterator[str]:
    yield f"## {VENDOR_TITLES[vendor]}\n"
    for source in dict.fromkeys(entry.source for entry in entries() if entry.vendor == vendor):
        yield f"- {source}"
    yield ""
    yield from table(("codes", "level", "severity", "class", "means"), _rows(vendor))
    yield ""


def _rows(vendor: str) -> Iterable[tuple[str, ...]]:
    """Codes of which the same is known share a row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for entry in entries():
        if entry.vendor == vendor:
            alike.setdefault(_known(entry), []).append(entry.code)
    for known, codes in alike.items():
        yield (", ".join(codes), *known)


def _known(entry: CodeEntry) -> tuple[str, ...]:
    return f"`{entry.level}`", entry.severity, f"`{fault_class(entry)}`", entry.means


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
