"""Rules 9, 12 and 16: when a node is isolated, what holds that back, and who counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.loop.next_actions import Clear, PlanEnded
from everstep.core.recovering import quarantine
from everstep.core.recovering.quarantine import Quarantine, Request
from everstep.core.spec import Budget, Policy
from everstep.core.world import PodRef
from everstep.dialects import responses
from everstep.dialects.cerebras.policy import cerebras
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import START, ScriptedJob, isolation, running, sighting, with_ladder

_C = FaultClass
EMPTY = Quarantine(cluster="local")


def ask(book: Quarantine, node: str, **options: object) -> tuple[Quarantine, str]:
    plain = {"reason": "test", "by": "demo", "cluster_size": 20, "at": 0.0}
    request = Request(node=node, **{**plain, **options})  # type: ignore[arg-type]  # named by the tests
    after, answer = quarantine.isolate(book, request)
    return after, answer.verdict


def suspected(count: int, **options: object) -> Quarantine:
    book = EMPTY
    for number in range(count):
        book, _ = ask(book, f"s{number}", proven=False, **options)
    return book


# known, proven, size of the cluster, time, verdict
BRAKES = (
    ("a fifth of the cluster may be suspected", suspected(3), False, 20, 0.0, "isolated"),
    ("beyond it an operator has to agree", suspected(4), False, 20, 0.0, "held"),
    ("an hour later again", suspected(4), False, 20, 3_600.0, "isolated"),
    ("not in small clusters", suspected(10, cluster_size=19), False, 19, 0.0, "isolated"),
    ("a proven fault is never held back", suspected(4), True, 20, 0.0, "isolated"),
    ("the only node is never isolated", EMPTY, True, 1, 0.0, "only_node"),
    ("where the size is not known there is no brake", suspected(4), False, 0, 0.0, "isolated"),
)


@pytest.mark.parametrize(
    ("book", "proven", "size", "at", "verdict"),
    [row[1:] for row in BRAKES],
    ids=[f"9 {row[0]}" for row in BRAKES],
)
def test_isolation_has_brakes(
    book: Quarantine, proven: bool, size: int, at: float, verdict: str
) -> None:
    assert ask(book, "n1", proven=proven, cluster_size=size, at=at)[1] == verdict


@pytest.mark.parametrize("by", [quarantine.OPERATOR, "another job"])
def test_a_suspicion_that_is_proven_later_counts_no_longer_for_the_brake(by: str) -> None:
    book, verdict = ask(suspected(4), "s0", by=by, proven=True)
    assert verdict == "isolated"
    assert ask(book, "n1", proven=False)[1] == "isolated"
    again, _ = ask(book, "s0", proven=False)
    assert again.nodes["s0"].proven, "what is proven is no suspicion again"


def test_a_code_that_lasts_too_long_leaves_a_suspicion_by_its_count_one() -> None:
    """Each time that is counted comes with such a request: else the brake would never hold."""
    book, _ = ask(suspected(4), "s0", by=quarantine.DURATION)
    assert not book.nodes["s0"].proven
    assert ask(book, "n1", proven=False)[1] == "held"


def test_a_record_says_at_once_that_a_node_is_to_be_isolated_and_at_last_whether_it_was() -> None:
    def isolated_node(job: ScriptedJob) -> tuple[str, bool]:
        record = responses.record(job.record)
        return record["recover"], record["isolated"]

    meant, undone = ("job_reschedule_with_taint", True), ("job_reschedule", False)
    job = running(modelarts(job_retry=8))
    job.see(sighting(_C.NODE))
    assert isolated_node(job) == meant
    assert "level job: " in job.chronicle.happenings[-1].text
    job.succeeds()
    assert isolated_node(job) == meant
    job.see(sighting(_C.NODE, node="n2"))
    job.succeeds(isolated=())  # a brake held it back
    assert isolated_node(job) == undone
    job.see(sighting(_C.NODE, node="n3"))
    job.loses_outcome()
    job.finds(started=False, generation=job.state.generation)
    assert [record["recover"] for record in responses.restarts(job.chronicle)[2:]] == [
        undone[0],
        meant[0],
    ]


@pytest.mark.parametrize(("at", "verdict"), [(35.0, "held"), (36.0, "isolated")])
def test_a_rehearsal_divides_the_hour(at: float, verdict: str) -> None:
    request = Request(node="n1", reason="test", by="demo", proven=False, cluster_size=20, at=at)
    _, answer = quarantine.isolate(suspected(4), quarantine.scaled(request, 100.0))
    assert answer.verdict == verdict
    assert ("on suspicion within 36 s" in answer.why) == (verdict == "held")


def test_proven_isolations_do_not_use_up_the_share_of_suspicions() -> None:
    book = EMPTY
    for number in range(10):
        book, _ = ask(book, f"p{number}", proven=True)
    assert ask(book, "n1", proven=False)[1] == "isolated"


def test_isolating_twice_is_isolating_once() -> None:
    book, _ = ask(EMPTY, "n1", reason="first")
    again, verdict = ask(book, "n1", reason="second")
    assert (again, verdict) == (book, "isolated")


def test_an_operator_changes_why_and_how_long() -> None:
    book, _ = ask(EMPTY, "n1", reason="first")
    request = {"by": quarantine.OPERATOR, "reason": "new cables", "until": 50.0}
    again, verdict = ask(book, "n1", **request)
    entry = again.nodes["n1"]
    assert (verdict, entry.reason, entry.until, entry.since) == (
        "isolated",
        "new cables",
        50.0,
        0.0,
    )
    assert ask(again, "n1", reason="another job's suspicion", proven=False)[0] == again


def test_a_proven_fault_outlasts_the_end_that_an_operator_named_before() -> None:
    book, _ = ask(EMPTY, "n1", by=quarantine.OPERATOR, reason="new cables", until=50.0)
    book, verdict = ask(book, "n1", reason="XID 79 on n1/3")
    assert (verdict, book.nodes["n1"].reason) == ("isolated", "XID 79 on n1/3")
    assert quarantine.expired_nodes(book, 51.0) == ()


def test_a_node_that_was_released_is_used_and_isolated_again() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    job.succeeds()
    assert job.state.isolated.keys() == {"n1"}
    job.see(sighting(_C.NODE, node="n2"))
    assert job.plan.remedy.avoid == ()
    # It was released, and the cluster gives it to us.
    job.succeeds(pods={2: PodRef(node="n1", uid="again-2")})
    assert job.state.isolated.keys() == {"n2"}
    again = job.see(sighting(_C.NODE))
    assert [i.node for i in again.remedy.isolate] == ["n1"]


@pytest.mark.parametrize(
    ("options", "ends"),
    [({}, 86_400.0), ({"until": 50.0}, 50.0), ({"window_s": 36.0}, 864.0)],
    ids=["after a day", "with its own end", "in a rehearsal"],
)
def test_a_suspicion_that_is_held_back_ends(options: dict[str, float], ends: float) -> None:
    book, verdict = ask(suspected(4), "n1", proven=False, **options)
    assert verdict == "held"
    assert quarantine.pass_time(book, ends - 1.0) == book
    after = quarantine.pass_time(book, ends)
    assert (after.held, after.nodes) == ({}, book.nodes)


# class, what is seen elsewhere, proven or not
PROVEN = ((_C.NODE, True), (_C.DEVICE_FATAL, True), (_C.PRECHECK, True))


@pytest.mark.parametrize(("cls", "proven"), PROVEN)
def test_before_a_rescheduling_faulty_hardware_is_isolated(cls: FaultClass, proven: bool) -> None:
    decision = running().see(sighting(cls))
    assert [(i.node, i.proven) for i in decision.remedy.isolate] == [("n1", proven)]
    steps = decision.remedy.steps
    assert steps.index(Step.ISOLATE) < steps.index(Step.PLACE)


@pytest.mark.parametrize("cls", [_C.CRASH, _C.HANG, _C.PREEMPTED, _C.MAINTENANCE, _C.UNKNOWN])
def test_what_is_no_hardware_fault_isolates_nothing(cls: FaultClass) -> None:
    job = running()
    decision = job.see(sighting(cls))
    while decision.is_executed:
        assert decision.remedy.isolate == ()
        decision = job.fails("start.timeout", at=Step.START, slot=1)


def test_a_silent_node_and_a_repeated_code_are_suspicions() -> None:
    job = running()
    silent = job.see(sighting(_C.NODE, kind="node.silent", slot=1))
    assert not silent.remedy.isolate[0].proven


def test_a_proof_among_the_facts_makes_the_isolation_of_a_silent_node_a_proven_one() -> None:
    silent = sighting(_C.NODE, kind="node.silent", slot=1)
    decision = running().see(silent, sighting(_C.DEVICE_FATAL))
    assert [(i.node, i.proven) for i in decision.remedy.isolate] == [("n1", True)]


DOWN_AND_SILENT = (
    sighting(_C.NODE),
    sighting(_C.NODE, kind="node.silent", node="n2", slot=2),
)


@pytest.mark.parametrize("silent_since", [START - 60.0, START + 60.0], ids=["first", "last"])
@pytest.mark.parametrize("level", [Level.POD, Level.IN_PLACE], ids=["left at once", "left later"])
def test_a_silent_node_beside_one_that_is_down_stays_a_suspicion(
    level: Level, silent_since: float
) -> None:
    down, silent = DOWN_AND_SILENT
    job = running(with_ladder(Policy(), _C.NODE, level, Level.JOB))
    job.see(down, replace(silent, at=silent_since))
    job.fails("process.not_kept", at=Step.STOP)
    assert {i.node: i.proven for i in job.plan.remedy.isolate} == {"n1": True, "n2": False}


@pytest.mark.parametrize("facts", [DOWN_AND_SILENT, DOWN_AND_SILENT[::-1]], ids=["down", "silent"])
@pytest.mark.parametrize("ends", ["gives way", "fails"])
def test_each_node_of_an_incident_keeps_its_own_proof(facts: tuple[Fact, Fact], ends: str) -> None:
    first, second = facts
    job = running(with_ladder(Policy(), _C.NODE, Level.IN_PLACE, Level.JOB))
    job.see(first)
    if ends == "fails":
        job.fails("process.not_kept", at=Step.STOP, facts=(second,))
    else:
        job.gives_way(second, at=Step.STOP)
        job.fails("process.not_kept", at=Step.STOP)
    assert {i.node: i.proven for i in job.plan.remedy.isolate} == {"n1": True, "n2": False}


def _gives_way(job: ScriptedJob) -> None:
    job.gives_way(sighting(_C.NODE), at=Step.STOP)


def _fails(job: ScriptedJob) -> None:
    job.fails("process.not_kept", at=Step.STOP, facts=(sighting(_C.NODE),))


@pytest.mark.parametrize("ends", [_gives_way, _fails])
def test_a_proof_that_comes_during_a_restart_makes_its_isolation_a_proven_one(
    ends: Callable[[ScriptedJob], None],
) -> None:
    job = running()
    job.see(sighting(_C.NODE, kind="node.silent", slot=1))
    assert not job.plan.remedy.isolate[0].proven
    ends(job)
    assert [(i.node, i.proven) for i in job.plan.remedy.isolate] == [("n1", True)]


def test_a_node_is_not_isolated_twice_in_an_incident() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    assert job.fails("place.none", at=Step.PLACE).remedy.isolate == ()
    assert job.state.isolated.keys() == {"n1"}


def test_an_isolation_that_was_not_reached_is_asked_for_again() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    second = job.gives_way(sighting(_C.NODE, node="n2"), at=Step.STOP)
    assert {i.node for i in second.remedy.isolate} == {"n1", "n2"}
    assert second.remedy.recreate == (1, 2)


def test_an_isolation_survives_a_preemption_that_comes_first() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    second = job.gives_way(sighting(_C.PREEMPTED), at=Step.STOP)
    assert (second.level, [i.node for i in second.remedy.isolate]) == (Level.JOB, ["n1"])


def test_what_the_quarantine_could_not_be_told_is_kept_until_it_was() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    late = isolation("n1")
    job.succeeds(isolated=(), deferred=(late,), avoid=("n1",), notes=("isolate: deferred for n1",))
    assert (job.state.deferred, job.state.avoid) == ((late,), ("n1",))
    assert job.record.notes == ("isolate: deferred for n1",)
    assert not job.record.isolated
    job.see(sighting(_C.CRASH))
    job.succeeds()
    assert job.state.deferred == (late,)


def test_a_node_held_back_is_avoided_by_this_job() -> None:
    job = running()
    job.see(sighting(_C.NODE, kind="node.silent", slot=1))
    job.succeeds(isolated=(), avoid=("n1",))
    assert (job.state.avoid, dict(job.state.isolated)) == (("n1",), {})
    job.see(sighting(_C.PLANNED))
    assert "n1" in job.plan.remedy.avoid


def test_a_device_alone_is_named_where_it_may_be_isolated_alone() -> None:
    decision = running().see(sighting(_C.DEVICE_FATAL))
    assert [(i.node, i.device) for i in decision.remedy.isolate] == [("n1", 3)]


def test_the_device_of_the_only_node_is_not_used_again() -> None:
    job = running(nodes=1)
    job.see(sighting(_C.DEVICE_FATAL, node="n0"))
    job.succeeds(isolated=(), avoid_devices=(("n0", 3),))
    job.see(sighting(_C.CRASH, slot=0))
    assert job.plan.avoid_devices == (("n0", 3),)


def test_a_released_node_is_open_again() -> None:
    book, _ = ask(EMPTY, "n1")
    after, was_known = quarantine.release(book, "n1")
    assert (after.nodes, was_known) == ({}, True)
    assert quarantine.release(after, "n1")[1] is False


@pytest.mark.parametrize("ends", [_gives_way, _fails])
def test_a_proof_for_one_of_two_silent_nodes_is_taken_for_that_one(
    ends: Callable[[ScriptedJob], None],
) -> None:
    job = running()
    silent = [sighting(_C.NODE, kind="node.silent", node=f"n{slot}", slot=slot) for slot in (1, 2)]
    job.see(*silent)
    ends(job)
    assert {i.node: i.proven for i in job.plan.remedy.isolate} == {"n1": True, "n2": False}


def test_a_mark_changes_with_the_isolation_and_with_its_reason() -> None:
    book, _ = ask(ask(EMPTY, "n1", reason="first")[0], "n2")
    longer, _ = ask(book, "n1", by=quarantine.OPERATOR, reason="first", until=50.0)
    other, _ = ask(longer, "n1", by=quarantine.OPERATOR, reason="second")
    assert quarantine.changed_isolations(EMPTY, book) == ["n1", "n2"]
    assert quarantine.changed_isolations(book, longer) == []
    assert quarantine.changed_isolations(longer, other) == ["n1"]
    assert quarantine.changed_isolations(other, EMPTY) == ["n1", "n2"]


def test_isolations_end_with_their_time() -> None:
    book, _ = ask(EMPTY, "n1", until=100.0)
    assert (quarantine.expired_nodes(book, 99.0), quarantine.expired_nodes(book, 100.0)) == (
        (),
        ("n1",),
    )


def test_marks_of_the_cluster_are_never_forgotten() -> None:
    book, _ = ask(EMPTY, "n1", reason="ours")
    after = quarantine.with_isolations_of_cluster(book, {"n1": "theirs", "n2": ""}, now=5.0)
    assert after.nodes["n1"].reason == "ours"
    assert after.nodes["n2"].reason == "marked on the cluster"


def _during_the_recovery(job: ScriptedJob) -> None:
    job.command("stop")
    job._advance(PlanEnded(outcome=None, interrupted=True))


def _after_its_outcome_was_lost(job: ScriptedJob) -> None:
    job.loses_outcome()
    job.command("stop")
    job.finds(started=False, generation=1)


def _after_a_pause_during_it(job: ScriptedJob) -> None:
    job.command("pause")
    job._advance(PlanEnded(outcome=None, interrupted=True))
    job.command("stop")
    job._advance(PlanEnded(outcome=None, interrupted=True))


@pytest.mark.parametrize(
    "stop", [_during_the_recovery, _after_its_outcome_was_lost, _after_a_pause_during_it]
)
def test_a_stop_loses_no_isolation_that_was_decided(stop: Callable[[ScriptedJob], None]) -> None:
    """The Recovery ended without saying whether the quarantine has it."""
    job = running()
    job.see(sighting(_C.NODE))
    isolations = job.plan.remedy.isolate
    assert [isolation.node for isolation in isolations] == ["n1"]
    stop(job)
    assert isinstance(job.action, Clear)
    assert job.state.deferred == isolations


def test_a_stop_after_a_recovery_hands_over_nothing_anew() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    job.succeeds(isolated=("n1",))
    job.command("stop")
    job.report("interrupted")
    assert isinstance(job.action, Clear)
    assert job.state.deferred == ()


def _at_the_heal(job: ScriptedJob) -> None:
    job.see(sighting(_C.DEVICE))
    job.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3)


def _before_the_isolation(job: ScriptedJob) -> None:
    job.see(sighting(_C.NODE))
    job.fails("process.not_kept", at=Step.STOP)


LAST_LEVEL: tuple[tuple[FaultClass, Level, Callable[[ScriptedJob], None]], ...] = (
    (_C.DEVICE, Level.IN_PLACE, _at_the_heal),
    (_C.NODE, Level.JOB, _before_the_isolation),
)


@pytest.mark.parametrize(("cls", "level", "ends"), LAST_LEVEL)
def test_a_job_without_a_level_left_hands_over_the_node_that_is_broken(
    cls: FaultClass, level: Level, ends: Callable[[ScriptedJob], None]
) -> None:
    job = running(with_ladder(Policy(), cls, level))
    ends(job)
    assert job.state.ending == "Failed"
    assert [isolation.node for isolation in job.state.deferred] == ["n1"]


def _all_refused() -> Policy:
    return Policy(budgets=(Budget(name="all", limit=0, levels=tuple(Level)),))


def _none_left() -> Policy:
    return cerebras(max_num_restarts=0)


@pytest.mark.parametrize("limited", [_all_refused, _none_left])
@pytest.mark.parametrize("cls", [_C.NODE, _C.DEVICE_FATAL])
def test_a_job_without_a_restart_left_hands_over_the_node_that_is_broken(
    cls: FaultClass, limited: Callable[[], Policy]
) -> None:
    job = running(limited())
    job.see(sighting(cls), sighting(_C.NODE, kind="node.silent", node="n2", slot=2))
    assert job.state.ending == "Failed"
    assert [record for record in job.records if record.refused_by is None] == []
    assert {i.node: i.proven for i in job.state.deferred} == {"n1": True, "n2": False}


def test_a_job_without_a_restart_left_hands_over_no_device_that_may_heal() -> None:
    job = running(_all_refused())
    job.see(sighting(_C.DEVICE))
    assert (job.state.ending, job.state.deferred) == ("Failed", ())


def test_a_job_whose_document_only_ends_hands_over_nothing() -> None:
    job = running(with_ladder(Policy(), _C.NODE, Level.FAIL))
    job.see(sighting(_C.NODE))
    assert (job.state.ending, job.state.deferred) == ("Failed", ())


def test_a_job_that_fails_sends_no_isolation_again_that_was_answered() -> None:
    """A brake held it back, or it is the only node."""
    job = running(with_ladder(Policy(), _C.NODE, Level.JOB))
    job.see(sighting(_C.NODE, kind="node.silent", slot=1))
    job.fails("place.none", at=Step.PLACE, isolated=(), avoid=("n1",))
    assert (job.state.ending, job.state.deferred) == ("Failed", ())


def test_only_a_proof_adds_to_a_suspicion() -> None:
    suspicion, proof = isolation("n1", proven=False), isolation("n1")
    assert suspicion.adds_nothing_to(suspicion)
    assert suspicion.adds_nothing_to(proof)
    assert not proof.adds_nothing_to(suspicion)
    assert not isolation("n2").adds_nothing_to(proof)


def test_what_a_quarantine_could_not_be_reached_for_is_handed_over_once() -> None:
    job = running(with_ladder(Policy(), _C.NODE, Level.JOB))
    job.see(sighting(_C.NODE))
    late = job.plan.remedy.isolate
    job.fails("place.none", at=Step.PLACE, isolated=(), deferred=late)
    assert (job.state.ending, job.state.deferred) == ("Failed", late)
