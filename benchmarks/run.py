"""Runs the benchmarks beside this file, one after the other, each in a process of its own.

A benchmark is a script that prints its table and exits 0: `benchmarks/NAME.py`. Give names to run
only those. What several of them share is in `benchmarks/support`.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def available() -> list[str]:
    return [path.stem for path in sorted(HERE.glob("*.py")) if path != Path(__file__)]


def run(name: str) -> bool:
    print(f"== {name}", flush=True)
    started = time.monotonic()
    # As a module of the root, so that it can import what is beside it and the tests' support.
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    with subprocess.Popen(command, cwd=HERE.parent) as benchmark:  # interrupted, it clears away
        status = benchmark.wait()
    print(f"== {name}: {time.monotonic() - started:.1f} s, exit {status}\n", flush=True)
    return status == 0


def machine() -> str:
    """What the numbers were measured on, and how busy it was before we came."""
    load = os.getloadavg()[0]
    today = dt.datetime.now(tz=dt.UTC).date()
    return (
        f"{today}: {os.cpu_count()} cores ({processor()}), {platform.system()}, "
        f"Python {platform.python_version()}, load {load:.2f} at the start"
    )


def processor() -> str:
    """Its name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main(wanted: list[str]) -> int:
    names = available()
    if unknown := set(wanted) - set(names):
        print(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(names) or 'none'}")
        return 2
    print(machine(), flush=True)
    results = [run(name) for name in wanted or names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
