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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from temporalio.runtime import Runtime, TelemetryConfig

from tests.chaos import actions, course, kubernetes_actions, on_kubernetes, on_machine
from tests.chaos.course import Backend
from tests.chaos.ground import say
from tests.chaos.plan import planned

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
    if options.only:
        plan = tuple(event for event in plan if event.number in options.only)
    say(f"chaos: {len(plan)} events, SECONDS={options.seconds:g} SEED={seed}")
    if options.plan:
        say("\n".join(map(str, plan)))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends in order
    # The SDK would print each connection that is refused: most are here.
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="everstep-chaos-"))
    sentences = asyncio.run(course.run(plan, folder, backend))
    say(f"chaos: {time.monotonic() - began:.0f} s, SEED={seed}, violations: {len(sentences)}")
    for each in sentences:
        say(f"  {each}")
    if sentences:
        say(f"what is left of it is in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--seconds", type=float, default=60.0, help="so long things happen")
    parser.add_argument("--backend", choices=BACKENDS, default="local")
    parser.add_argument("--seed", default="", help="any word; a new one each time without")
    parser.add_argument(
        "--only", type=int, nargs="*", default=[], help="numbers of events: leave out all others"
    )
    parser.add_argument(
        "--actions", nargs="*", default=[], help="a course of these alone: to try a new one"
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
