"""How long to wait before a stream is opened again. Pure: time and chance are arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays that double from the shortest to the longest."""

    shortest_s: float = 0.8
    longest_s: float = 30.0
    healthy_s: float = 60.0
    """What worked so long before it failed starts again with the shortest delay."""
    failures: int = 0
    """In a row."""

    def after(self, *, worked_s: float) -> Backoff:
        """The state after one more failure, of something that had worked for this long."""
        failures = 1 if worked_s >= self.healthy_s else self.failures + 1
        return Backoff(
            shortest_s=self.shortest_s,
            longest_s=self.longest_s,
            healthy_s=self.healthy_s,
            failures=failures,
        )

    def delay_s(self, *, chance: float, wanted_s: float = 0.0) -> float:
        """Between half and all of the delay, by `chance` (0 to 1); at least what the server wants.

        Spread, so that many workers do not come back to a restarted server at one moment.
        """
        doublings = min(self.failures - 1, 32)  # far beyond any limit, and still a float
        delay_s: float = min(self.shortest_s * 2.0**doublings, self.longest_s)
        return max(wanted_s, delay_s * (0.5 + 0.5 * chance))
