"""What a watch shows as lost or ended leads to a report within its limit, also if its fact never arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.facts import gone_id
from everstep.core.seeing import watching
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.seeing.watching import PollAll, WaitFor, Watch
from everstep.core.spec import Limits
from everstep.core.state import Learned
from everstep.core.world import Observation, PodState, PodView
from everstep.protocol.exits import Exit, RankExit
from tests.support.builders import pod, watch_order

LEARNED = Learned(steps_seen=True, longest_gap_s=1.0, first_step_at=1.0)
LIMITS = Limits(hang_s=300.0, unreachable_s=60.0)
ENDED_AT = 100.0
MOST_LOOKS = 50


def _ended(slot: int, code: int) -> PodView:
    rank_exit = RankExit(slot, ENDED_AT, Exit(code=code))
    return pod(slot, state=PodState.EXITED, step=9, step_at=ENDED_AT, exits=(rank_exit,))


def pod_at(fate: str, slot: int, now: float) -> PodView:
    match fate:
        case "lost":
            return pod(slot, state=PodState.LOST, step=9, step_at=ENDED_AT)
        case "silent":
            return pod(slot, state=PodState.UNREACHABLE, silent_since=ENDED_AT, step_at=ENDED_AT)
        case "ended well":
            return _ended(slot, 0)
        case "ended badly":
            return _ended(slot, 1)
        case "waits":  # for the others
            return pod(slot, step=9, step_at=ENDED_AT)
        case _:
            return pod(slot, step=9, step_at=now)


def first_report(fates: list[str], seen_ids: frozenset[str] = frozenset()) -> WatchReport | None:
    """The first report of facts or of an end; None: the watch waits for something that never comes."""
    slots = range(len(fates))
    order = watch_order(
        *slots, limits=LIMITS, learned=LEARNED, seen_ids=seen_ids, refresh_s=10_000.0
    )
    memory, now = Watch(learned=LEARNED), ENDED_AT
    for _ in range(MOST_LOOKS):
        pods = tuple(pod_at(fate, slot, now) for slot, fate in enumerate(fates))
        observation = Observation(now=now, cursor="1", pods=pods, generation=1)
        memory, verdict = watching.check(order, memory, observation)
        match verdict:
            case WatchReport(news="facts" | "done"):
                return verdict
            case WaitFor(until=float(until)) if until > now:
                now = until
            case PollAll():
                now += 0.5
            case _:
                return None
    return None


FATES = st.sampled_from(["lost", "silent", "ended well", "ended badly", "waits", "trains"])


@given(st.lists(FATES, min_size=1, max_size=5))
def test_whatever_is_lost_or_ended_is_reported_within_its_limit(fates: list[str]) -> None:
    goes_on = "trains" in fates
    if "lost" in fates:
        limit_s = LIMITS.unreachable_s
    elif "ended badly" in fates and not goes_on and 2 * fates.count("silent") <= len(fates):
        limit_s = 300.0 + 4 * LIMITS.grace_s  # which the others get after the first that ended well
    else:
        return
    report = first_report(fates)
    assert report is not None
    assert report.now <= ENDED_AT + limit_s + 1.0


def test_a_lost_slot_without_a_fact_is_named_as_its_backend_would_have() -> None:
    report = first_report(["trains", "lost"])
    assert report is not None
    (fact,) = report.facts
    assert (fact.id, fact.kind, fact.slot) == (gone_id("pod-1"), "agent.gone", 1)
    assert "its end was not reported" in fact.message


@pytest.mark.parametrize("fates", [["trains", "lost"], ["waits", "lost"]])
def test_a_loss_that_was_only_noted_is_not_reported_for_ever(fates: list[str]) -> None:
    report = first_report(fates, seen_ids=frozenset({gone_id("pod-1")}))
    assert report is None or all(fact.kind != "agent.gone" for fact in report.facts)
