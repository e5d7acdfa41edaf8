"""Where a command finds its files, whatever the folder of its pod is called."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import cast

from everstep.agent.processes.command_files import SHELL, placed
from everstep.protocol import wire

HOME = Path("/a $(b) of 'its' own")
FILE = f"{HOME}/files/params.yaml"


def words(*command: str) -> list[str]:
    order = wire.RunOrder(command=[*command])
    run_command = {"order": order, "files": {"params.yaml": "a: 1\n"}}
    return placed(cast("wire.RunCommand", run_command), HOME)["order"].command


def test_a_program_is_given_the_path_as_it_is() -> None:
    assert words("train", "{params}", "--at={params}") == ["train", FILE, f"--at={FILE}"]


def test_a_shell_reads_it_as_one_word() -> None:
    (text,) = words(*SHELL, "exec train {params}")[2:]
    assert shlex.split(text) == ["exec", "train", FILE]


def test_other_braces_stay() -> None:
    assert words("train", "{other}", "{}") == ["train", "{other}", "{}"]
