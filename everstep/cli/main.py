"""The entry of `everstep`: a table of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from everstep import __version__
from everstep.cli.exits import Exit, Failed
from everstep.cli.output import shown
from everstep.core.errors import BackendUnavailable, EverstepError

Examples = Mapping[Callable[..., int | None], str]
"""Commands, with what follows their names in the examples of the help."""


def _documents() -> Examples:
    from everstep.cli.authoring import documents

    return {
        documents.init: "job.yaml",
        documents.validate: "job.yaml",
        documents.explain: "job.yaml",
        documents.schema: "> everstep.json",
    }


def _jobs() -> Examples:
    from everstep.cli.jobs import asking, listing, logs, watching
    from everstep.cli.running_here import running, starting

    return {
        running.run: "--processes 4 -- python train.py",
        starting.submit: "job.yaml --id nightly-7",
        listing.list_: "--state running --label team=nlp",
        asking.status: "demo",
        watching.watch: "demo",
        logs.logs: "demo --tail 20 -f",
        asking.restarts: "demo --all",
        asking.events: "demo --limit 10",
        asking.why: "demo 3",
    }


def _operating() -> Examples:
    from everstep.cli.cluster import doctor, faulting, nodes, pruning
    from everstep.cli.jobs import telling
    from everstep.cli.running_here import serving

    return {
        telling.pause: 'demo --reason "new switch"',
        telling.resume: "demo",
        telling.stop: "demo --grace-s 60",
        telling.restart: "demo --level pod",
        telling.report_fault: 'demo device.fault --node n2 --device 3 --code "XID 79"',
        telling.hot_update: "demo --set limits.hang_s=600 --now",
        telling.set_budget: "demo hardware 80",
        telling.adopt: "demo",
        serving.dev: "--nodes 4",
        pruning.prune: "--older-than 7d --dry-run",
        doctor.doctor: "--json",
        nodes.nodes: "--cluster local",
        nodes.release: "gpu-07",
        faulting.fault: "node-down n2 --partition",
    }


GROUPS: Mapping[str, Callable[[], Examples]] = {
    "Documents": _documents,
    "Jobs": _jobs,
    "Operating": _operating,
}
"""The commands under each heading of the help. A group is imported when one of its commands is asked for:
all that speaks to a server takes longer to import than a document takes to be judged."""

# What looks like an option is a word of its own language; it is asked for help with its words too.
WORDS: Mapping[str, Any] = {"ignore_unknown_options": True, "help_option_names": []}


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"everstep {__version__}")
        raise typer.Exit


def _everstep(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Run training jobs that take their next step whatever breaks.

    Server and namespace come from the TEMPORAL_* variables and profiles of the temporal CLI;
    EVERSTEP_PATIENCE_S says for how many seconds a worker's answer is waited for (10).
    """


def _flowing(text: str | None) -> str:
    """Paragraphs without the line breaks of our source: a terminal makes its own."""
    paragraphs = (text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _name(command: Callable[..., Any]) -> str:
    """`list_` is `list`, which Python keeps for itself."""
    return command.__name__.rstrip("_").replace("_", "-")


def _class_of(name: str) -> type[TyperCommand] | None:
    if name != "run":
        return None
    from everstep.cli.authoring.from_command import WithCommand

    return WithCommand


def _groups(wanted: str | None) -> dict[str, Examples]:
    """The group of the command that is wanted; all of them, where none has such a one."""
    found = {}
    for group, load in GROUPS.items():
        found[group] = load()
        if wanted in [_name(command) for command in found[group]]:
            return {group: found[group]}
    return found


def build(wanted: str | None = None) -> typer.Typer:
    """The application, from the table, as far as the wanted command needs it."""
    if os.environ.get("NO_COLOR"):
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_flowing(_everstep.__doc__))(_everstep)
    for group, some in _groups(wanted).items():
        for run, words in some.items():
            name = _name(run)
            app.command(
                name,
                help=_flowing(run.__doc__),
                cls=_class_of(name),
                rich_help_panel=group,
                epilog=f"Example:  [bold]everstep {name} {words}[/bold]",
                context_settings={**WORDS} if name == "fault" else None,
            )(run)
    return app


def main(argv: Sequence[str]) -> int:
    """Carry out one command; returns its exit code and raises nothing."""
    try:
        words = list(argv) or ["--help"]
        command = typer.main.get_command(build(words[0]))
        ended: Any = command.main(words, prog_name="everstep", standalone_mode=False)
    except Failed as error:
        return _say(error.code, str(error))
    except typer.TyperException as error:
        return _say(Exit.USAGE, f"{error.format_message().rstrip('.')} (`{_help(argv)}`)")
    except (KeyboardInterrupt, typer.Abort, asyncio.CancelledError):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        return _say(code, _sentence(error))
    return ended if isinstance(ended, int) else Exit.DONE


def _code(error: Exception) -> Exit | None:
    """Of what a command has not turned into a sentence itself: the first row that fits."""
    from temporalio.service import RPCError

    from everstep.processes import ProcessFailed

    rows: tuple[tuple[type[Exception], Exit], ...] = (
        (ProcessFailed, Exit.UNREACHABLE),  # a server or a worker of ours
        (RPCError, Exit.UNREACHABLE),
        (BackendUnavailable, Exit.UNREACHABLE),
        (EverstepError, Exit.USAGE),  # a document or a command that makes no sense
        (ConnectionError, Exit.UNREACHABLE),
        (TimeoutError, Exit.UNREACHABLE),
        (OSError, Exit.USAGE),  # a file or a folder that cannot be used as one
    )
    return next((code for kind, code in rows if isinstance(error, kind)), None)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror}"
    return str(error) or type(error).__name__


def _help(argv: Sequence[str]) -> str:
    named = [word for word in argv[:1] if word in map(_name, chain(*_groups(word).values()))]
    return " ".join(("everstep", *named, "--help"))


def _say(code: Exit, message: str) -> int:
    print(f"everstep: {shown(' '.join(message.split()))}", file=sys.stderr)
    return code


def _reader_left() -> int:
    """`everstep list | head`: whoever reads has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.DONE


def run() -> None:
    """What the script `everstep` comes to."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a sign that a terminal lacks is no reason to die
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The SDK's threads may crash an interpreter that is on its way out, and spoil the exit code.
    os._exit(code)
