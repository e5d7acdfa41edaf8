"""The folder in which a rank and its agent speak to each other: files, each replaced as a whole.

`can.json` is the rank's: a list of what it can do. `told.json` is the agent's: what the rank is to do now.
`error.json` is the rank's again: what it failed of. Neither waits for the other, both may look as often as
they like, and who looks late misses nothing.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from everstep.agent import wire
from everstep.agent.observing import logs
from everstep.agent.storage import files, permissions

CAN_MOST = 4096
"""In bytes: a rank that says more than this says nothing."""

WORDS_MOST = 256 * 1024
"""The same of its last words, which hold a traceback."""


class RankFolder:
    """Of one process: whoever comes after it in its place gets a folder of his own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.can: list[str] = []
        self.problem: str | None = None

    def make(self) -> None:
        """A full disk keeps nobody from training: such a rank only cannot speak."""
        with contextlib.suppress(OSError):
            permissions.below(self.path.parents[1], self.path)

    def tell(self, told: wire.RankTold) -> None:
        """Raises OSError."""
        files.replace(self.path / wire.TOLD, json.dumps(told))

    def look(self) -> bool:
        """Whether the rank says something else of what it can do than before."""
        before, self.problem = self.can, None
        try:
            said = files.read_json(self.path / wire.CAN, CAN_MOST)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            self.problem = f"{wire.CAN}: {error}"
            return False
        if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
            self.problem = f"{wire.CAN}: a list of texts is needed"
            return False
        self.can = sorted({*said})
        return self.can != before

    def last_words(self) -> str | None:
        """What the rank says that it failed of, such as `ValueError: no such thing`."""
        with contextlib.suppress(OSError, ValueError):
            said = files.read_json(self.path / wire.LAST_WORDS, WORDS_MOST)
            for _ in range(2):  # the message may have a message of its own, beside its traceback
                said = said.get("message") if isinstance(said, dict) else said
            if isinstance(said, str) and said.strip():
                return said.strip().splitlines()[0][: logs.EXCEPTION_MOST]
        return None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            for name in (wire.CAN, wire.TOLD, wire.LAST_WORDS):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()
