"""The moments at which ranks of a job ended in the middle of something. Pure.

A file whose format cannot show that it is complete may be cut off if it changed just before its writer ended.
This cannot be seen later, so the moments stay in the job's record as long as the job's ID does.
"""

from __future__ import annotations

from collections.abc import Iterable

from everstep.agent import wire
from everstep.agent_client.watch import WatchedAgent
from everstep.backends.agents import job_record
from everstep.backends.agents.job_record import JobRecord


def noted(
    record: JobRecord,
    agent: WatchedAgent | None,
    *,
    now: float,
    wall_now: float,
    has_ended: bool = False,
) -> JobRecord:
    """The record with the bad ends of this agent's ranks; with `has_ended` those last seen alive ended
    just now.

    `now` is the cluster's time. Kept is the machine's (`wall_now`), by which files are dated.
    """
    state = agent.state if agent is not None else None
    run = state["run"] if state is not None else None
    ages = _ages(run["ranks"] if run is not None else (), now=now, has_ended=has_ended)
    return job_record.with_endings(record, {int(wall_now - age) for age in ages})


def _ages(ranks: Iterable[wire.RankSeen], *, now: float, has_ended: bool) -> Iterable[float]:
    """How long ago each of them ended badly."""
    for rank in ranks:
        if rank["exited_at"] is not None:
            if rank["code"] != 0:  # one that ended well had closed its files
                yield now - rank["exited_at"]
        elif has_ended:
            yield 0.0


def are_well(agent: WatchedAgent | None, generation: int) -> bool:
    """Whether all ranks of this generation that the agent had are known to have ended well."""
    state = agent.state if agent is not None else None
    run = state["run"] if state is not None else None
    if run is None or run["generation"] != generation or run["started_at"] is None:
        return False
    return all(rank["code"] == 0 for rank in run["ranks"])
