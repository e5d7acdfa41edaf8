"""What an agent tells of time, in the cluster's time.

Neither clock is ever set, but each began by the machine's clock of its day: if somebody set that in
between, they differ by a constant.
"""

from __future__ import annotations

from everstep.agent import wire

OUT_S = 1.0
"""Less than this is the way that an answer took, and no other clock."""


def ahead_s(state: wire.AgentState, *, now: float, known_s: float | None) -> float:
    """How far the agent's clock is before ours, after one more answer. A late one only seems behind."""
    seen = state["now"] - now
    return seen if known_s is None else max(known_s, seen)


def in_ours(state: wire.AgentState, ahead_s: float) -> wire.AgentState:
    """The same state with all its times in our time."""
    if abs(ahead_s) < OUT_S:
        return state

    def ours(at: float | None) -> float | None:
        return None if at is None else at - ahead_s

    run = state["run"]
    if run is not None:
        run = run.copy()
        run["started_at"] = ours(run["started_at"])
        run["step_at"] = ours(run["step_at"])
        run["first_step_at"] = ours(run["first_step_at"])
        run["moved_at"] = ours(run["moved_at"])
        run["io_at"] = ours(run.get("io_at"))
        run["busy_at"] = ours(run.get("busy_at"))
        run["saved_at"] = ours(run.get("saved_at"))
        run["unmatched_since"] = ours(run.get("unmatched_since"))
        run["ranks"] = [_rank(rank, ahead_s) for rank in run["ranks"]]
    translated = state.copy()
    translated["now"] = state["now"] - ahead_s
    translated["run"] = run
    translated["facts"] = [_fact(fact, ahead_s) for fact in state["facts"]]
    return translated


def _rank(rank: wire.RankSeen, ahead_s: float) -> wire.RankSeen:
    translated = rank.copy()
    translated["started_at"] = rank["started_at"] - ahead_s
    if rank["exited_at"] is not None:
        translated["exited_at"] = rank["exited_at"] - ahead_s
    return translated


def _fact(fact: wire.FactSeen, ahead_s: float) -> wire.FactSeen:
    translated = fact.copy()
    translated["at"] = fact["at"] - ahead_s
    return translated
