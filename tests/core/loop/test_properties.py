"""The promises of the design, over random histories of faults, lost outcomes and doubled events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from everstep.core.deciding.budgets import limit_of
from everstep.core.levels import FaultClass
from tests.core.loop.histories import (
    CLEARING,
    HARDNESS,
    POLICIES,
    SILENCE,
    History,
    Life,
    histories,
    live,
)
from tests.support.story import assert_views_agree

QUICK, THOROUGH = 60, 3_000


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# -- What has to hold ---------------------------------------------------------------------------


def books_agree(life: Life) -> None:
    """Promise 1: what the records bill is what the budgets have lost, and never beyond a limit."""
    billed: Counter[str] = Counter()
    for record in life.records:
        billed.update(record.bills)
    used = {name: units for name, units in life.state.ledger.used.items() if units}
    assert used == dict(billed)
    for budget in life.state.phase.policy.budgets:
        limit = limit_of(budget, life.state.limits)
        assert limit is None or used.get(budget.name, 0) <= limit


def records_are_whole(life: Life) -> None:
    """Promise 4: every record says what was seen and why; their numbers have no gap and no double."""
    assert [record.n for record in life.records] == [*range(1, len(life.records) + 1)]
    for record in life.records:
        assert record.decision.reason
        assert record.decision.seen
        assert record.result != "recovering"


def levels_do_not_get_gentler(life: Life) -> None:
    """Promise 5: within an incident, and for the same class."""
    for before, after in zip(life.records, life.records[1:], strict=False):
        same = (before.incident, before.decision.fault.cls) == (
            after.incident,
            after.decision.fault.cls,
        )
        if same and before.decision.fault.cls is not FaultClass.PRECHECK:
            levels = [HARDNESS.index(r.decision.level) for r in (before, after)]
            assert levels == sorted(levels), (before.decision.reason, after.decision.reason)


def never_on_an_isolated_node(life: Life) -> None:
    isolated: set[str] = set()
    for _, what in life.effects:
        if what.startswith("isolate "):
            isolated.add(what.split()[1])
        if what.startswith("release "):
            isolated.discard(what.split()[1])
        created = re.match(r"create pod \S+ on (\S+)", what)
        assert created is None or created[1] not in isolated, what


def views_agree(life: Life) -> None:
    """Promise 4: every start and every recovery is in it, once and in order."""
    assert_views_agree(life.state, life.chronicle)


def ends_well(life: Life) -> None:
    """Once faults stop the job completes: no budget here is small enough to keep it from that."""
    if life.stopped:
        assert life.end.status == "Terminated"
        return
    assert life.end.status == "Completed" or "restarts in a row" in life.end.reason, life.end


CLAIMS: tuple[Callable[[Life], None], ...] = (
    books_agree,
    records_are_whole,
    levels_do_not_get_gentler,
    never_on_an_isolated_node,
    views_agree,
    ends_well,
)


def every_promise_holds(history: History) -> None:
    life = live(history)  # promise 3 is watched by the cluster itself
    for claim in CLAIMS:
        claim(life)


def silence_harms_no_job(history: History) -> None:
    """Promise 2: unknown is not failed."""
    life = live(history)
    assert life.end.status == "Completed"
    assert (life.records, life.state.isolated) == ((), {})
    assert life.state.generation == 1


# -- How often ----------------------------------------------------------------------------------

BROKEN_TWICE_AND_REPORTED = History(
    faults=((0, "device n0 0 80CB8002 no-heals"), (0, "device n1 0 80CB8002 no-heals")),
    commands=((5, 4),),
    nodes_min=2,
)
BROKEN_AND_TAKEN_AWAY = History(
    faults=((0, "device n0 0 80CB8002 no-heals"),),
    tricks=(("none", 0), ("broken off", 0)),
    commands=((5, 5),),
    nodes_min=2,
)
"""A job level that ended before it had moved any pod, and then another fault: pods on broken hardware
stayed there."""
FOUND_IN_ITS_PLACE = History(
    faults=((0, "preempt demo"), (31, "node-down n0"), (35, "device n4 0 79 no-heals")),
    tricks=(("none", 0), ("none", 0), ("lost", 0)),
    nodes_min=2,
)
FOUND_AT_THE_END = History(
    faults=((58, "preempt demo"),), tricks=(("lost", 0),), commands=((64, 7),), nodes_min=2
)
"""Starts without an end: their outcome was lost, and the next one was found running, or the job ended."""
FOUND_WITHIN_AN_INCIDENT = History(
    faults=((90, "preempt demo"), (93, "kill-agent demo 0"), (98, "preempt demo")),
    commands=((93, 0),),
    nodes_min=2,
)
"""A start between two levels of one incident, which so has two gaps."""
RESUMED_BESIDE_A_SILENT_NODE = History(
    faults=((104, "silence n0"), (105, "kill demo 0")), commands=((6, 1), (7, 0)), nodes_min=2
)
"""A pause whose end needs restarts: what it lost is no restart's."""
STOPPED_BEFORE_ANY_START = History(faults=((0, "preempt demo"),), commands=((1, 7),))
"""Restarts of a job that never ran, in the view that shows restarts by start."""
GONE_TWICE_WHILE_UNWRITABLE = History(
    faults=((0, "storage demo unwritable"), (2, "kill-agent demo 0"), (3, "kill-agent demo 1")),
    policy="modelarts",
    nodes_min=2,
)
"""A ladder that has only the same container, and no container: pod level was thought of once, and when
its only unit was spent the job level was forgotten. All of these were found among the thousands."""


