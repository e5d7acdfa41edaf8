"""What starts must have in common to share a prewarm helper, and the order for each of its forks.

A helper fits starts with the same interpreter, folder, modules and environment. Only variables of a rank or
of a generation may differ, as no import should read them.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from everstep.agent.processes.rank import PRINTS_STACKS, Rank
from everstep.agent.processes.run import Run
from everstep.protocol import rank_memory, wire

START_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
        *("EVERSTEP_GENERATION", "EVERSTEP_PHASE", "EVERSTEP_SLOT", "EVERSTEP_AGENT"),
        "TRACEPARENT",
        *("EVERSTEP_RESUME_STEP", "EVERSTEP_RESUME_PATH", "EVERSTEP_STATE_FROM"),
        *(wire.RANK_FOLDER, wire.LAST_WORDS_FILE),
        *(rank_memory.SOCKET_FOLDER, rank_memory.TOKEN, rank_memory.SNAPSHOT_STEP),
        *("MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "MA_NUM_HOSTS", "MA_CURRENT_INSTANCE_NAME"),
        *("VC_TASK_INDEX", "VC_WORKER_NUM", "VC_WORKER_HOSTS"),
    }
)
"""Variables that differ from start to start: a helper is started without them."""

FLAGS = "BEOsu"
"""Flags of the interpreter that concern the whole process, so that a helper may have them too."""


class Python(NamedTuple):
    """A command that is a Python script or module, taken apart."""

    interpreter: tuple[str, ...]  # with its flags
    script: str | None
    module: str | None
    argv: tuple[str, ...]


def parse_python_command(command: list[str]) -> Python | None:
    """Parse a command that runs Python. None if it is anything else."""
    if re.fullmatch(r"python[0-9.]*", Path(command[0]).name) is None:
        return None
    at = 1
    while at < len(command) and re.fullmatch(f"-[{FLAGS}]+", command[at]):
        at += 1
    rest = command[at:]
    interpreter = tuple(command[:at])
    if len(rest) > 1 and rest[0] == "-m":
        return Python(interpreter, None, rest[1], ("-m", *rest[2:]))
    if rest and not rest[0].startswith("-"):
        return Python(interpreter, rest[0], None, tuple(rest))
    return None


class HelperSpec(NamedTuple):
    """What starts have in common if one helper can serve them."""

    interpreter: tuple[str, ...]
    script_folder: str  # the first entry of sys.path
    workdir: str
    modules: tuple[str, ...]
    env: tuple[tuple[str, str], ...]


class Unfit(OSError):
    """No helper can serve the start."""


def script_of(command: wire.RunCommand) -> Path | None:
    """The script that the command runs; None if it runs a module. Raises Unfit if no helper can serve it."""
    helper_spec_of(command)
    python = parse_python_command(command["order"].command)
    if python is None or python.script is None:
        return None
    return Path(command["order"].workdir, python.script)


def helper_spec_of(command: wire.RunCommand) -> HelperSpec:
    """The helper that this start needs, which imports the command's `prewarm`. Raises Unfit."""
    import zipfile  # some milliseconds of an agent's start

    python = parse_python_command(command["order"].command)
    if python is None:
        raise Unfit("the command is neither `python SCRIPT` nor `python -m MODULE`")
    script_folder = Path(os.path.realpath(command["order"].workdir))
    if python.script is not None:
        script = script_folder / python.script
        if not script.is_file() or script.suffix == ".pyc" or zipfile.is_zipfile(script):
            raise Unfit(f"{script} is no file of Python source")
        script_folder = script.resolve().parent
    excluded = start_variables(command)
    shared = {**PRINTS_STACKS, **command["env"]}
    env = tuple(sorted((k, v) for k, v in shared.items() if k not in excluded))
    modules = tuple(command["order"].prewarm)
    return HelperSpec(
        python.interpreter, str(script_folder), command["order"].workdir, modules, env
    )


def start_variables(command: wire.RunCommand) -> set[str]:
    """Names of the variables that a fork gets with its order, and that its helper is started without."""
    return {name for plan in command["ranks"] for name in plan["env"]} | START_VARIABLES


def order_for(run: Run, rank: Rank) -> bytes:
    """The order that turns a fork into this rank."""
    python = parse_python_command(run.order.command)
    assert python is not None  # or there were no helper to ask
    env = rank.environment(run.command["env"])
    return json.dumps(
        {
            "command": run.order.command,
            "script": python.script,
            "module": python.module,
            "argv": python.argv,
            "env": {name: env[name] for name in env.keys() & start_variables(run.command)},
            "workdir": run.order.workdir,
        }
    ).encode()
