"""Releases the fences of a job that has ended: by request of a worker, or as a process of its own.

python3 -I AGENT.pyz release JSON

JSON is a ReleaseCommand. Prints the folders that stay the job's, and why; then the exit code is 1.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

from everstep.agent import commands
from everstep.agent.storage import fence, fence_writing, reading
from everstep.agent.storage.fence_writing import time_left
from everstep.protocol import wire


def release(command: wire.ReleaseCommand, *, within_s: float) -> dict[str, str]:
    """Release all folders at once; return those that cannot be reached, and why. Repeatable.

    However many folders hang, this takes no longer than `within_s`.
    """
    problems, begun, left_s = {}, {}, time_left(within_s)
    for folder in command["folders"]:
        try:
            begun[folder] = reading.begin(folder, partial(_release, folder, command))
        except OSError as error:
            problems[folder] = str(error)
    for folder, released in begun.items():
        try:
            reading.result_of(folder, released, within_s=left_s())
        except OSError as error:
            problems[folder] = str(error)
    return problems


def _release(folder: str, command: wire.ReleaseCommand) -> None:
    owner = (command["job"], command["cluster"])
    for above in command["folders"]:
        is_inside = above != folder and Path(folder).is_relative_to(above)
        if is_inside and fence.missing_volume([above, folder], owner):
            raise OSError(fence_writing.NOT_MOUNTED.format(folder))
    fence.release(folder, owner, up_to=command["generation"])
    fence.outdate_earlier(folder, command["job"], command["earlier"])


def main() -> None:
    command: wire.ReleaseCommand = commands.read(json.loads(sys.argv[2]), wire.ReleaseCommand)
    problems = release(command, within_s=reading.WITHIN_S)
    for folder, why in problems.items():
        sys.stdout.write(f"{folder}: {why}\n")
    sys.stdout.flush()
    os._exit(bool(problems))  # a thread may hang in its storage
