"""The moments at which ranks of a job ended in the middle of something. Pure.

A file whose format cannot show that it is complete may be cut off if it changed just before its writer ended.
This cannot be seen later, so the moments stay in the job's record as long as the job's ID does. An end that
no agent reported was at some time between two others: moments all over that time stand for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from everstep.agent import wire
from everstep.agent_client.link import ASK_S
from everstep.agent_client.watch import POLL_S, WatchedAgent
from everstep.backends.agents import job_record
from everstep.backends.agents.job_record import JobRecord

STEP_S = 3.0
"""Between two such moments: each stands for the two seconds before it and the one after it."""
STEPS_MOST = 800
"""Most moments for one time; of a longer one those of its middle are left out. A job's record holds 1000."""
UNHEARD_S = POLL_S + 2 * ASK_S
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
    age_span = None
    if ended_since is not None:
        # Without a request that got no answer, the worker stood still until now.
        ended_until = now if silent_since is None else max(silent_since, ended_since) + UNHEARD_S
        age_span = now - ended_since, max(0.0, now - ended_until)
    ages = _ages(run["ranks"] if run is not None else (), now=now, age_span=age_span)
    return job_record.with_endings(record, {int(wall_now - age) for age in ages})


def between(
    record: JobRecord, began: float, ended: float, *, now: float, wall_now: float
) -> JobRecord:
    """The record of a job whose ranks, of which nothing is known, ended between these moments."""
    ages = _steps(now - began, max(0.0, now - ended))
    return job_record.with_endings(record, {int(wall_now - age) for age in ages})


def _ages(
    ranks: Iterable[wire.RankSeen], *, now: float, age_span: tuple[float, float] | None
) -> Iterator[float]:
    """The ages of the bad ends of these ranks. `age_span`: when those ended that it shows alive."""
    for rank in ranks:
        if rank["exited_at"] is None:
            if age_span is not None:
                yield from _steps(*age_span)
                yield 0.0  # under an agent that only stood still they trained on until now
        elif rank["code"] != 0:  # one that ended well had closed its files
            began, ended = rank.get("ended_between") or (rank["exited_at"], rank["exited_at"])
            yield from _steps(now - began, now - ended)


def _steps(oldest: float, newest: float) -> Iterator[float]:
    """Ages from the oldest to the newest one."""
    count, half = max(0, math.ceil((oldest - newest) / STEP_S)), STEPS_MOST // 2
    for number in (*range(min(count, half)), *range(max(half, count - half), count)):
        yield oldest - number * STEP_S
    yield newest


def are_well(agent: WatchedAgent | None, generation: int) -> bool:
    """Whether all ranks of this generation that the agent had are known to have ended well."""
    state = agent.state if agent is not None else None
    run = state["run"] if state is not None else None
    if run is None or run["generation"] != generation or run["started_at"] is None:
        return False
    return all(rank["code"] == 0 for rank in run["ranks"])
