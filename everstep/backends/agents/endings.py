"""The times in which ranks of a job ended in the middle of something. Pure.

A file whose format cannot show that it is complete may be cut off if it changed just before its writer ended.
This cannot be seen later, so these times stay in the job's record as long as the job's ID does. An end that
an agent reported is dated exactly; one that no agent reported was at some moment between two others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from everstep.backends.agents import job_record
from everstep.backends.agents.client.link import REQUEST_S
from everstep.backends.agents.client.watch import POLL_S, WatchedAgent
from everstep.backends.agents.job_record import JobRecord
from everstep.protocol import wire

Ages = tuple[float, float]
"""How long ago a time began and ended, in seconds."""
UNHEARD_S = POLL_S + 2 * REQUEST_S
"""An agent that is there answers its worker once in such a time."""


def with_ends_of(
    record: JobRecord,
    agent: WatchedAgent | None,
    *,
    now: float,
    wall_now: float,
    ended_since: float | None = None,
) -> JobRecord:
    """The record with the bad ends of this agent's ranks.

    With `ended_since` those last seen alive have ended, after that moment. Times are the cluster's. Kept is
    the machine's (`wall_now`), by which files are dated.
    """
    state = agent.state if agent is not None else None
    run = state["run"] if state is not None else None
    silent_since = agent.silent_since if agent is not None else None
    ages = None
    if ended_since is not None:
        # Without a request that got no answer, the worker stood still until now.
        ended_until = now if silent_since is None else max(silent_since, ended_since) + UNHEARD_S
        ages = now - ended_since, max(0.0, now - ended_until)
    ranks = run["ranks"] if run is not None else ()
    return _with_ages(record, _ages_of_ends(ranks, now=now, ages_unseen=ages), wall_now)


def between(
    record: JobRecord, began: float, ended: float, *, now: float, wall_now: float
) -> JobRecord:
    """The record of a job whose ranks, of which nothing is known, ended between these moments."""
    return _with_ages(record, [(now - began, max(0.0, now - ended))], wall_now)


def _ages_of_ends(
    ranks: Iterable[wire.RankSeen], *, now: float, ages_unseen: Ages | None
) -> Iterator[Ages]:
    """The ages of the bad ends of these ranks. `ages_unseen`: of the ends of those that it shows alive."""
    for rank in ranks:
        if rank["exited_at"] is None:
            if ages_unseen is not None:
                yield ages_unseen
                yield 0.0, 0.0  # under an agent that only stood still they trained on until now
        elif rank["code"] != 0:  # one that ended well had closed its files
            began, ended = rank.get("ended_between") or (rank["exited_at"], rank["exited_at"])
            yield now - began, now - ended


def _with_ages(record: JobRecord, ages: Iterable[Ages], wall_now: float) -> JobRecord:
    times = (
        (int(wall_now - max(oldest, newest)), int(wall_now - newest)) for oldest, newest in ages
    )
    return job_record.with_ends(record, times)


def are_well(agent: WatchedAgent | None, generation: int) -> bool:
    """Whether all ranks of this generation that the agent had are known to have ended well."""
    state = agent.state if agent is not None else None
    run = state["run"] if state is not None else None
    if run is None or run["generation"] != generation or run["started_at"] is None:
        return False
    return all(rank["code"] == 0 for rank in run["ranks"])
