"""Everstep beside other launchers of PyTorch and beside JobSet: the same faults, on one machine, in turns.

Each launcher runs the same script with two ranks. In each round every launcher has its turns, in an order
that follows from a printed seed; a turn is one start, and some faults. The time is from the fault until a
new process has made a step together with the other rank; on Kubernetes until the last rank of the next
attempt has begun.

    make bench-peers    # two rounds, 22 minutes at most; writes benchmarks/peers/results.json
    make bench-peers ARGS="--rounds 1 --rows crash,hang --seed 7"   # prints, and writes nothing

`make docs` makes docs/benchmarks.md from that file.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import benchmarks.support  # noqa: F401  # SIGTERM ends this as Ctrl-C does
from benchmarks.peers import plan, setups
from benchmarks.peers.meeting import Run, take
from benchmarks.peers.results import PLACE, Results
from benchmarks.run import processor

SECONDS = 1_250.0
"""No turn begins that is not likely to end by then."""


async def compare(seed: int, rounds: int, rows: Sequence[str], seconds: float) -> Results:
    run = Run(results=begun(seed), began=time.monotonic(), seconds=seconds)
    for number, turn in plan.rounds(seed, rounds, rows):
        print(f"{run.elapsed():6.0f} s  round {number}: {turn.name}", flush=True)
        run.results.order.append(f"round {number}: {turn.name}")
        if run.elapsed() + turn.about_s > seconds:
            run.leave_out(
                turn.faults, turn.columns, f"{seconds / 60:.1f} minutes of the run were over"
            )
            continue
        await take(run, number, turn)
    run.results.took_s = round(run.elapsed(), 1)
    run.results.load_at_end = round(os.getloadavg()[0], 2)
    return run.results


def begun(seed: int) -> Results:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Results(
        date=dt.datetime.now(tz=dt.UTC).isoformat(timespec="minutes"),
        seed=seed,
        machine={
            "cores": os.cpu_count(),
            "processor": processor(),
            "memory_gb": round(memory),
            "system": f"{platform.system()} {platform.release().partition('-')[0]}",
            "python": platform.python_version(),
            "load_at_start": round(os.getloadavg()[0], 2),
        },
        versions=setups.versions(),
        settings=dict(plan.SETTINGS),
    )


def show(results: Results) -> None:
    print(f"\n{'s':30}{'n':>4}{'median':>9}{'min':>9}{'max':>9}  steps lost, pause of all, loads")
    cells = dict.fromkeys((one.row, one.launcher) for one in results.measured)
    for row, launcher in sorted(cells):
        found = results.of(row, launcher)
        took = [one.took_s for one in found if one.took_s is not None]
        never = f", {len(found) - len(took)} never" if len(took) < len(found) else ""
        numbers = f"{statistics.median(took):9.3f}{min(took):9.3f}{max(took):9.3f}" if took else ""
        lost = [one.lost_steps for one in found if one.lost_steps is not None]
        pauses = [one.paused_s for one in found if one.paused_s is not None]
        more = f"{statistics.median(lost):g}, {statistics.median(pauses):.2f}" if lost else ""
        loads = f"{min(one.load for one in found):.1f}-{max(one.load for one in found):.1f}"
        print(f"{row:17}{launcher:13}{len(took):4}{numbers:27}  {more} ({loads}){never}")
    for one in dict.fromkeys(results.not_run):
        print(f"{one.row:17}{one.launcher:13} not run here: {one.reason}")


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-peers", description="Everstep beside others: the same faults in turns."
    )
    parser.add_argument("--rounds", type=int, default=2, help="turns of each launcher (2)")
    parser.add_argument("--rows", default="", help=f"some of {','.join(plan.ROWS)}")
    parser.add_argument("--seed", type=int, help="of the order; a new one each time without")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"at most ({SECONDS:g})")
    parser.add_argument("-o", type=Path, help=f"the file of the results; of a whole run {PLACE}")
    options = parser.parse_args(words)
    options.rows = [row for row in options.rows.split(",") if row]
    if unknown := set(options.rows) - set(plan.ROWS):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(plan.ROWS)}")
    return options


def main(words: Sequence[str]) -> int:
    options = arguments(words)
    if not setups.PYTHON.exists():
        print("there is no environment with the other launchers; try: make bench-peers")
        return 2
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    try:
        results = asyncio.run(compare(seed, options.rounds, options.rows, options.seconds))
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is written, and nothing runs on", flush=True)
        return 130
    show(results)
    place = options.o or (None if options.rows else PLACE)
    if place is not None:
        results.write(place)
        print(f"\nwritten: {place}; the page of it: make docs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
