"""The parts of an agent, as protocols of what the agent and other parts call.

Each part receives the agent in its constructor, so importing the parts here would be circular.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from everstep.agent.processes.rank import Rank
from everstep.agent.processes.run import Run
from everstep.protocol import wire


class PolledPart(Protocol):
    """A part that looks at the ranks."""

    def poll(self) -> None:
        """Look now: once a second, and when a rank ends."""


class RanksPart(PolledPart, Protocol):
    """Tracks the start, output, steps and exit of ranks."""

    def follow(self, run: Run) -> None: ...
    def forget(self, rank: Rank) -> None: ...
    def read_position(self, rank: Rank) -> None:
        """Read the step that the rank reports."""

    def published(self) -> None:
        """The agent has published its state."""


class WardenPart(PolledPart, Protocol):
    """Ends the ranks if the agent cannot."""

    def send_orders(self) -> None:
        """Send the warden what to guard."""

    def polled(self) -> None: ...
    def why_killed(self) -> str | None:
        """Why it ended the ranks of the current run, if it did."""


class SamplesPart(PolledPart, Protocol):
    """Samples what the processes of a run do, and its checkpoints."""

    def poll_now(self) -> None: ...
    def prepare(self, run: Run) -> None:
        """Prepare for the run. Called before its ranks start."""


class PrewarmPart(Protocol):
    """Forks ranks from a process that has imported their modules."""

    def state(self) -> wire.HelperSeen | None: ...
    def fork(self, run: Run, rank: Rank) -> bool:
        """Start the rank as a fork. False if it has to be started without one."""

    def modules_for(self, order: wire.RunOrder) -> list[str]:
        """The modules that a helper for this order imports."""

    def first_step_made(self, run: Run) -> None: ...

    def imported(self) -> dict[str, Any]:
        """The modules of a helper that is ready, as fields of a `PrewarmCommand`; empty: there is none."""

    def import_ahead(self, command: wire.RunCommand, fields: wire.PrewarmCommand) -> None:
        """Prepare a helper for a command that has never run here."""

    def prepare(self, run: Run) -> None:
        """Prepare forks for the start after this one."""


class PrefetcherPart(PolledPart, Protocol):
    """Runs commands beside the ranks."""

    def end(self) -> None: ...


class CopierPart(PolledPart, Protocol):
    """Sends copies of snapshots to a neighbour, and keeps those of a step that all pods have."""

    def take_report(self, report: wire.PinReport) -> wire.PinsSeen:
        """Take the report of another agent on what is pinned; return the newest pins."""


class FetchingPart(Protocol):
    """Fetches copies of snapshots from other agents."""

    def before(self, command: wire.RunCommand, start: Callable[[str], None]) -> None:
        """Fetch what the command names, then start with what is missing."""


class DumpingPart(Protocol):
    """Saves snapshots by the functions of ranks that have ended."""

    @property
    def is_running(self) -> bool: ...
    def answer(self, command: wire.DumpCommand) -> wire.DumpAnswer: ...
    def when_done(self, do: Callable[[], object]) -> None:
        """Call this once the newest command is done."""


class EndingsPart(Protocol):
    """Ends processes of the pod, one ending at a time."""

    @property
    def is_running(self) -> bool: ...
    def end(
        self,
        *,
        below: int,
        grace_s: float = 0.0,
        evidence: bool = False,
        keep: Collection[int] = (),
        then: Callable[[], None] | None = None,
    ) -> None:
        """End every process except the ranks in `keep`, then call `then`."""

    def child_ended(self) -> None:
        """A child of the agent was waited for."""


class EvidencePart(Protocol):
    """Collects what explains a hang."""

    def keep(self, run: Run, grace_s: float, then: Callable[[], None]) -> None: ...
    def stacks(self, run: Run, within_s: float) -> dict[int, str]: ...


class Parts(NamedTuple):
    """All parts of one agent."""

    ranks: RanksPart
    endings: EndingsPart
    warden: WardenPart
    samples: SamplesPart
    npus: PolledPart
    prewarm: PrewarmPart
    prefetcher: PrefetcherPart
    evidence: EvidencePart
    copier: CopierPart
    fetching: FetchingPart
    dumping: DumpingPart
