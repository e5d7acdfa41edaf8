"""The entry of `everstep`: a table of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from everstep.cli.output import shown
from everstep.client.exit_codes import Exit, Failed
from everstep.core.bounds import cut
from everstep.core.errors import BackendUnavailable, EverstepError
from everstep.version import __version__


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the function behind it, and what follows its name in the example of its help."""

    place: str  # `jobs.query_commands:status`, below everstep.cli
    example: str

    @property
    def name(self) -> str:
        """`list_` is `list`, which Python keeps for itself."""
        return self.place.partition(":")[2].rstrip("_").replace("_", "-")

    def load(self) -> Callable[..., int | None]:
        """Import the function. A client of the server takes longer to import than most commands run."""
        module, _, function = self.place.partition(":")
        loaded: Callable[..., int | None] = getattr(
            import_module(f"everstep.cli.{module}"), function
        )
        return loaded


GROUPS: Mapping[str, Sequence[Command]] = {
    "Documents": (
        Command("authoring.documents:init", "job.yaml"),
        Command("authoring.documents:validate", "job.yaml"),
        Command("authoring.documents:explain", "job.yaml"),
        Command("authoring.documents:schema", "> everstep.json"),
        Command("authoring.simulating:simulate", "job.yaml --nodes 1000 --spares 0,8"),
    ),
    "Jobs": (
        Command("running_here.running:run", "--processes 4 -- python train.py"),
        Command("running_here.starting:submit", "job.yaml --id nightly-7"),
        Command("jobs.listing:list_", "--state running --label team=nlp"),
        Command("jobs.query_commands:status", "demo"),
        Command("jobs.watching:watch", "demo"),
        Command("jobs.logs:logs", "demo --tail 20 -f"),
        Command("jobs.query_commands:restarts", "demo --all"),
        Command("jobs.query_commands:events", "demo --limit 10"),
        Command("jobs.query_commands:why", "demo 3"),
        Command("jobs.query_commands:show", "demo"),
        Command("jobs.reporting:report", "demo -o demo.html"),
    ),
    "Operating": (
        Command("jobs.update_commands:pause", 'demo --reason "new switch"'),
        Command("jobs.update_commands:resume", "demo"),
        Command("jobs.update_commands:stop", "demo --grace-s 60"),
        Command("jobs.update_commands:restart", "demo --level pod"),
        Command("jobs.update_commands:checkpoint", "demo --within-s 120"),
        Command(
            "jobs.update_commands:report_fault",
            'demo device.fault --node n2 --device 3 --code "XID 79"',
        ),
        Command("jobs.update_commands:hot_update", "demo --set limits.hang_s=600 --now"),
        Command("jobs.update_commands:set_budget", "demo hardware 80"),
        Command("jobs.update_commands:adopt", "demo"),
        Command("running_here.serving:dev", "--nodes 4"),
        Command("cluster.pruning:prune", "--older-than 7d --dry-run"),
        Command("cluster.setting_up:setup", "--retention 30d"),
        Command("cluster.doctor:doctor", "--json"),
        Command("cluster.nodes:nodes", "--cluster local"),
        Command("cluster.nodes:isolate", 'gpu-07/3 --reason "hot"'),
        Command("cluster.nodes:release", "gpu-07"),
        Command("cluster.codec:codec_server", "--origin https://temporal.example.com"),
        Command("cluster.faulting:fault", "node-down n2 --partition"),
        Command("completion:completion", "bash"),
    ),
}
"""The commands under each heading of the help."""

