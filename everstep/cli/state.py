"""Where this machine's own cluster and server keep their things: `EVERSTEP_HOME`."""

from __future__ import annotations

import os
from pathlib import Path

from everstep.cli.exits import Exit, Failed

DEFAULT = "~/.everstep"


def home() -> Path:
    """The state directory, as an absolute path; it need not be there yet."""
    return Path(os.environ.get("EVERSTEP_HOME") or DEFAULT).expanduser().absolute()


def made_home() -> Path:
    """The same, and it is there."""
    directory = home()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"EVERSTEP_HOME is {directory} and cannot be made: {error.strerror}"
        raise Failed(Exit.USAGE, f"{problem}; set it to a folder") from None
    return directory
