"""The words of `everstep run -- python train.py`: its options, and where the command begins."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from everstep.client.documents.command_document import begins_command
from everstep.client.exit_codes import Exit, Failed
from everstep.dialects.native.values import YEAR_S

WORDS = f"{__name__}.words"
"""The key of a context's `meta` with all words behind `everstep run`."""

ProcessesOption = Annotated[
    int | None, typer.Option(min=1, help="Processes of the command on each node (1).")
]
CheckpointsOption = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where the command saves its checkpoints.")
]
CheckpointPattern = Annotated[
    str | None,
    typer.Option(metavar="RE", help=r"What checkpoints are called: 'state_(?P<step>\d+)'."),
]
SaveSignal = Annotated[
    str | None,
    typer.Option(
        metavar="SIG", help="The signal on which the command saves and goes on, as SIGUSR1."
    ),
]
PrewarmOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        help="Import this ahead of restarts; may be repeated. `auto`, the default: what ranks have loaded. "
        "`off`: nothing.",
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=VALUE]",
        help="A variable of the command, as here, kept in the job's history; may be repeated.",
    ),
]
HangOption = Annotated[
    float | None,
    typer.Option(
        min=1, max=YEAR_S, help="Seconds that a step may take; else learned from the steps."
    ),
]
Prints = Annotated[
    bool, typer.Option("--print", help="Print the document that the command stands for.")
]


class WithCommand(TyperCommand):
    """What follows `--` is a command, kept as it is in the context's `args`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own_args, dashes, command = _parted(args)
        try:
            super().parse_args(ctx, own_args)
        except typer.TyperException:
            if not dashes:
                _refuse_bare(args)
            raise
        if not dashes and begins_command(ctx.params.get("file") or ""):
            _refuse_bare(args)
        ctx.args = command
        ctx.meta[WORDS] = args
        return command

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx)[:1], "FILE | -- COMMAND ..."]


def _parted(args: list[str]) -> tuple[list[str], list[str], list[str]]:
    end = args.index("--") if "--" in args else len(args)
    return args[:end], args[end : end + 1], args[end + 1 :]


def _refuse_bare(words: Sequence[str]) -> None:
    """Say how it is written if there is a command among these words of `run`."""
    begin = next((i for i, word in enumerate(words) if begins_command(word)), None)
    if begin is None:
        return
    command = [*(["python"] if words[begin].endswith(".py") else []), *words[begin:]]
    line = shlex.join(["everstep", "run", *words[:begin], "--", *command])
    raise Failed(Exit.USAGE, f"a command comes behind two dashes: `{line}`")
