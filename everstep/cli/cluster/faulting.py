"""The command `fault`: something goes wrong on this machine's cluster, now, for a rehearsal."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Mapping
from typing import Annotated

import typer

from everstep.backends.tools import NothingRuns
from everstep.cli import completion
from everstep.client import machine
from everstep.client.exit_codes import Exit, Failed

HELP = ("--help", "-h")
TEACHES = (
    "What is in brackets may be left out; as an option it may stand anywhere: "
    "--severity critical, --partition, --signal KILL."
)


def fault(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FAULT ...",
            help="What is to happen; `fault list` shows them all.",
            autocompletion=completion.fault_words,
        ),
    ] = None,
) -> None:
    """Inject a fault into the local cluster, for a rehearsal.

    Processes are really killed or stopped; nodes and devices of the cluster are marked. `clear NODE`
    resets a node. `fault NAME --help` shows how that one is written.
    """
    usages = machine.tools().fault_usages()
    line_words = words or []
    if any(word in HELP for word in line_words):
        _teach(ctx, line_words, usages)
    elif line_words == ["list"]:
        for name, usage in usages.items():
            print(f"{name} {usage}")
    else:
        line = shlex.join(_line(line_words))  # a code may have a blank in it: "XID 79"
        _carry_out(line)
        print(f"done: {line}")


def _teach(ctx: typer.Context, words: list[str], usages: Mapping[str, str]) -> None:
    name = next((word for word in words if word in usages), None)
    if name is None:
        print(ctx.get_help(), end="")
    else:
        print(f"everstep fault {name} {usages[name]}\n{TEACHES}")


def _carry_out(line: str) -> None:
    try:
        with machine.database_can_be_read():
            asyncio.run(machine.tools().fault(line))
    except NothingRuns as error:
        raise Failed(Exit.JOB_FAILED, str(error)) from None
    except ValueError as error:
        raise Failed(Exit.USAGE, str(error)) from None


# -- Options as words ---------------------------------------------------------------------------

HAVE_A_VALUE = frozenset({"severity", "signal"})


def _line(words: list[str]) -> list[str]:
    """The words of a fault line: `--partition` is `partition`, and comes behind what it is about."""
    plain: list[str] = []
    options: list[str] = []
    coming = iter(words)
    for word in coming:
        if not word.startswith("--"):
            plain.append(word)
            continue
        name, is_joined, value = word[2:].partition("=")
        if name in HAVE_A_VALUE and not is_joined:
            value = next(coming, "")
        options += _option(name, value)
    return [*plain, *options]


def _option(name: str, value: str) -> list[str]:
    if name == "severity":  # says it all: `--severity critical` is `critical`
        return [value.lower()]
    if name == "signal":
        return [name, _signal(value)]
    return [name if not value else f"{name}={value}"]


def _signal(value: str) -> str:
    """`9`, `KILL` and `SIGKILL` are the same."""
    name = value.upper()
    member = signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
    return value if member is None else str(member.value)
