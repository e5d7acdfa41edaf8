"""Files that the command of a run reads: in the pod's own folder, where no other pod writes.

Files of an older run are replaced as a whole: a process that has one open still reads the old content.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from everstep.agent.storage import files, permissions
from everstep.protocol import wire

SHELL = ["/bin/sh", "-c"]


def write(home: Path, texts: Mapping[str, str], folder: str = wire.FILES) -> None:
    """Raises OSError."""
    if texts:
        permissions.ensure_below(home, home / folder)
    for name, text in texts.items():
        files.replace(home / folder / Path(name).name, text, within=home)


def placed(command: wire.RunCommand, home: Path) -> wire.RunCommand:
    """The command with the path of each file in place of its name, quoted where a shell reads it."""
    order = command["order"]
    words = with_paths(order.command, command["files"], home / wire.FILES)
    return {**command, "order": order._replace(command=words)}


def with_paths(words: list[str], names: Iterable[str], folder: Path) -> list[str]:
    quoted = shlex.quote if words[:2] == SHELL else str
    for name in names:
        path = folder.absolute() / Path(name).name
        words = [word.replace(f"{{{path.stem}}}", quoted(str(path))) for word in words]
    return words
