"""Memory that a rank made and its agent holds."""

from __future__ import annotations

import contextlib
import os

from everstep.protocol import rank_memory

MEMORY = "/memfd:"
"""How the kernel names memory without a name."""


class HeldMemory:
    """A handle of memory that a rank made.

    It is read and never mapped: a rank that cuts off memory which the agent has mapped would end the agent.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @classmethod
    def of(cls, handle: int) -> HeldMemory:
        """The memory behind a handle that a rank sent. Raises OSError for a file: its storage may hang."""
        if not os.readlink(f"/proc/self/fd/{handle}").startswith(MEMORY):  # noqa: PTH115  # a text, not a path
            raise OSError("it is no memory without a name")
        return cls(os.dup(handle))

    def page(self) -> bytearray:
        """The first page as it is now; zeros for what the memory lacks. Raises OSError."""
        return bytearray(os.pread(self.handle, rank_memory.PAGE, 0).ljust(rank_memory.PAGE, b"\0"))

    @property
    def snapshot(self) -> rank_memory.SnapshotHeader | None:
        try:
            return rank_memory.read_snapshot(self.page())
        except OSError:
            return None

    def drop_snapshot(self) -> None:
        """Mark the memory as one without a snapshot."""
        page = self.page()
        rank_memory.drop_snapshot(page)
        os.pwrite(self.handle, page, 0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.handle)
