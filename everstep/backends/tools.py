"""`Tools`: what the command line does with a cluster without a worker: faults, nodes, logs, checks, clean-up.

Each backend overrides what it can do. The defaults here are those of a backend that can do nothing: they
return nothing, or raise ValueError with one sentence for the user.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from everstep.core.spec import JobSpec
from everstep.core.world import Leftover, NodeView


class NothingRuns(ValueError):
    """A fault's line is right, but there is no process that it could be about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The books of a cluster, the agents of their pods, and agents that are in no books (`strays`)."""

    books: str = ""  # where they are
    is_there: bool = False
    problem: str | None = None  # why nothing can be read in the books
    agents: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCheck:
    """The result of one check of a cluster, and what to try next."""

    name: str
    what: str
    hint: str = ""
    state: Literal["ok", "note", "problem"] = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentAgent:
    """An agent that lives and does not answer."""

    job: str
    slot: int
    node: str
    pid: int | None
    is_stopped: bool

    def __str__(self) -> str:
        why = " (it is stopped)" if self.is_stopped else ""
        return f"the agent of {self.job}, slot {self.slot}, does not answer{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftFiles:
    """Files that an ended pod left behind."""

    uid: str
    job: str | None
    slot: int | None
    size: int
    written_at: float  # the newest of its files
    kept_because: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowEnd:
    """When the workflow of a job ended, as its Temporal server reports it."""

    at: float | None = None  # None: the server has no such workflow any more
    doubt: str = ""  # why it may not have ended


WorkflowEndOf = Callable[[Leftover], Awaitable[WorkflowEnd]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecordLeft:
    """The record of a job in a cluster."""

    name: str  # of the object
    namespace: str
    job: str
    size: int
    ended_at: float | None  # None: not known
    reason: str | None = None  # why it stays; None: it is gone, or would be


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RankLog:
    """The output of one rank in one generation."""

    generation: int
    rank: int
    source: str  # where its cluster keeps it; each log has another


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a rank's output, its line end included; of an unfinished line, what there is of it."""

    rank: int
    text: str
    at: float | None  # when it was begun, seconds since 1970, if that is known
    left_out: int = 0  # above 0 this is a gap and no line: so many bytes were dropped


class LogReader(Protocol):
    """Reads a log from where it stopped before, again and again."""

    @property
    def log(self) -> RankLog:
        """The log that is read."""

    def lines(self, *, whole: bool = True) -> AsyncIterator[LogLine]:
        """The lines since the call before; `whole`: a line that has no end yet is kept for the next call."""


class Tools:
    """A cluster as the command line uses it. Every call may be repeated."""

    def fault_usages(self) -> Mapping[str, str]:
        """The usage of every fault, by its name."""
        return {}

    async def fault(self, line: str) -> None:
        """Cause this fault now, for a rehearsal. Raises ValueError for a line that makes no sense."""
        raise ValueError(f"{line}: nothing can be rehearsed on this cluster")

    async def nodes(self) -> tuple[NodeView, ...]:
        """Every node; none where no cluster was ever made."""
        return ()

    async def ensure_nodes(self, count: int, *, devices: int) -> None:
        """Create nodes until there are at least so many; a worker uses new ones at once."""
        raise ValueError(f"this cluster cannot be given {count} nodes of {devices} devices")

    async def silent_agents(self) -> tuple[SilentAgent, ...]:
        """Agents of pods that live and do not answer one request."""
        return ()

    async def examine(self) -> Examined:
        """Look at the books and the agents. Changes nothing."""
        return Examined()

    async def check_cluster(self) -> list[ClusterCheck]:
        """Check that the cluster is as its workers and jobs need it. Changes nothing."""
        return []

    def broken_rules(self, spec: JobSpec) -> list[tuple[str, str]]:  # noqa: ARG002
        """Field and reason of what no cluster of this kind would run of the job. Reaches none."""
        return []

    def notes(self, spec: JobSpec) -> list[tuple[str, str]]:  # noqa: ARG002
        """Field and sentence of what works there, perhaps not as meant. Reaches no cluster."""
        return []

    async def refusals(self, spec: JobSpec) -> list[tuple[str, str]]:  # noqa: ARG002
        """Field and reason of what the cluster would refuse of this job. Changes nothing."""
        raise ValueError("this cluster makes no pods, so that it refuses none")

    async def prune(self, *, before: float, is_dry_run: bool) -> list[LeftFiles]:  # noqa: ARG002
        """Remove what ended pods left behind before this time; return all that there was.

        What stays has the reason. In a rehearsal nothing is removed.
        """
        return []

    async def prune_records(
        self,
        end_of: WorkflowEndOf,  # noqa: ARG002
        *,
        before: float,  # noqa: ARG002
        is_dry_run: bool,  # noqa: ARG002
    ) -> list[JobRecordLeft]:
        """Remove the records of jobs that ended before this time.

        Return all that there were, as `prune` does.
        """
        return []

    async def prune_agents(self, *, before: float, is_dry_run: bool) -> list[str]:  # noqa: ARG002
        """Remove agents that were made before this time and that no pod uses; return their names."""
        return []

    async def logs(self, job: str) -> list[RankLog]:  # noqa: ARG002
        """All logs of the job, oldest generation first."""
        return []

    def no_logs(self, beginning: str) -> str:
        """The sentence for a search that found no logs; it begins with `beginning`."""
        return f"{beginning}: this cluster keeps none"

    def read(self, log: RankLog) -> LogReader:
        """Read the log from its beginning."""
        raise NotImplementedError(log)

    async def read_end(self, log: RankLog, count: int) -> tuple[list[LogLine], LogReader]:
        """The last lines of the log, and a reader that continues after them."""
        raise NotImplementedError(log, count)

    async def close(self) -> None:
        """Let go of connections. Safe to repeat."""

    async def clear(self) -> None:
        """End every agent and all that they started, and wait for that. No worker may be alive."""
