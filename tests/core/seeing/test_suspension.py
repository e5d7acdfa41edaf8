"""When only I/O and device use are judged: the single-instance and the all-instance rule (semantics §1.4)."""

from __future__ import annotations

import pytest

from everstep.core.seeing import watching
from everstep.core.seeing.suspension import suspect
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.seeing.watching import PollAll, WaitFor, Watch
from everstep.core.spec import Limits
from everstep.core.world import Checkpoint, Observation, PodView
from everstep.protocol.exits import Exit, RankExit
from tests.support.builders import pod, pod_with, watch_order

LIMIT_S = 600.0
LIMITS = Limits(still_s=LIMIT_S)
NOW = 1_000.0
Signs = tuple[float | None, float | None]  # newest I/O, newest change of use


def pods_of(signs: tuple[Signs, ...]) -> tuple[PodView, ...]:
    return tuple(
        pod(slot, io_at=io_at, busy_at=busy_at) for slot, (io_at, busy_at) in enumerate(signs)
    )


MOVES: Signs = (NOW, NOW)
STILL: Signs = (100.0, 100.0)
UNKNOWN: Signs = (None, None)
FLAT_WITH_IO: Signs = (NOW, 100.0)
USED_WITHOUT_IO: Signs = (100.0, NOW)
UNREADABLE_IO: Signs = (None, 100.0)
NO_TOOL: Signs = (100.0, None)