TWO_NOTES_AT_ONCE = History(
    faults=((103, "storage demo unwritable"), (127, "storage demo writable")),
    tricks=(("twice", 4), ("lost", 6), ("broken off", 5)),
    commands=((47, 0), (104, 4), (110, 4)),
    repeats_facts=True,
    policy="modelarts",
    nodes_min=2,
    clearing_s=None,
)
"""Each needs a span of its own in the trace."""


@examples(QUICK)
@example(TWO_NOTES_AT_ONCE)
@example(BROKEN_TWICE_AND_REPORTED)
@example(BROKEN_AND_TAKEN_AWAY)
@example(GONE_TWICE_WHILE_UNWRITABLE)
@example(FOUND_IN_ITS_PLACE)
@example(FOUND_AT_THE_END)
@example(FOUND_WITHIN_AN_INCIDENT)
@example(STOPPED_BEFORE_ANY_START)
@example(RESUMED_BESIDE_A_SILENT_NODE)
@given(histories())
def test_every_promise_holds_in_any_history(history: History) -> None:
    every_promise_holds(history)


@examples(QUICK // 2)
@given(histories(CLEARING), st.sampled_from([0.0, 3.0, 20.0]))
def test_places_still_being_cleared_break_no_promise(history: History, clearing_s: float) -> None:
    every_promise_holds(replace(history, clearing_s=clearing_s))


@examples(QUICK // 2)
@given(histories(SILENCE, commands=0))
def test_while_only_silence_happens_nothing_is_stopped(history: History) -> None:
    silence_harms_no_job(history)


@pytest.mark.long
@pytest.mark.timeout(800)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_promise_holds_in_many_histories(policy: str) -> None:
    """Many more courses than `make test` has time for, for the rare ones."""
    many = examples(THOROUGH // len(POLICIES))
    many(given(histories(policies=[policy]))(every_promise_holds))()


@pytest.mark.long
@pytest.mark.timeout(600)
@examples(THOROUGH // 10)
@given(histories(SILENCE, commands=0))
def test_in_many_silences_nothing_is_stopped(history: History) -> None:
    """Many more silences than `make test` has time for, for the rare ones."""
    silence_harms_no_job(history)
