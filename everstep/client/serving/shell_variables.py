"""Variables of this shell that a job would not find: ranks get those of the worker that serves."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from temporalio.client import Client

from everstep.agent.processes import proc
from everstep.client.serving import pollers
from everstep.core.spec import JobSpec

NAMED_MOST = 5
"""The most variables that are named; the others are counted."""

OF_THE_SHELL = re.compile(
    r"_|PWD|OLDPWD|SHLVL|PATH|PS\d|TERM.*|COLORTERM|COLUMNS|LINES|LS_COLORS|NO_COLOR|PYTHON.*|VIRTUAL_ENV.*"
    r"|(EVERSTEP|TEMPORAL|SSH|XDG|DBUS|MAKE|VSCODE|TMUX|BASH|PYTEST)_.*|DISPLAY|TMUX|WINDOWID|MAKE.*|MFLAGS"
)
"""What differs from terminal to terminal and says nothing to a training script."""

NOT_PASSED = (
    "{names}: set here, but not in the environment of process {pid}, a worker that may start the job; "
    "{way}"
)
AS_OPTION = "--env NAME passes a variable on"
AS_KEY = "the document's `env` passes a variable on"


async def notes(there: Client, spec: JobSpec, *, is_from_command: bool) -> list[str]:
    """A note where the worker that serves the job's cluster has another environment than this shell."""
    _, activities = pollers.needed(spec.cluster)
    passed = {name for phase in spec.phases for name in (*phase.env, *phase.env_from)}
    for poller in await pollers.recent(there, activities):
        worker_env = _environment(poller.pid) if poller.pid and poller.may_answer else None
        missing = missing_from(worker_env, os.environ) - passed if worker_env is not None else set()
        if missing:
            way = AS_OPTION if is_from_command else AS_KEY
            return [NOT_PASSED.format(names=_names(sorted(missing)), pid=poller.pid, way=way)]
    return []


def missing_from(worker_env: Mapping[str, str], shell_env: Mapping[str, str]) -> set[str]:
    """The variables of ours that are absent or different there, but for those of a terminal."""
    return {
        name
        for name, value in shell_env.items()
        if worker_env.get(name) != value and not OF_THE_SHELL.fullmatch(name)
    }


def _environment(pid: int) -> dict[str, str] | None:
    """The environment of a process; None where it cannot be read."""
    try:
        raw = proc.environment(pid)
    except OSError:
        return None
    if not raw:
        return None
    pairs = (pair.partition(b"=") for pair in raw.split(b"\0") if b"=" in pair)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _names(missing: Sequence[str]) -> str:
    first, rest = missing[:NAMED_MOST], missing[NAMED_MOST:]
    return ", ".join(first) + (f" and {len(rest)} more" if rest else "")