# the slots' signs, which rule speaks, of which slots, when
ROWS: tuple[tuple[str, tuple[Signs, ...], str, tuple[int, ...], float], ...] = (
    ("one still, the rest busy", (MOVES, STILL, MOVES), "hang.instance", (1,), 700.0),
    ("all flat, though logs are written", (FLAT_WITH_IO,) * 3, "hang.all", (0, 1, 2), 700.0),
    ("all still: nobody is blamed alone", (STILL,) * 3, "hang.all", (0, 1, 2), 700.0),
    ("all still, within two seconds", (STILL, (101.5, 101.0), STILL), "hang.all", (0, 1, 2), 701.0),
    ("I/O once within the time", (MOVES, (500.0, 100.0), MOVES), "hang.instance", (1,), 1_100.0),
    ("use changed once within the time", (MOVES, (100.0, 400.0), MOVES), "hang.instance", (1,), 1_000.0),
    ("one flat, doing I/O", (MOVES, FLAT_WITH_IO, MOVES), "hang.all", (0, 1, 2), 1_600.0),
    ("one without I/O, but used", (MOVES, USED_WITHOUT_IO, MOVES), "hang.all", (0, 1, 2), 1_600.0),
    ("an only slot is named", (STILL,), "hang.instance", (0,), 700.0),
    ("an only slot that writes logs", (FLAT_WITH_IO,), "hang.all", (0,), 700.0),
    ("the tool is missing in one slot", (STILL, NO_TOOL, MOVES), "hang.instance", (0,), 700.0),
    ("the I/O of one cannot be read", (STILL, UNREADABLE_IO), "hang.all", (0, 1), 700.0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("signs", "rule", "slots", "due"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_suspected_first(
    signs: tuple[Signs, ...], rule: str, slots: tuple[int, ...], due: float
) -> None:
    pods = pods_of(signs)
    suspicion = suspect(pods, LIMITS, slots=len(pods), checkpoint=None, now=NOW)
    assert suspicion is not None
    assert (suspicion.rule, suspicion.slots, suspicion.due) == (rule, slots, due)


NO_SUSPECT: tuple[tuple[str, tuple[Signs, ...]], ...] = (
    ("nothing is known of anybody", (UNKNOWN, UNKNOWN)),
    ("no devices, no detection", (NO_TOOL, NO_TOOL)),
    ("flat, but one shows nothing and I/O cannot be read", (UNREADABLE_IO, UNKNOWN)),
)


@pytest.mark.parametrize(
    "signs", [row[1] for row in NO_SUSPECT], ids=[row[0] for row in NO_SUSPECT]
)
def test_what_is_not_known_is_not_still(signs: tuple[Signs, ...]) -> None:
    pods = pods_of(signs)
    assert suspect(pods, LIMITS, slots=len(pods), checkpoint=None, now=NOW) is None


def test_a_slot_that_does_not_answer_for_this_generation_keeps_the_rule_for_all_quiet() -> None:
    pods = pods_of((FLAT_WITH_IO, FLAT_WITH_IO))
    suspicion = suspect(pods, LIMITS, slots=3, checkpoint=None, now=NOW)
    assert suspicion is not None
    assert (suspicion.rule, suspicion.due) == ("hang.instance", NOW + LIMIT_S)


def test_the_clock_begins_with_the_start() -> None:
    pods = [pod_with(one, started_at=950.0) for one in pods_of((STILL, STILL))]
    suspicion = suspect(pods, LIMITS, slots=2, checkpoint=None, now=NOW)
    assert suspicion is not None
    assert suspicion.due == 950.0 + LIMIT_S


def test_nobody_is_suspected_before_the_ranks_started() -> None:
    pods = [pod_with(one, started_at=None) for one in pods_of((STILL, STILL))]
    assert suspect(pods, LIMITS, slots=2, checkpoint=None, now=NOW) is None


# a checkpoint completed at this time, when the slots are due
SAVED = (
    ("it begins anew with a checkpoint", 600.0, 1_200.0),
    ("an older one changes nothing", 50.0, 700.0),
    ("one dated later is by another clock", NOW + 3_600.0, 700.0),
)


@pytest.mark.parametrize(("at", "due"), [row[1:] for row in SAVED], ids=[row[0] for row in SAVED])
def test_completing_a_checkpoint_is_life(at: float, due: float) -> None:
    saved = Checkpoint(step=10, path="ckpt/10", at=at)
    suspicion = suspect(pods_of((STILL, STILL)), LIMITS, slots=2, checkpoint=saved, now=NOW)
    assert suspicion is not None
    assert suspicion.due == due


def test_who_ended_well_is_not_suspected_and_gives_the_others_some_time() -> None:
    ended, other = pods_of((STILL, STILL))
    ended = ended._replace(exits=(RankExit(0, 900.0, Exit(code=0)),))
    limits = Limits(still_s=LIMIT_S, grace_s=15.0)
    suspicion = suspect((ended, other), limits, slots=2, checkpoint=None, now=NOW)
    assert suspicion is not None
    assert (suspicion.slots, suspicion.due) == ((1,), 900.0 + 60.0 + LIMIT_S)


# -- in the watch -------------------------------------------------------------------------------


def look(
    *pods: PodView, now: float, limits: Limits = LIMITS, seen_ids: frozenset[str] = frozenset()
) -> WaitFor | PollAll | WatchReport:
    slots = (one.slot for one in pods)
    order = watch_order(*slots, since=now, limits=limits, seen_ids=seen_ids)
    observation = Observation(now=now, cursor="1", pods=pods, generation=1)
    return watching.check(order, Watch(learned=order.learned, has_polled=True), observation)[1]


SUSPECTS = (
    (
        (MOVES, STILL, MOVES),
        1,
        "n1",
        "slot 1 has done no I/O and shown a steady use of devices for 600 s (single-instance rule)",
    ),
    (
        (STILL, STILL),
        None,
        None,
        "all 2 running slots have shown a steady use of devices for 600 s (all-instance rule)",
    ),
)


@pytest.mark.parametrize(("signs", "slot", "node", "message"), SUSPECTS, ids=["instance", "all"])
def test_the_fact_says_for_how_long_and_which_rule(
    signs: tuple[Signs, ...], slot: int | None, node: str | None, message: str
) -> None:
    watch_result = look(*pods_of(signs), now=700.0)
    assert isinstance(watch_result, WatchReport)
    (fact,) = watch_result.facts
    assert (fact.slot, fact.node, fact.message, fact.at) == (slot, node, message, 100.0)


def test_before_the_time_is_over_it_is_waited_for() -> None:
    watch_result = look(*pods_of((MOVES, STILL)), now=699.0)
    assert watch_result == WaitFor(until=700.0)


def test_a_suspension_that_was_noted_is_not_told_again_whichever_rule_speaks() -> None:
    first = look(*pods_of((MOVES, STILL)), now=700.0)
    assert isinstance(first, WatchReport)
    fact_ids = frozenset(fact.id for fact in first.facts)
    for signs in ((MOVES, STILL), (STILL, STILL)):
        assert isinstance(look(*pods_of(signs), now=9_000.0, seen_ids=fact_ids), WaitFor)


def test_steps_do_not_count_where_only_io_and_devices_are_judged() -> None:
    going_on = [pod_with(one, step=9, step_at=700.0) for one in pods_of((STILL, STILL))]
    assert isinstance(look(*going_on, now=700.0), WatchReport)
    standing = [pod_with(one, step=9, step_at=100.0) for one in pods_of((MOVES, MOVES))]
    assert isinstance(look(*standing, now=9_000.0, limits=Limits(still_s=1e6)), WaitFor)


def test_io_and_devices_do_not_count_where_steps_are_judged() -> None:
    standing = [pod_with(one, step=9, step_at=100.0) for one in pods_of((MOVES, MOVES))]
    assert isinstance(look(*standing, now=NOW, limits=Limits(hang_s=60.0)), WatchReport)
    going_on = [pod_with(one, step=9, step_at=NOW) for one in pods_of((STILL, STILL))]
    assert isinstance(look(*going_on, now=NOW, limits=Limits(hang_s=60.0)), WaitFor)
