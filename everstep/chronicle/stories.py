"""A restart in words, from its record as others read it: a row of JSON, and nothing else of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def result(r: Mapping[str, Any]) -> str:
    """What came of a restart, and whether its processes were gone again before they got anywhere."""
    return f"{r['recover_result']}, {r['ended']}" if r.get("ended") else str(r["recover_result"])


def took_s(r: Mapping[str, Any]) -> float | None:
    """Seconds from the first fact until every rank was started again: the stages but for `first_step`."""
    stages = [s for stage, s in r["stages_s"].items() if s is not None and stage != "first_step"]
    return sum(stages) if stages else None


def story(r: Mapping[str, Any]) -> str:
    """Describe a record in a few lines."""
    fault, took = r["fault"], r["stages_s"]
    cost = ", ".join(f"{name} {value:.3g} s" for name, value in took.items() if value)
    bills = ", ".join(f"{units} of {name}" for name, units in r["bills"].items()) or "nothing"
    head = f"restart {r['n']} of phase {r['phase']}, incident {r['incident']}, {r['at']}"
    lines = [head, *(f"  seen     {line}" for line in r["seen"])]
    lines += [
        f"  named    {fault['class']} ({fault['kind']}), owner {fault['owner']}",
        f"  decided  {r['level']}: {r['reason']}",
        *(f"  not      {line}" for line in r["passed_over"]),
        f"  billed   {bills}",
        f"  result   {result(r)}" + (f" in {cost}" if cost else ""),
        *([f"  ended    {r['end_reason']}"] if r.get("end_reason") else ()),
        *(f"  waited   {waited['s']:g} s for {waited['for']}" for waited in r.get("waited", ())),
        *(f"  note     {line}" for line in r["notes"]),
    ]
    return "\n".join(lines)
