"""The environment checks before a start: the command to an agent, and its answer as facts.

A machine is what it is: a disk or a limit smaller than a job should have is noted, nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from everstep.backends.agents.client.agent_views import PodPlace
from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.agents.client.watch import Agents
from everstep.core.facts import Detail, Fact
from everstep.protocol import wire

FAILS = frozenset({"dns", "gpu-check"})
"""Checks without which no job can run here. What another one lacks is a note."""
NOTE = "note"


async def request(
    agents: Agents,
    uid: str,
    *,
    generation: int,
    hosts: tuple[str, ...],
    accelerator: str,
    devices: int,
    thresholds: wire.Thresholds,
) -> list[wire.CheckSeen] | None:
    """The results of this generation's checks. None until all of them are done."""
    command: wire.CheckCommand = {
        "generation": generation,
        "hosts": list(hosts),
        "accelerator": accelerator,
        "devices": devices,
        "thresholds": thresholds._asdict(),
    }
    try:
        answer = await agents.request(uid, "POST", wire.CHECK, command)
    except (NoAnswer, Refused):
        return None
    state: wire.CheckState = answer  # type: ignore[assignment]  # an agent answers with this
    return state["checks"] if state["done"] else None


def findings(
    pod: PodPlace, generation: int, checks: list[wire.CheckSeen], *, now: float
) -> Iterator[Fact]:
    """A fact for each check that did not pass: failures and notes."""
    for check in checks:
        if check["ok"]:
            continue
        name = check["name"]
        details: dict[str, Detail] = {
            "hardware": check["hardware"],
            "measured": check["measured"],
            "wanted": check["needed"],
            "took_s": check["took_s"],
            NOTE: name not in FAILS,
        }
        message = f"{name} failed on {pod.node}: {check['measured']}, wanted is {check['needed']}"
        yield finding(pod, generation, name, at=now, message=message, details=details)


def finding(
    pod: PodPlace,
    generation: int,
    name: str,
    *,
    at: float,
    message: str,
    details: Mapping[str, Detail],
) -> Fact:
    return Fact(
        id=f"{pod.uid}/precheck/{generation}/{name}",
        kind=f"precheck.{name}",
        at=at,
        generation=generation,
        node=pod.node,
        slot=pod.slot,
        message=message,
        details=details,
    )


def is_note(fact: Fact) -> bool:
    return bool(fact.details.get(NOTE))
