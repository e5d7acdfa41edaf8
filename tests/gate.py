"""How the gate runs tests: with a second chance for each that fails.

A test that fails beside others runs again, alone, at the end, at most twice. What passed then is
printed as FLAKY, since a test that fails now and then is a bug of ours too, but no reason to hold
back what others did. A run that broke off (an error of pytest or xdist, a signal, a file that cannot
be imported) runs again as a whole, once. Where nothing was collected, or pytest was called in a way
that it does not understand, the gate fails at once.
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
TRIES_ALONE = 2


def gate(arguments: Sequence[str], *, folder: Path) -> int:
    """Run pytest with these arguments in `folder`, then what failed alone; the exit code to end with."""
    first, failed = _whole(arguments, folder=folder)
    if _broke_off(first, failed):
        print(f"\nthe run broke off with {first} and begins again", flush=True)
        first, failed = _whole(arguments, folder=folder)
    if first != pytest.ExitCode.TESTS_FAILED:
        return first
    print(f"\n{len(failed)} failed and run again, each alone:", *failed, sep="\n  ", flush=True)
    # Named one by one: a name that is not found any more fails the gate instead of being passed over.
    options = [
        one for one in arguments if not (one.startswith("--shard=") or _is_path(one, folder))
    ]
    again = [_alone([*options, "-n", "0", name], folder=folder) for name in failed]
    flaky = [name for name, code in zip(failed, again, strict=True) if code == 0]
    print(*(f"FLAKY {name}" for name in flaky), sep="\n", flush=True)
    return next(filter(None, again), 0) if failed else first


def _whole(arguments: Sequence[str], *, folder: Path) -> tuple[int, list[str]]:
    """Run pytest with these arguments: its exit code, and the names of the tests that failed."""
    with tempfile.TemporaryDirectory() as scratch:
        names = Path(scratch, "failed")
        names.touch()
        plugin = ["-p", "tests.support.failed_names", f"--failed-names={names}"]
        first = _pytest([*plugin, *arguments], folder=folder)
        failed = sorted(set(names.read_text().splitlines()))
    return first, failed


def _broke_off(code: int, failed: Sequence[str]) -> bool:
    """Whether pytest ended before it had run all tests."""
    match code:
        case pytest.ExitCode.OK | pytest.ExitCode.NO_TESTS_COLLECTED | pytest.ExitCode.USAGE_ERROR:
            return False
        case pytest.ExitCode.TESTS_FAILED:
            return not failed  # as where two processes collect different tests
        case _:
            return True


def _alone(arguments: Sequence[str], *, folder: Path) -> int:
    """Run one test until it passes, at most TRIES_ALONE times: the exit code of the last try."""
    code = 0
    for _ in range(TRIES_ALONE):
        if (code := _pytest(arguments, folder=folder)) == 0:
            break
    return code


def _is_path(argument: str, folder: Path) -> bool:
    """Whether the argument names tests: beside the name of one test it would run all of them again."""
    return (folder / argument.partition("::")[0]).exists()


def _pytest(arguments: Sequence[str], *, folder: Path) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(gate(sys.argv[1:], folder=Path.cwd()))