ID_SHOWN = 80
OF_PYDANTIC = "Value error, "
"""What pydantic puts before the problem of an option's value."""
HINTS: Mapping[str, str] = {
    "int_parsing": "give a whole number",
    "int_parsing_size": "give a smaller number",
    "float_parsing": "give a number",
    "greater_than_equal": "give {ge:.12g} or more",
    "less_than_equal": "give {le:.12g} or less",
}
"""What to give instead of a number that pydantic refuses for this reason."""
PROBLEMS: Mapping[str, str] = {
    r"No such option: (-\d)": "there is no option {}, and no argument takes a negative number",
    r"No such option: (\S+)": "there is no option {}",
    r"Got unexpected extra argument\(s\) \((.*)\)": "leave out {}: there is no such argument",
    r"Missing (?:argument|option) '\[?([^]']+)\]?'.*": "{} is missing",
    r"Option '(\S+)' requires an argument": "{} is without its value",
    r"Option '(\S+)' does not take a value": "{} takes no value",
}
"""A pattern of what typer says of the words of a command line, and the same in our own words."""
UNKNOWN_OPTION = r"No such option: (\S+) \(Possible options: (.+)\)"
VERSION = "--version"
COMPLETION = "_EVERSTEP_COMPLETE"
"""Set by a shell's script when TAB is pressed."""

ELSEWHERE: Mapping[str, str] = {
    "apply": "submit",
    "cancel": "stop",
    "cordon": "isolate",
    "create": "submit",
    "delete": "stop",
    "describe": "show",
    "drain": "isolate",
    "exec": "run",
    "get": "list",
    "history": "restarts",
    "jobs": "list",
    "kill": "stop",
    "log": "logs",
    "ls": "list",
    "ps": "list",
    "start": "submit",
    "suspend": "pause",
    "terminate": "stop",
    "top": "watch",
    "uncordon": "release",
    "worker": "dev",
}
"""Names of commands of other tools, and our command that does the same."""

# `fault` parses its words itself. Those that begin with `-` are no options for typer, `--help` included.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fault": {"ignore_unknown_options": True, "help_option_names": []},
    # -1 is read as a limit, which is then refused, and not as an option.
    "set-budget": {"ignore_unknown_options": True},
}


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"everstep {__version__}")
        raise typer.Exit


