"""A shell completes commands, options, jobs and nodes.

bash itself completes a line of each kind. What `everstep` prints to it and to the other shells is shown
in this process: an interpreter for each line takes half a second.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from temporalio.client import Client

from everstep.backends.local.database import nodes
from everstep.backends.local.database.store import Store
from everstep.backends.local.settings import LocalSettings
from everstep.cli import completion
from tests.cli.conftest import AsyncCli, Cli, ended, submitted, until
from tests.cli.standin import document, working
from tests.support.machine import EVERSTEP
from tests.support.patience import HUNG_S

BASH = """
eval "$2"
read -ra COMP_WORDS <<< "$1"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
[[ $1 == *" " ]] && COMP_CWORD=$((COMP_CWORD + 1))
function=$(complete -p everstep | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function everstep
printf "%s\n" "${COMPREPLY[@]}"
"""


@cache
def bash_script() -> str:
    done = subprocess.run(
        [*EVERSTEP, "completion", "bash"], capture_output=True, text=True, check=True
    )
    return done.stdout


def completed_by_bash(line: str) -> set[str]:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", line, bash_script()],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=HUNG_S,
    )
    return set(done.stdout.split())


Completed = Callable[[str, str], str]


@pytest.fixture
def completed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Completed:
    """What `everstep` prints to a shell that completes a line."""

    def complete(shell: str, line: str) -> str:
        words = len(line.split()) - (not line.endswith(" "))
        env = {
            "_EVERSTEP_COMPLETE": f"complete_{shell}",
            **({"COMP_WORDS": line, "COMP_CWORD": str(words)} if shell == "bash" else {}),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        with monkeypatch.context() as here:
            for name, value in env.items():
                here.setenv(name, value)
            ended = cli()
        assert ended.err == ""
        return ended.out

    return complete


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("everstep resta", {"restart", "restarts"}),
        ("everstep logs demo --f", {"--follow"}),
        ("everstep completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_everstep_completes_for_bash(line: str, expected: set[str], completed: Completed) -> None:
    assert set(completed("bash", line).split()) == expected


def test_bash_offers_every_command() -> None:
    assert completed_by_bash("everstep ") >= {"run", "status", "watch", "logs", "report", "doctor"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_scripts_get_the_same(shell: str, cli: Cli, completed: Completed) -> None:
    names = completed(shell, "everstep resta")
    assert "restart" in names
    assert "status" not in names
    assert "--tail" in completed(shell, "everstep logs demo --ta")
    assert f"_EVERSTEP_COMPLETE=complete_{shell}" in cli("completion", shell).out


# -- Jobs and nodes -------------------------------------------------------------------------------


async def test_the_shell_completes_ids_of_jobs_the_open_ones_where_only_those_make_sense(
    served: AsyncCli, client: Client, completed: Completed
) -> None:
    async with working(client):
        await ended(served, client, "failed", "nightly-6")
        assert (await submitted(served, document("nightly-7"))).code == 0
        assert (await submitted(served, document("demo"))).code == 0

        async def are_listed() -> bool:
            return len((await served("list", "--json")).json) == 3

        await until(are_listed)
        by_bash = await asyncio.to_thread(completed_by_bash, "everstep status ni")
        lines = ("everstep pause n", "everstep report ", "everstep list ni")
        completions = [await asyncio.to_thread(completed, "bash", line) for line in lines]
        zsh = await asyncio.to_thread(completed, "zsh", "everstep logs night")
        fish = await asyncio.to_thread(completed, "fish", "everstep logs night")
        for name in ("nightly-7", "demo"):
            assert (await served("stop", name)).code == 0
    both = {"nightly-6", "nightly-7"}
    assert by_bash == both
    assert [set(text.split()) for text in completions] == [{"nightly-7"}, {*both, "demo"}, set()]
    assert all(name in zsh and name in fish for name in both)
    assert "demo" not in zsh + fish


async def test_the_shell_completes_nodes_those_of_this_machine_and_the_isolated_ones(
    client: Client, completed: Completed, served: AsyncCli
) -> None:
    settings = LocalSettings(home=Path(os.environ["EVERSTEP_HOME"]), nodes=3, devices=1)
    store = Store(settings.database)
    await store.run(lambda db: nodes.set_up(db, settings))
    store.close()
    lines = ("fault node-d", "fault node-down n", "release gpu", "release n")
    async with working(client):
        await client.start_workflow("NodeQuarantine", id="quarantine/local", task_queue="everstep")
        by_bash = await asyncio.to_thread(completed_by_bash, "everstep isolate n")
        completions = [
            await asyncio.to_thread(completed, "bash", f"everstep {line}") for line in lines
        ]
    here = {"n0", "n1", "n2"}
    assert by_bash == here
    assert [set(text.split()) for text in completions] == [{"node-down"}, here, {"gpu-07"}, set()]


def test_where_no_server_answers_nothing_is_completed_and_nothing_printed(
    cli: Cli, completed: Completed
) -> None:
    assert cli("list").code == 4
    assert completed("fish", "everstep status d").strip() == ""
    assert completed("fish", "everstep release n").strip() == ""


@pytest.mark.parametrize("name", ["$(reboot)", "a b", "a;b", "a`b", "a'b", 'a"b', "a:b", "a\nb"])
def test_a_name_that_a_shell_would_read_otherwise_is_not_offered(name: str) -> None:
    assert completion.harmless([name, "demo"], "") == ["demo"]
