"""The command `completion`, and what a shell wants completed: words of a command line, jobs, nodes.

Jobs and isolated nodes come from the server. Nothing is offered where it does not answer at once.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # not in its __all__

if TYPE_CHECKING:
    from temporalio.client import Client  # imported where a server is asked

ANSWER_S = 2.0
"""A TAB waits no longer for the server."""
NAMES_MOST = 100
HARMLESS = re.compile(r"[A-Za-z0-9_.@%+=/,-]+")
"""What no shell reads as anything but a word."""
OF_OPEN_JOBS = frozenset(
    ("watch", "pause", "resume", "stop", "restart", "report-fault", "hot-update", "set-budget")
)
"""Commands that make no sense for a job that has ended."""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell in use.")],
) -> None:
    """Print a script with which a shell completes commands and options.

    In ~/.bashrc: eval "$(everstep completion bash)"; in ~/.zshrc the same with zsh; in
    ~/.config/fish/config.fish: everstep completion fish | source
    """
    print(
        get_completion_script(prog_name="everstep", complete_var="_EVERSTEP_COMPLETE", shell=shell)
    )


def words_before(environ: Mapping[str, str]) -> list[str]:
    """The words between `everstep` and the one to complete."""
    line = environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS") or ""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is still open
        words = line.split()
    begun = 0 if line.endswith(" ") else 1  # bash alone counts the words itself
    return words[1 : int(environ.get("COMP_CWORD", len(words) - begun))]


# -- Jobs and nodes -------------------------------------------------------------------------------


def job_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The jobs whose IDs begin so, the newest first; the open ones, where the command is for those."""
    is_open = ctx.command.name in OF_OPEN_JOBS
    return _names_from_server(lambda client: _jobs(client, incomplete, is_open=is_open), incomplete)


async def _jobs(client: Client, beginning: str, *, is_open: bool) -> list[str]:
    from everstep.core import names

    if beginning and not HARMLESS.fullmatch(beginning):
        return []
    list_filter = f"WorkflowType = '{names.TRAINING_JOB}'"
    if beginning:
        list_filter += f" AND WorkflowId STARTS_WITH '{beginning}'"
    if is_open:
        list_filter += " AND ExecutionStatus = 'Running'"
    return [row.id async for row in client.list_workflows(list_filter, limit=NAMES_MOST)]


def node_names(ctx: typer.Context | None, incomplete: str) -> list[str]:
    """The nodes of this machine whose names begin so."""
    del ctx  # typer finds the arguments by their names
    return harmless(_nodes_here(), incomplete)


def isolated_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """The isolated nodes whose names begin so, of the cluster that the command names."""
    cluster = str(ctx.params.get("cluster") or "local")

    async def nodes(client: Client) -> list[str]:
        from everstep.core import names

        quarantine = client.get_workflow_handle(names.quarantine_id(cluster))
        rows = await quarantine.query("nodes")
        return [row["name"] for row in rows if row["state"] == "isolated"]

    return _names_from_server(nodes, incomplete)


def fault_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """The name of a fault, then what it is about, as its usage says."""
    from everstep.client import machine

    words = ctx.params.get("words") or []
    usages = machine.tools().fault_usages()
    if not words:
        return harmless([*usages, "list"], incomplete)
    usage = usages.get(words[0], "").split()
    about = usage[len(words) - 1] if len(words) <= len(usage) else ""
    kinds = {"NODE": node_names, "JOB": job_ids}
    return kinds[about](ctx, incomplete) if about in kinds else []


def harmless(names: Iterable[str], beginning: str) -> list[str]:
    """Those that begin so and are words to every shell, each once."""
    fitting = (name for name in names if name.startswith(beginning) and HARMLESS.fullmatch(name))
    return list(dict.fromkeys(fitting))[:NAMES_MOST]


def _nodes_here() -> list[str]:
    from everstep.client import machine
    from everstep.core.errors import EverstepError

    try:
        return [node.name for node in asyncio.run(machine.tools().nodes())]
    except (EverstepError, OSError):
        return []


def _names_from_server(
    query: Callable[[Client], Awaitable[list[str]]], beginning: str
) -> list[str]:
    """The names that the server returns in time; none where it does not."""
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError

    from everstep.client import connection
    from everstep.client.exit_codes import Failed

    async def names() -> list[str]:
        async with asyncio.timeout(ANSWER_S):
            return await query(await connection.client())

    try:
        return harmless(asyncio.run(names()), beginning)
    except (Failed, RPCError, TimeoutError, WorkflowQueryFailedError):
        return []
