"""A shell completes commands and options; bash itself is asked, of the others what their scripts run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine import EVERSTEP
from tests.support.patience import HUNG_S

BASH = """
eval "$(everstep completion bash)"
read -ra COMP_WORDS <<< "$1"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
[[ $1 == *" " ]] && COMP_CWORD=$((COMP_CWORD + 1))
function=$(complete -p everstep | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function everstep
printf "%s\n" "${COMPREPLY[@]}"
"""


def completed_by_bash(line: str) -> set[str]:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", line],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=HUNG_S,
    )
    return set(done.stdout.split())


def completed(shell: str, line: str) -> str:
    env = {
        **os.environ,
        "_EVERSTEP_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        EVERSTEP, env=env, capture_output=True, text=True, check=False, timeout=HUNG_S
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("everstep resta", {"restart", "restarts"}),
        ("everstep logs demo --f", {"--follow"}),
        ("everstep completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(line: str, expected: set[str]) -> None:
    assert completed_by_bash(line) == expected


def test_bash_offers_every_command() -> None:
    assert completed_by_bash("everstep ") >= {"run", "status", "watch", "logs", "report", "doctor"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_scripts_get_the_same(shell: str) -> None:
    names = completed(shell, "everstep resta")
    assert "restart" in names
    assert "status" not in names
    assert "--tail" in completed(shell, "everstep logs demo --ta")
    script = subprocess.run(
        [*EVERSTEP, "completion", shell], capture_output=True, text=True, check=True
    ).stdout
    assert f"_EVERSTEP_COMPLETE=complete_{shell}" in script