def _everstep(
    _version: Annotated[
        bool,
        typer.Option(VERSION, help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Run training jobs that take their next step whatever breaks.

    Server and namespace come from the TEMPORAL_* variables and profiles of the temporal CLI;
    EVERSTEP_PATIENCE_S is the number of seconds to wait for the answer of a worker (10).
    """


def _flowing(text: str | None) -> str:
    """Paragraphs without the line breaks of our source: a terminal makes its own."""
    paragraphs = (text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _class_of(name: str) -> type[TyperCommand] | None:
    if name != "run":
        return None
    from everstep.cli.authoring.from_command import WithCommand

    return WithCommand


def _commands_to_load(word: str | None) -> dict[str, list[Command]]:
    """The command of this name, under its heading.

    All commands if none has the name; none for the version.
    """
    if word == VERSION:
        return {}
    by_group = {
        group: [command for command in commands if word in (None, command.name)]
        for group, commands in GROUPS.items()
    }
    return by_group if any(by_group.values()) else _commands_to_load(None)


def _nothing() -> None:
    """Stands for a command of which only the name is needed."""


def build(name: str | None = None, *, names_only: bool = False) -> typer.Typer:
    """The application, from the table, as far as the command of this name needs it."""
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
    for group, commands in _commands_to_load(name).items():
        for command in commands:
            run = _nothing if names_only else command.load()
            app.command(
                command.name,
                help=_flowing(run.__doc__),
                cls=_class_of(command.name),
                rich_help_panel=group,
                epilog=f"Example:  [bold]everstep {command.name} {command.example}[/bold]",
                context_settings=dict(SETTINGS.get(command.name, {})),
            )(run)
    return app


def _complete() -> int:
    """Print for a shell what may follow the words before TAB; returns the exit code.

    Commands are imported only where their options are wanted.
    """
    from typer.completion import completion_init  # type: ignore[attr-defined]  # not in its __all__

    from everstep.cli.completion import words_before

    words = words_before(os.environ)
    completion_init()
    is_named = any(words[:1] == [command.name] for command in chain(*GROUPS.values()))
    app = build(words[0]) if is_named else build(names_only=True)
    try:
        typer.main.get_command(app).main([], prog_name="everstep")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.DONE
    return Exit.DONE


def main(argv: Sequence[str]) -> int:
    """Carry out one command; returns its exit code and raises nothing."""
    if COMPLETION in os.environ:
        return _complete()
    with _own_warnings_printed():
        return _main(argv)


def _main(argv: Sequence[str]) -> int:
    try:
        words = list(argv) or ["--help"]
        if command_name := ELSEWHERE.get(words[0]):
            raise Failed(
                Exit.USAGE, f"there is no command {words[0]}; try `everstep {command_name} --help`"
            )
        command = typer.main.get_command(build(words[0]))
        ended: Any = command.main(words, prog_name="everstep", standalone_mode=False)
    except Failed as error:
        return _say(error.code, str(error))
    except typer.TyperException as error:
        return _say(Exit.USAGE, f"{_problem(error)} (`{_help(argv)}`)")
    except (KeyboardInterrupt, typer.Abort, asyncio.CancelledError):
        return Exit.INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer's answer to it is to exit with 1
            return _reader_left()
        raise
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        return _say(code, _sentence(error))
    return ended if isinstance(ended, int) else Exit.DONE


def _problem(error: typer.TyperException) -> str:
    """What is wrong with the words of a command line, in our own words."""
    from pydantic import ValidationError

    if isinstance(error, typer.BadParameter) and isinstance(error.__cause__, ValidationError):
        reason = error.__cause__.errors()[0]
        if error.param is not None and (hint := HINTS.get(reason["type"])):
            name = re.sub(r"['\[\]]", "", error.param.get_error_hint())
            return f"{name} {cut(str(reason['input']), ID_SHOWN)}: {hint.format(**reason.get('ctx', {}))}"
    problem = error.format_message().rstrip(".").replace(OF_PYDANTIC, "")
    if match := re.fullmatch(UNKNOWN_OPTION, problem):
        return _unknown_option(*match.groups())
    for pattern, sentence in PROBLEMS.items():
        if match := re.fullmatch(pattern, problem):
            return sentence.format(*match.groups())
    return problem


def _unknown_option(option: str, options: str) -> str:
    """The option with the one that is most like it: typer lists several in the order of the alphabet."""
    import difflib  # for this sentence alone

    (nearest,) = difflib.get_close_matches(option, options.split(", "), n=1, cutoff=0.0)
    return f"there is no option {option}; try {nearest}"


def _code(error: Exception) -> Exit | None:
    """The exit code of an error that a command did not turn into `Failed`; None: it is a bug."""
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
        (UnicodeEncodeError, Exit.USAGE),  # a word of the command line that no server takes
    )
    return next((code for kind, code in rows if isinstance(error, kind)), None)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror}"
    if isinstance(error, UnicodeEncodeError):
        return f"{ascii(error.object[:ID_SHOWN])[1:-1]} is no text in UTF-8"
    return str(error) or type(error).__name__


def _help(argv: Sequence[str]) -> str:
    names = [command.name for command in chain(*GROUPS.values()) if command.name in argv[:1]]
    return " ".join(("everstep", *names, "--help"))


def _say(code: Exit, message: str) -> int:
    print(f"everstep: {shown(' '.join(message.split()))}", file=sys.stderr)
    return code


def _reader_left() -> int:
    """End quietly if the reader of a pipe has closed it, as in `everstep list | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.DONE


class OwnWarnings(logging.Handler):
    """Prints what Everstep itself logs, such as that it wakes a process for which it waits."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"note   {shown(record.getMessage())}", file=sys.stderr)


@contextlib.contextmanager
def _own_warnings_printed() -> Iterator[None]:
    """Print the warnings of Everstep's own modules inside the block."""
    logger, handler = logging.getLogger("everstep"), OwnWarnings()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def run() -> None:
    """The entry point of the script `everstep`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may lack a character
    # What libraries log is not printed: errors are sentences of ours.
    logging.getLogger().addHandler(logging.NullHandler())
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
    # The SDK's threads may crash an interpreter that is on its way out, and spoil the exit code.
    os._exit(code)
