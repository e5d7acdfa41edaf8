"""What a fault code is, and what a document would do about it: `explain --code`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everstep.cli.authoring.explain import NODE, SLOTS, answers
from everstep.core.deciding.decision import Occurrence
from everstep.core.deciding.naming import SAME_FAULT_TIMES
from everstep.core.facts import Fact
from everstep.core.spec import JobSpec
from everstep.faults import fault_class, look_up, told

DEVICE = 0


def code_explained(code: str, spec: JobSpec | None = None) -> dict[str, Any]:
    """The code's entry; with a document, what each phase would do when a device shows it."""
    entry = look_up(code)
    return {
        "code": entry.code,
        "vendor": entry.vendor,
        "known": entry.is_known,
        "means": entry.means,
        "level": entry.level,
        "severity": entry.severity,
        "owner": str(entry.owner),
        "heals": entry.heals,
        "class": str(fault_class(entry)),
        "source": entry.source,
        "rule": entry.rule or None,
        "document": None if spec is None else _document(spec, told(_sighting(code.strip()))),
    }


def _sighting(code: str) -> Fact:
    return Fact(
        id="example",
        kind="device.fault",
        at=0.0,
        node=NODE.format(SLOTS - 1),
        slot=SLOTS - 1,
        device=DEVICE,
        code=code,
    )


def _document(spec: JobSpec, fact: Fact) -> dict[str, Any]:
    before = Occurrence(node=fact.node or "", device=DEVICE, code=fact.code or "", at=0.0)
    often = (before,) * (SAME_FAULT_TIMES - 1)
    return {
        "name": spec.name,
        "dialect": spec.dialect,
        "phases": [
            {
                "name": phase.name,
                **answers(spec, index, fact),
                "again": answers(spec, index, replace(fact, id="again"), before=often)["ladder"],
            }
            for index, phase in enumerate(spec.phases)
        ],
    }
