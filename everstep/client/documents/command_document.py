"""A job without a document: a command such as `python train.py`, and the document it stands for."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from everstep.client.documents.documents import JobDocument
from everstep.client.exit_codes import Exit, Failed
from everstep.core.errors import InvalidSpec
from everstep.dialects import registry
from everstep.dialects.native.values import JOB_NAME

NAME_MOST = 63

KEYS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("nodes",),
    "processes": ("processes_per_node",),
    "checkpoints": ("checkpoints", "path"),
    "checkpoint_pattern": ("checkpoints", "pattern"),
    "save_signal": ("checkpoints", "save_signal"),
    "prewarm": ("prewarm",),
    "env": ("env",),
    "log_pattern": ("progress", "log_pattern"),
    "hang_s": ("limits", "hang_s"),
}
"""What options of `run` say in a document, below its `spec`."""

LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate")
STARTS_ITS_OWN = (
    "{launcher} starts processes of its own, of which nothing is seen here: `--processes N` and the script "
    "itself do the same, and each rank is watched"
)

INTERPRETER = re.compile(r"(python[0-9.]*|(ba|da|z|k)?sh)")
SCRIPT = re.compile(r".+\.(py|sh)")


def job_of(command: Sequence[str], options: Mapping[str, Any]) -> JobDocument:
    """The job that starts this command where we stand; `options` are those of `run`, by name."""
    spec_keys: dict[str, Any] = {}
    for name, value in options.items():
        *folders, key = KEYS[name]
        place = spec_keys
        for folder in folders:
            place = place.setdefault(folder, {})
        place[key] = value[0] if value in (["auto"], ["off"]) else value
    document = {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name_of(command)},
        "spec": {
            "command": [_program(command[0]), *command[1:]],
            "workdir": str(Path.cwd()),
            **spec_keys,
        },
    }
    try:
        spec = registry.compile_document(document)
        return JobDocument(document=document, spec=spec, is_from_command=True)
    except InvalidSpec as error:
        (field, message), *_ = error.problems
        raise Failed(Exit.USAGE, f"{_as_option(field)}: {message}") from None


def refuse_for_documents(options: Mapping[str, Any]) -> None:
    """Raise `Failed` if there is an option: a document says the same itself."""
    for name in options:
        key = ".".join(("spec", *KEYS[name]))
        problem = f"{option(name)} is for a command; in a document it is {key}"
        raise Failed(Exit.USAGE, problem)


def refuse_other(job_id: str, document: Mapping[str, Any], running: Any) -> None:
    """Refuse to watch another job of the same ID by mistake: many scripts are called train.py."""
    running_spec = running.get("spec", {})
    if all(running_spec.get(key) == document["spec"][key] for key in ("command", "workdir")):
        return
    hint = "give this job an ID with --id NEW"
    raise Failed(Exit.USAGE, f"{job_id} is running already: {command_in_words(running)}; {hint}")


def is_same_script(document: Mapping[str, Any], other: Any) -> bool:
    """Whether both documents run one script in one folder, with whatever arguments."""
    specs = [document["spec"], other.get("spec", {})]
    commands = [spec.get("command") for spec in specs]
    if not all(isinstance(command, list) and command for command in commands):
        return False
    folders = {spec.get("workdir") for spec in specs}
    return len(folders) == 1 and _script(commands[0]) == _script(commands[1])


def command_in_words(document: Any) -> str:
    """What a document runs and where, for people."""
    spec = document.get("spec", {})
    command = spec.get("command", "something else")
    what = command if isinstance(command, str) else shlex.join(command)
    return what + (f" in {spec['workdir']}" if "workdir" in spec else "")


def notes_of(job: JobDocument) -> Iterator[str]:
    """Notes for the user about this command."""
    words = [PurePath(word).name for word in job.spec.phases[0].command]
    yield from (STARTS_ITS_OWN.format(launcher=word) for word in words if word in LAUNCHERS)
    yield from (f"{_as_option(note.field)} {note.message}" for note in job.spec.notes)


def variables(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME` for what it is here."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            problem = f"--env {text}: there is no such variable here; write NAME=VALUE"
            raise Failed(Exit.USAGE, problem)
        options[name] = value if equals else os.environ[name]
    return options


def _as_option(field: str) -> str:
    for name, keys in KEYS.items():
        path = ".".join(("spec", *keys))
        if path.startswith(field) or field.startswith(path):
            return option(name)
    return field


def option(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def _program(word: str) -> str:
    """The program's path by this shell's PATH; the worker that starts it may have another one."""
    if path := shutil.which(word):
        return word if "/" in word else path
    where = "; give its path from here" if "/" in word else " on the PATH"
    raise Failed(Exit.USAGE, f"{word}: no such program{where}, or it may not be executed")


def name_of(command: Sequence[str]) -> str:
    """The script's name, else the program's, as far as it can name a job."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(_script(command)).name)
    name = re.sub(r"\.(py|sh)$", "", name)[:NAME_MOST].strip("._-")
    return name if re.fullmatch(JOB_NAME, name) else "job"


def _script(command: Sequence[str]) -> str:
    program, *rest = command
    if not INTERPRETER.fullmatch(PurePath(program).name) or "-c" in rest:
        return program
    if "-m" in rest[:-1]:
        return rest[rest.index("-m") + 1]
    return next((word for word in rest if SCRIPT.fullmatch(word)), program)


def begins_command(word: str) -> bool:
    return bool(INTERPRETER.fullmatch(PurePath(word).name) or SCRIPT.fullmatch(word))
