"""`make chaos`: a seeded course of faults and operations on real jobs, and a judgement of what they wrote.

python -m tests.chaos --seconds 60 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from temporalio.runtime import Runtime, TelemetryConfig

from tests.chaos import actions, course, kubernetes_actions, on_kubernetes, on_machine
from tests.chaos.course import Backend
from tests.chaos.ground import say
from tests.chaos.plan import Event, part, planned
from tests.chaos.shrinking import smallest

BACKENDS: Mapping[str, Backend[Any]] = {
    "local": Backend(begun=on_machine.begun, actions=actions.ON_MACHINE),
    "kubernetes": Backend(begun=on_kubernetes.begun, actions=kubernetes_actions.ON_KUBERNETES),
}


def main(arguments: Sequence[str]) -> int:
    options = parsed(arguments)
    seed = options.seed or secrets.token_hex(4)
    backend = BACKENDS[options.backend]
    if unknown := {*options.actions} - {*backend.actions}:
        say(f"chaos: no action of this backend: {', '.join(sorted(unknown))}")
        return 2
    plan = planned(seed, options.actions or list(backend.actions), seconds=options.seconds)
    if options.events:
        plan = part(plan, options.events)
    say(f"chaos: {len(plan)} events, SECONDS={options.seconds:g} SEED={seed}")
    if options.plan:
        say("\n".join(map(str, plan)))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends in order
    # The SDK would print each connection that is refused: most are here.
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="everstep-chaos-"))
    verdict = asyncio.run(course.judged(plan, folder, backend))
    say(
        f"chaos: {time.monotonic() - began:.0f} s, SEED={seed}, violations: {len(verdict.sentences)}"
    )
    for each in verdict.sentences:
        say(f"  {each}")
    if not verdict.sentences:
        shutil.rmtree(folder)
        return 0
    say(f"what is left of it is in {folder}")
    if options.shrink:
        least = shrunken(plan, backend, verdict.rules, within_s=options.shrink)
        numbers = " ".join(str(event.number) for event in least)
        say(
            f"chaos: the smallest course found that breaks this has {len(least)} of {len(plan)} events:"
        )
        say("\n".join(map(str, least)))
        say(
            f"again: SECONDS={options.seconds:g} SEED={seed} BACKEND={options.backend} EVENTS='{numbers}'"
        )
    return 1


def shrunken(
    plan: Sequence[Event], backend: Backend[Any], rules: Collection[str], *, within_s: float
) -> Sequence[Event]:
    """The smallest part of the course that breaks one of the rules again. No trial begins after that time."""
    ends_at = time.monotonic() + within_s

    async def shows(events: Sequence[Event]) -> bool:
        say(f"chaos: a trial with {len(events)} of {len(plan)} events")
        with tempfile.TemporaryDirectory(
            prefix="everstep-chaos-", ignore_cleanup_errors=True
        ) as name:
            trial = part(plan, [event.number for event in events])
            verdict = await course.judged(trial, Path(name), backend)
        return not verdict.rules.isdisjoint(rules)

    return asyncio.run(smallest(plan, shows, has_time=lambda: time.monotonic() < ends_at))


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--seconds", type=float, default=60.0, help="so long things happen")
    parser.add_argument("--backend", choices=BACKENDS, default="local")
    parser.add_argument("--seed", default="", help="any word; a new one each time without")
    parser.add_argument(
        "--events", type=int, nargs="*", default=[], help="numbers: leave out all other events"
    )
    parser.add_argument(
        "--actions", nargs="*", default=[], help="a course of these alone: to try a new one"
    )
    parser.add_argument(
        "--shrink", type=float, default=300.0, help="so long a smaller course is looked for"
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
