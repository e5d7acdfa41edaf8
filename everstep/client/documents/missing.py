"""What a document names and this machine has not: folder, program, script. A worker elsewhere may have it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from everstep.core.spec import JobSpec, Note, PhaseSpec

ELSEWHERE = "the start fails unless it is there where the worker runs"
SHELL = ("/bin/sh", "-c")
OF_A_SHELL = frozenset("|&;<>()$`\\\"'*?[]#~=%{}!\n")
"""With one of these a text is more than words with blanks between them."""
BUILT_IN = frozenset(
    {".", ":", "cd", "command", "eval", "exec", "exit", "export", "set", "ulimit", "umask"}
)
"""Commands of the shell itself: no program has to be there for them."""
SCRIPTS = (".py", ".sh")


def notes(spec: JobSpec, *, workdir: str, command: str) -> tuple[Note, ...]:
    """A note for each thing that is missing; the other arguments are what the fields are called."""
    fields = (
        Note(field=workdir if what == "workdir" else command, message=f"{message}; {ELSEWHERE}")
        for phase in spec.phases
        for what, message in _missing(phase)
    )
    return tuple(dict.fromkeys(fields))


def _missing(phase: PhaseSpec) -> Iterator[tuple[str, str]]:
    folder = Path(phase.workdir)
    if not os.path.isdir(folder):  # noqa: PTH112  # never raises
        yield "workdir", f"{folder} is no folder on this machine"
        return
    words = _words(phase.command)
    if not words:
        return
    path = str(folder / words[0]) if "/" in words[0] else words[0]
    if shutil.which(path, path=phase.env.get("PATH")) is None:
        yield "command", f"there is no program {words[0]} on this machine"
    script = _script(words)
    if script is not None and not os.path.isfile(folder / script):  # noqa: PTH113  # never raises
        yield "command", f"there is no {script} in {folder} on this machine"


def _words(command: tuple[str, ...]) -> tuple[str, ...]:
    """The program and its arguments; empty if only a shell could parse them."""
    if command[:2] != SHELL:
        return command
    text = " ".join(command[2:])
    if OF_A_SHELL & {*text}:
        return ()
    words = tuple(text.split())
    words = words[1:] if words[:1] == ("exec",) else words
    return () if words[:1] and words[0] in BUILT_IN else words


def _script(words: tuple[str, ...]) -> str | None:
    """The script that an interpreter or a launcher would read, by its name."""
    for word in words[1:]:
        if word in ("-c", "-m"):
            return None
        if word.endswith(SCRIPTS) and not word.startswith("-"):
            return word
    return None
