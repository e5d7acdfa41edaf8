"""Rules 10, 11, 13, 14 and 15: stopping, pre-checks, rank 0, checkpoints, spares and size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.deciding.decision import Decision, PlaceRules
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.loop.next_actions import watch_order
from everstep.core.recovering import growth
from everstep.core.recovering.placement import (
    Attempt,
    NoPlace,
    OrderPlaces,
    TryAgain,
    first_slots,
    next_order,
    node_ranks,
)
from everstep.core.spec import Match, Policy, Rule
from everstep.core.state import with_ledger
from everstep.core.world import Checkpoint, Observation, PodState
from everstep.dialects.mindcluster.policy import SubHealthy, mindcluster
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import START, ScriptedJob, fact, running, sighting

_C = FaultClass

# -- Rule 10 ------------------------------------------------------------------------------------

STOPS = (
    (_C.CRASH, 0.0, True),
    (_C.HANG, 0.0, True),
    (_C.DEVICE, 0.0, True),
    (_C.UNKNOWN, 0.0, True),
    (_C.NODE, 0.0, False),
    (_C.PLANNED, 15.0, False),
    (_C.PREEMPTED, 15.0, False),
    (_C.MAINTENANCE, 15.0, False),
)


@pytest.mark.parametrize(("cls", "grace_s", "evidence"), STOPS)
def test_who_works_is_asked_and_who_failed_is_killed(
    cls: FaultClass, grace_s: float, evidence: bool
) -> None:
    decision = running().see(sighting(cls))
    assert (decision.remedy.grace_s, decision.remedy.evidence) == (grace_s, evidence)


@pytest.mark.parametrize(
    ("sub_healthy", "level", "grace_s"),
    [
        ("graceExit", Level.JOB, 15.0),
        ("forceExit", Level.JOB, 0.0),
        ("hotSwitch", Level.POD, 15.0),  # a switch of pods, without `pod-rescheduling` too
    ],
)
def test_grace_exit_asks_and_force_exit_does_not(
    sub_healthy: SubHealthy, level: Level, grace_s: float
) -> None:
    policy = mindcluster(fault_scheduling="force", sub_healthy=sub_healthy)
    decision = running(policy).see(sighting(_C.SUBHEALTH))
    assert (decision.level, decision.remedy.grace_s) == (level, grace_s)


def hot_switched(slot: int) -> Decision:
    """What a job with `hotSwitch` does about a sub-healthy device under the slot."""
    policy = mindcluster(fault_scheduling="force", sub_healthy="hotSwitch")
    return running(policy).see(sighting(_C.SUBHEALTH, node=f"n{slot}", slot=slot))


def test_a_hot_switch_begins_with_a_backup_pod_and_stops_nothing_before() -> None:
    remedy = hot_switched(2).remedy
    assert remedy.steps[:2] == (Step.STANDBY, Step.STOP)
    assert (remedy.recreate, remedy.standby_s) == ((2,), 60.0)


def test_a_hot_switch_under_rank_0_is_a_job_level_restart_without_a_backup_pod() -> None:
    decision = hot_switched(0)
    assert decision.level is Level.JOB
    assert Step.STANDBY not in decision.remedy.steps


# -- Rule 11 ------------------------------------------------------------------------------------


def test_a_bad_environment_is_avoided_and_isolates_nothing() -> None:
    job = running(modelarts(job_retry=3))
    decision = job.see(sighting(_C.PRECHECK, details={"hardware": False}))
    assert (decision.remedy.isolate, decision.remedy.avoid, decision.bills) == (
        (),
        ("n1",),
        {"job": 1},
    )
    assert "n1" in job.plan.remedy.avoid


@pytest.mark.parametrize("broken_at", [START - 1, START + 1])
def test_of_failed_checks_of_both_kinds_only_the_broken_node_is_isolated(broken_at: float) -> None:
    job = running(Policy(precheck=True))
    broken = sighting(_C.PRECHECK, node="n1", slot=1, at=broken_at)
    unfit = sighting(_C.PRECHECK, node="n2", slot=2, at=START, details={"hardware": False})
    remedy = job.see(broken, unfit).remedy
    assert [(i.node, i.proven) for i in remedy.isolate] == [("n1", True)]
    assert (remedy.avoid, remedy.recreate) == (("n2",), (1, 2))
    job.fails("place.none", at=Step.PLACE)
    assert job.state.isolated.keys() == {"n1"}


def test_a_node_that_fails_checks_of_both_kinds_is_isolated() -> None:
    job = running(Policy(precheck=True))
    unfit = sighting(_C.PRECHECK, details={"hardware": False})
    remedy = job.see(unfit, sighting(_C.PRECHECK)).remedy
    assert ([i.node for i in remedy.isolate], remedy.avoid) == (["n1"], ())


def test_a_check_that_fails_at_the_launch_places_elsewhere() -> None:
    job = ScriptedJob(spec=running(modelarts(job_retry=3)).spec)
    assert Step.PRECHECK in job.plan.remedy.steps
    bad = fact("precheck.disk", node="n1", slot=1)
    decision = job.fails("precheck.disk", at=Step.PRECHECK, node="n1", slot=1, facts=(bad,))
    assert (decision.level, decision.remedy.avoid) == (Level.JOB, ("n1",))


def test_a_new_place_that_does_not_suit_leaves_the_rest_of_the_ladder() -> None:
    job = running(Policy(precheck=True))
    job.see(sighting(_C.NODE))
    decision = job.fails("precheck.disk", at=Step.PRECHECK, node="n4", slot=1)
    assert (decision.level, decision.fault.cls) == (Level.POD, _C.PRECHECK)
    assert job.fails("place.none", at=Step.PLACE).level is Level.JOB


# -- Rule 13 ------------------------------------------------------------------------------------

RANK0: tuple[tuple[str, dict[str, bool], str, str], ...] = (
    ("rank 0's node goes to job level", {}, "n0", "job"),
    ("another node stays at pod level", {}, "n1", "pod"),
    ("the pod path tries pod and never job", {"recover_policy_path_pod": True}, "n0", "pod"),
)


@pytest.mark.parametrize(
    ("variables", "node", "level"), [r[1:] for r in RANK0], ids=[f"13 {r[0]}" for r in RANK0]
)
def test_rank_0(variables: dict[str, bool], node: str, level: str) -> None:
    policy = mindcluster(fault_scheduling="force", pod_rescheduling=True, **variables)  # type: ignore[arg-type]  # switches
    assert running(policy).see(sighting(_C.NODE, node=node)).level == level


def test_rank_0_beside_a_heavier_fault_elsewhere() -> None:
    job = running(mindcluster(fault_scheduling="force", pod_rescheduling=True))
    decision = job.see(sighting(_C.NODE, node="n1"), sighting(_C.DEVICE_FATAL, node="n0"))
    assert (decision.level, decision.fault.node) == (Level.JOB, "n1")
    assert decision.passed_over == ("pod: the fault is under rank 0",)
    assert {isolation.node for isolation in decision.remedy.isolate} == {"n0", "n1"}


def test_the_pod_path_ends_in_fail() -> None:
    policy = mindcluster(fault_scheduling="force", recover_policy_path_pod=True)
    job = running(policy)
    job.see(sighting(_C.NODE, node="n0"))
    assert job.fails("place.none", at=Step.PLACE).level is Level.FAIL


@pytest.mark.parametrize(
    ("observed", "level"),
    [
        (sighting(_C.PLANNED), Level.JOB),
        (sighting(_C.PREEMPTED), Level.JOB),
        (sighting(_C.MAINTENANCE), Level.JOB),
        (sighting(_C.PRECHECK), Level.POD),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_the_pod_path_ends_no_job_that_has_to_move_without_a_fault_of_its_own(
    observed: Fact, level: Level
) -> None:
    policy = mindcluster(fault_scheduling="force", recover_policy_path_pod=True)
    assert running(policy).see(observed).level is level


# -- Rule 14 ------------------------------------------------------------------------------------


def test_a_bad_checkpoint_is_passed_by() -> None:
    decision = running().see(sighting(_C.CHECKPOINT))
    assert (decision.level, decision.remedy.older_than_step) == (Level.ROLLBACK, 40)


def test_bad_numbers_go_back_before_the_newest_checkpoint() -> None:
    job = running()
    job.saves(70)
    assert job.see(sighting(_C.NUMERIC)).remedy.older_than_step == 70


def test_so_they_do_where_the_newest_is_numbered_by_epochs() -> None:
    job = running()
    job.saves(Checkpoint(step=None, number=7, path="ckpt/epoch_7.pth"))
    assert job.see(sighting(_C.NUMERIC)).remedy.older_than_step == 7


def test_what_follows_a_rollback_does_not_go_forward_again() -> None:
    job = running()
    job.see(sighting(_C.CHECKPOINT))
    decision = job.gives_way(sighting(_C.NODE))
    assert (decision.level, decision.remedy.older_than_step) == (Level.POD, 40)


@pytest.mark.parametrize("cls", [_C.CHECKPOINT, _C.CRASH, _C.NODE])
def test_without_a_good_checkpoint_the_phase_fails_naming_them(cls: FaultClass) -> None:
    job = running()
    job.see(sighting(cls))
    decision = job.fails(
        "checkpoint.none_left", at=Step.RESUME, message="no good checkpoint is left: 40, 30"
    )
    assert decision.level is Level.FAIL
    assert "40, 30" in job.state.ending_reason


def test_a_launch_without_a_good_checkpoint_fails_too() -> None:
    job = ScriptedJob(spec=running().spec)
    decision = job.fails("checkpoint.none_left", at=Step.RESUME, message="there are: 40")
    assert (decision.level, "there are: 40" in decision.reason) == (Level.FAIL, True)


def test_full_storage_never_rolls_back() -> None:
    decision = running().see(sighting(_C.STORAGE), sighting(_C.CRASH))
    assert (decision.level, decision.remedy.older_than_step) == (Level.IN_PLACE, None)
    assert Step.WRITABLE in decision.remedy.steps


# -- Rule 15 ------------------------------------------------------------------------------------

POD = PlaceRules(wanted=4, least=4, spare_s=60.0, wait_s=60.0)
JOB = PlaceRules(wanted=4, least=2, spare_s=60.0, wait_s=1_800.0)
ELASTIC = PlaceRules(wanted=4, least=2, spare_s=0.0, wait_s=0.0)
NOT_WITH_3 = PlaceRules(wanted=4, least=2, spare_s=0.0, wait_s=0.0, bad=(3,))
LAUNCH = PlaceRules(wanted=4, least=4, spare_s=60.0, wait_s=None)

SIZES = (
    ("pod waits for a spare", POD, 3, 59.0, TryAgain(until=60.0)),
    ("and fails without one", POD, 3, 60.0, NoPlace(waited_s=60.0)),
    ("job waits for the wanted number first", JOB, 3, 59.0, TryAgain(until=60.0)),
    ("then starts with at least min", JOB, 3, 60.0, OrderPlaces(slots=(0, 1, 2))),
    ("below min it waits on", JOB, 1, 60.0, TryAgain(until=1_800.0)),
    ("and then fails", JOB, 1, 1_800.0, NoPlace(waited_s=1_800.0)),
    ("elastic does not wait", ELASTIC, 3, 0.0, OrderPlaces(slots=(0, 1, 2))),
    ("nor for its minimum", ELASTIC, 1, 0.0, NoPlace(waited_s=0.0)),
    ("a number that does not work is passed by", NOT_WITH_3, 3, 0.0, OrderPlaces(slots=(0, 1))),
    ("a launch without a limit waits", LAUNCH, 3, 9_000.0, TryAgain(until=None)),
)


@pytest.mark.parametrize(
    ("rules", "places", "now", "answer"), [r[1:] for r in SIZES], ids=[f"15 {r[0]}" for r in SIZES]
)
def test_size(rules: PlaceRules, places: int, now: float, answer: object) -> None:
    all_slots = (0, 1, 2, 3)
    newest = Attempt(slots=all_slots, since=0.0)
    new_size = next_order(
        rules, staying=(), wanted=all_slots, attempt=newest, places=places, since=0.0, now=now
    )
    assert new_size == answer


ALL, THREE, TWO = (0, 1, 2, 3), (0, 1, 2), (0, 1)


def attempt(slots: tuple[int, ...], since: float = 0.0) -> Attempt:
    return Attempt(slots=slots, since=since)


def on_with(slots: tuple[int, ...], until: float) -> OrderPlaces:
    return OrderPlaces(slots=slots, until=until)


TRIES = (
    ("first what is wanted, a few seconds", ELASTIC, attempt(ALL), 0.0, on_with(ALL, 5.0)),
    ("then one fewer", ELASTIC, attempt(ALL), 5.0, on_with(THREE, 10.0)),
    ("as long as the others", ELASTIC, attempt(THREE, 7.0), 11.9, on_with(THREE, 12.0)),
    ("then the minimum", ELASTIC, attempt(THREE, 7.0), 12.0, on_with(TWO, 17.0)),
    ("and fails without any", ELASTIC, attempt(TWO, 12.0), 17.0, NoPlace(waited_s=17.0)),
    ("a number that does not work is passed by", NOT_WITH_3, attempt(ALL), 5.0, on_with(TWO, 10.0)),
    ("as long as it waits for a spare", JOB, attempt(ALL), 59.0, on_with(ALL, 60.0)),
    ("then each smaller one", JOB, attempt(ALL), 60.0, on_with(THREE, 65.0)),
    ("then from the largest on again", JOB, attempt(TWO, 65.0), 70.0, on_with(ALL, 75.0)),
    ("which is not the last one", JOB, attempt(ALL, 1_790.0), 1_800.0, on_with(THREE, 1_805.0)),
    ("until its time is over", JOB, attempt(TWO, 1_795.0), 1_800.0, NoPlace(waited_s=1_800.0)),
    ("a job of one size waits for it", LAUNCH, attempt(ALL), 9_001.0, on_with(ALL, 9_006.0)),
    (
        "also when no size works",
        replace(ELASTIC, bad=(2, 3, 4)),
        attempt(ALL),
        4.0,
        on_with(ALL, 5.0),
    ),
)


@pytest.mark.parametrize(
    ("rules", "newest", "now", "answer"),
    [r[1:] for r in TRIES],
    ids=[f"15 {r[0]}" for r in TRIES],
)
def test_smaller_orders_are_tried_where_places_are_unknown(
    rules: PlaceRules, newest: Attempt, now: float, answer: object
) -> None:
    """A foreign scheduler does not report how many places there are."""
    new_size = next_order(
        rules, staying=(), wanted=ALL, attempt=newest, places=None, since=0.0, now=now
    )
    assert new_size == answer


@pytest.mark.parametrize(
    ("now", "answer"),
    [(41.0, TryAgain(until=43.0)), (47.0, on_with(ALL, 48.0)), (48.0, on_with(THREE, 53.0))],
)
def test_a_time_without_a_worker_tried_nothing(now: float, answer: object) -> None:
    """One that takes over at 40 s lets the old pods end until 43 s; only then all of them have a place."""
    new_size = next_order(
        ELASTIC,
        staying=(),
        wanted=ALL,
        attempt=attempt(ALL, 40.0),
        places=None,
        since=0.0,
        not_before=43.0,
        now=now,
    )
    assert new_size == answer


def test_slots_that_stay_come_first() -> None:
    new_size = next_order(
        ELASTIC, staying=(2, 3), wanted=ALL, attempt=attempt(ALL), places=3, since=0.0, now=0.0
    )
    assert new_size == OrderPlaces(slots=(0, 2, 3))


def test_ranks_are_dense_over_living_slots() -> None:
    assert node_ranks((0, 2, 3)) == {0: 0, 2: 1, 3: 2}


def test_each_level_waits_as_it_should() -> None:
    job = running(nodes_min=2)
    job.see(sighting(_C.NODE))
    pod_places = job.plan.places
    job.fails("place.none", at=Step.PLACE)
    elastic_places = job.plan.places
    job.fails("place.none", at=Step.PLACE)
    job_places = job.plan.places
    waits = [(p.least, p.spare_s, p.wait_s) for p in (pod_places, elastic_places, job_places) if p]
    assert waits == [(4, 60.0, 60.0), (2, 0.0, 0.0), (2, 60.0, 1_800.0)]


def test_a_slot_scaled_away_is_absent_and_returns_with_its_number() -> None:
    job = running(nodes_min=2)
    job.see(sighting(_C.NODE))
    job.fails("place.none", at=Step.PLACE)
    job.succeeds(active=(0, 2, 3), pods={})
    assert job.state.slots[1].state is PodState.ABSENT
    assert 1 not in job.state.active
    job.see(fact("scale.out", level="elastic"))
    assert job.plan.remedy.recreate == (1,)
    assert job.plan.places is not None
    assert job.plan.places.spare_s == job.plan.places.wait_s == growth.PLACE_S
    job.succeeds()
    assert job.state.active == (0, 1, 2, 3)


def test_a_job_that_grew_in_vain_waits_longer_each_time_before_it_tries_again() -> None:
    """A quota or a selector may keep a place from it that a node shows as free."""
    job = running(nodes_min=2)
    job.see(sighting(_C.NODE))
    job.fails("place.none", at=Step.PLACE)
    job.succeeds(active=(0, 2, 3), pods={})
    waits = []
    for tries in range(6):
        saved = Checkpoint(step=100 * (tries + 1), path="ckpt/newer")
        job.report(checkpoint=saved)
        began, order = job.state.running_since, watch_order(job.state)
        assert began is not None
        waits.append(0.0 if order.grows_from is None else order.grows_from - began)
        too_early = Observation(now=began + waits[-1] - 1.0, cursor="c", checkpoint=saved)
        at_last = replace(too_early, now=began + waits[-1])
        assert [growth.may_grow(order, one) for one in (too_early, at_last)] == [tries == 0, True]
        job.see(fact("scale.out", level="elastic"))
        job.succeeds(active=(0, 2, 3), pods={})
    assert waits == [0.0, 300.0, 600.0, 1_200.0, 2_400.0, 3_600.0]
    job.see(fact("scale.out", level="elastic"))
    job.succeeds()
    assert job.state.active == (0, 1, 2, 3)
    assert job.state.ledger.grown_in_vain == 0


def test_any_number_of_tries_in_vain_has_a_wait() -> None:
    assert growth.wait_s(2_000) == growth.IN_VAIN_S_MOST


def _grown_in_vain() -> ScriptedJob:
    job = running(nodes_min=2)
    job.see(sighting(_C.NODE))
    job.fails("place.none", at=Step.PLACE)
    job.succeeds(active=(0, 2, 3), pods={})
    job.see(fact("scale.out", level="elastic"))
    job.succeeds(active=(0, 2, 3), pods={})
    return job


def test_other_restarts_put_off_no_try_to_grow() -> None:
    job = _grown_in_vain()
    grows_from = watch_order(job.state).grows_from
    assert grows_from is not None
    job.see(sighting(_C.CRASH, slot=0, at=job.state.now + 100.0), now=job.state.now + 100.0)
    job.succeeds()
    assert watch_order(job.state).grows_from == grows_from


def test_a_job_that_has_all_its_nodes_again_has_grown_however_that_came() -> None:
    job = _grown_in_vain()
    job.command("restart", level="job")
    job.interrupted()
    job.succeeds()
    assert job.state.active == (0, 1, 2, 3)
    assert job.state.ledger.grown_in_vain == 0


def test_a_state_without_the_time_of_a_try_in_vain_waits_from_its_newest_start() -> None:
    job = _grown_in_vain()
    job.state = with_ledger(job.state, grown_in_vain_at=None)
    began = job.state.running_since
    assert began is not None
    assert watch_order(job.state).grows_from == began + growth.IN_VAIN_S


RESIZES = Policy(rules=(Rule(match=Match(exit_code=(7,)), action="resize"),))


def does_not_fit(job: ScriptedJob) -> Decision:
    return job.see(fact("process.exit", slot=0, rank=0, exit_code=7))


def test_a_number_of_nodes_that_did_not_work_is_not_used_again() -> None:
    job = running(RESIZES, nodes_min=2)
    decision = does_not_fit(job)
    assert (decision.level, decision.bad_size, decision.remedy.recreate) == (Level.ELASTIC, 4, ())
    assert job.plan.places == PlaceRules(wanted=3, least=2, spare_s=0.0, wait_s=0.0, bad=(4,))
    job.succeeds(active=(0, 1, 2))
    assert watch_order(job.state).room_for is None  # there is nothing to grow to
    job.see(sighting(_C.PLANNED))
    assert job.plan.places == PlaceRules(wanted=3, least=2, spare_s=60.0, wait_s=1_800.0, bad=(4,))


def test_it_goes_up_again_where_only_a_larger_number_works() -> None:
    job = running(RESIZES, nodes_min=2)
    job.see(sighting(_C.NODE))
    job.fails("place.none", at=Step.PLACE)
    job.succeeds(active=(0, 2, 3))
    assert does_not_fit(job).remedy.recreate == (1,)
    assert job.plan.places == PlaceRules(wanted=4, least=2, spare_s=0.0, wait_s=0.0, bad=(3,))
    job.succeeds(active=(0, 2))
    assert watch_order(job.state).grows_by == 2


def test_a_lost_node_says_nothing_about_the_number_of_nodes() -> None:
    job = running(RESIZES, nodes_min=2)
    decision = job.see(sighting(_C.NODE), fact("process.exit", slot=0, rank=0, exit_code=7))
    assert (decision.level, decision.fault.cls, decision.bad_size) == (Level.POD, _C.NODE, None)


def test_where_every_number_of_nodes_failed_the_job_ends_and_names_the_last() -> None:
    job = running(RESIZES, nodes_min=3)
    does_not_fit(job)
    job.succeeds(active=(0, 1, 2))
    decision = does_not_fit(job)
    assert (decision.level, decision.passed_over) == (
        Level.FAIL,
        ("elastic: every number of nodes from 3 to 4 is known not to work",),
    )
    assert "not with 3 nodes again" in job.state.ending_reason


def test_numbers_of_nodes_are_not_tried_without_progress() -> None:
    job = running(replace(RESIZES, no_progress_restarts=1), nodes_min=1)
    for nodes in (4, 3, 2):
        assert does_not_fit(job).bad_size == nodes
        job.succeeds(active=tuple(range(nodes - 1)))
    assert job.state.ledger.no_progress == 0
    assert does_not_fit(job).level is Level.FAIL


def test_those_that_keep_their_pod_are_among_the_fewer() -> None:
    assert first_slots(2, (0, 1, 2, 3), staying=(3,)) == (0, 3)


def test_what_was_learned_of_the_pace_ends_with_the_size() -> None:
    job = running(nodes_min=2)
    job.report("refresh", first_step_at=job.state.now)
    job.see(sighting(_C.NODE))
    job.fails("place.none", at=Step.PLACE)
    job.succeeds(active=(0, 2, 3))
    assert job.state.learned.longest_start_s == 0.0


def test_a_pod_level_changes_only_the_pods_concerned() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    assert (job.plan.remedy.recreate, job.plan.left_nodes, job.plan.keeps_places) == (
        (1,),
        ("n1",),
        True,
    )
    job.succeeds()
    record = job.record
    assert (dict(record.before), dict(record.after)) == ({1: "n1"}, {1: "n4"})


def test_counters_tell_schedules_from_starts() -> None:
    job = running()

    def counts() -> list[tuple[int, int]]:
        slots = job.state.slots
        return [(slots[n].schedule_count, slots[n].process_start_count) for n in (0, 1)]

    assert counts() == [(1, 1), (1, 1)]
    job.see(sighting(_C.DEVICE))
    job.succeeds()
    assert counts() == [(1, 2), (1, 2)]
    job.see(sighting(_C.NODE))
    job.succeeds()
    assert counts() == [(1, 3), (2, 1)]


def test_no_place_at_the_launch_fails_with_the_reason() -> None:
    job = ScriptedJob(spec=running().spec)
    decision = job.fails("place.none", at=Step.PLACE, message="only 3 of 4 slots found a place")
    assert decision.level is Level.FAIL
    assert "only 3 of 4 slots" in job.state.ending_reason


def test_resuming_takes_the_checkpoint_that_was_chosen() -> None:
    job = running()
    job.see(sighting(_C.CRASH))
    job.succeeds(resume=Checkpoint(step=30, path="ckpt/30"))
    assert job.record.resume_step == 30
