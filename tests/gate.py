"""How the gate runs tests: with a second chance for each that fails.

A test that fails beside others runs once more, alone, at the end. Only a second failure fails the
gate; what passed then is printed as FLAKY, since a test that fails now and then is a bug of ours too,
but no reason to hold back what others did. Whatever is not a failed test (nothing was collected, a
run that broke off) fails at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def gate(arguments: Sequence[str], *, folder: Path) -> int:
    """Run pytest with these arguments in `folder`, then what failed alone; the exit code to end with."""
    with tempfile.TemporaryDirectory() as scratch:
        names = Path(scratch, "failed")
        names.touch()
        plugin = ["-p", "tests.support.failed_names", f"--failed-names={names}"]
        first = _pytest([*plugin, *arguments], folder=folder)
        failed = sorted(set(names.read_text().splitlines()))
    if first != pytest.ExitCode.TESTS_FAILED:
        return first
    print(f"\n{len(failed)} failed and run once more, each alone:", *failed, sep="\n  ", flush=True)
    # Named one by one: a name that is not found any more fails the gate instead of being passed over.
    options = [
        one for one in arguments if not (one.startswith("--shard=") or _is_path(one, folder))
    ]
    alone = [*options, "-n", "0"]
    again = [_pytest([*alone, name], folder=folder) for name in failed]
    flaky = [name for name, code in zip(failed, again, strict=True) if code == 0]
    print(*(f"FLAKY {name}" for name in flaky), sep="\n", flush=True)
    return max(again, default=int(first))


def _is_path(argument: str, folder: Path) -> bool:
    """Whether the argument names tests: beside the name of one test it would run all of them again."""
    return (folder / argument.partition("::")[0]).exists()


def _pytest(arguments: Sequence[str], *, folder: Path) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(gate(sys.argv[1:], folder=Path.cwd()))
