"""What an agent must still know when it is started anew: one small file, replaced as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

from everstep.agent import wire
from everstep.agent.storage import files


class Kept(TypedDict):
    """The newest generation ever told, what is proven, and the newest run."""

    generation: int
    stopped_below: int
    run: wire.RunSeen | None


NOTHING: Kept = {"generation": 0, "stopped_below": 0, "run": None}


def read(path: Path) -> Kept:
    try:
        said = files.read_json(path)
        return {
            "generation": int(said["generation"]),
            "stopped_below": int(said["stopped_below"]),
            "run": said["run"],
        }
    except FileNotFoundError:
        return NOTHING
    except (OSError, ValueError, KeyError, TypeError):
        # It is replaced as a whole, so this is a disk's doing. What the agent is told next decides.
        return NOTHING


def as_text(kept: Kept) -> str:
    return json.dumps(kept)


def write(path: Path, text: str) -> None:
    """The file is the old or the new one, whenever we are killed. Raises OSError."""
    files.replace(path, text, is_synced=True)
