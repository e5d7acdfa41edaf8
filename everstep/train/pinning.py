"""Which snapshots a rank does not overwrite: what it makes of the pins that its agent writes. Pure."""

from __future__ import annotations

from everstep.protocol.rank_memory import Pinned, Pins


class Pinning:
    """Follows the pins from one snapshot to the next."""

    def __init__(self) -> None:
        self._of: tuple[int, Pins] | None = None
        self.pinned: Pinned | None = None

    def take(self, step: int, pins: tuple[int, Pins] | None) -> None:
        """Read the pins before the snapshot of this step is written.

        Where another rank has read them before an earlier snapshot, the two pin different steps. Their agents
        find that out, and name a later one.
        """
        if pins is not None and pins != self._of:
            self._of, (run, now) = pins, pins
            self.pinned = Pinned(run, now.number, None)
        if self._of is None or self.pinned is None:
            return
        next_from = self._of[1].next_from
        if self.pinned.step is None and next_from is not None and step >= next_from:
            self.pinned = self.pinned._replace(step=step)

    @property
    def steps(self) -> frozenset[int]:
        """The steps of the snapshots that stay."""
        steps = {
            None if self._of is None else self._of[1].step,
            None if self.pinned is None else self.pinned.step,
        }
        return frozenset(step for step in steps if step is not None)
