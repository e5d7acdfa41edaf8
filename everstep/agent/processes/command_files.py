"""Files that the command of a run reads: in the pod's own folder, where no other pod writes.

Those of an older run are replaced as a whole: whoever reads one still has what was there.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from everstep.agent import wire
from everstep.agent.storage import files, permissions

SHELL = ["/bin/sh", "-c"]


def write(home: Path, texts: Mapping[str, str]) -> None:
    """Raises OSError."""
    if texts:
        permissions.below(home, home / wire.FILES)
    for name, text in texts.items():
        files.replace(home / wire.FILES / Path(name).name, text)


def placed(command: wire.RunCommand, home: Path) -> wire.RunCommand:
    """With the path of each file where it is named; what a shell reads is quoted for it."""
    words = command["command"]
    quoted = shlex.quote if words[:2] == SHELL else str
    for name in command["files"]:
        path = home.absolute() / wire.FILES / Path(name).name
        words = [word.replace(f"{{{path.stem}}}", quoted(str(path))) for word in words]
    return {**command, "command": words}
