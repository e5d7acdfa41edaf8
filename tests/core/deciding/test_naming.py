"""Rule 1: what a group of facts is called, and when it is complete."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.core.deciding import playbook
from everstep.core.deciding.naming import lines
from everstep.core.facts import Fact
from everstep.core.levels import CAPABILITIES, FaultClass, Level, Step
from everstep.core.seeing import watching
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.seeing.watching import PollAll, WaitFor, Watch
from everstep.core.spec import Limits, Match, Policy, Rule
from everstep.core.world import Observation, PodState, PodView
from tests.support.builders import START, fact, pod, running, sighting, watch_order, with_ladder

CRASH = fact("process.exit", at=100.0, slot=1, rank=1, exit_code=1, generation=1)


def look(
    *facts: Fact,
    now: float,
    pods: tuple[PodView, ...] | None = None,
    has_polled: bool = True,
    **order: object,
) -> WaitFor | PollAll | WatchReport:
    """The result of a watch of four slots at this moment, after every agent answered."""
    full_order = watch_order(0, 1, 2, 3, limits=Limits(), **order)
    pods = tuple(pod(n, step=5, step_at=now) for n in range(4)) if pods is None else pods
    observation = Observation(now=now, cursor="1", pods=pods, facts=facts, generation=1)
    return watching.check(
        full_order, Watch(learned=full_order.learned, has_polled=has_polled), observation
    )[1]


def silent(slot: int, since: float = 90.0) -> PodView:
    return pod(slot, silent_since=since, step=5, step_at=since)


def test_at_the_first_fact_every_agent_is_asked() -> None:
    assert look(CRASH, now=100.0, has_polled=False) == PollAll()


def test_facts_are_told_as_soon_as_every_agent_has_answered() -> None:
    report = look(CRASH, now=100.0)
    assert isinstance(report, WatchReport)
    assert report.facts == (CRASH,)


def test_where_a_slot_is_silent_facts_are_grouped_for_settle_s() -> None:
    warning = sighting(FaultClass.SUBHEALTH, at=100.0)
    pods = (pod(0), pod(1), pod(2), silent(3))
    assert look(warning, now=100.05, pods=pods) == WaitFor(until=100.1)
    assert isinstance(look(warning, now=100.1, pods=pods), WatchReport)


def test_who_was_asked_about_a_group_is_not_asked_about_it_again_but_about_the_next_one() -> None:
    order = watch_order(0, 1, limits=Limits())
    pods = (pod(0, step=5, step_at=100.0), silent(1))
    crashed = Observation(now=100.0, cursor="1", pods=pods, facts=(CRASH,), generation=1)
    watch, verdict = watching.check(order, Watch(learned=order.learned), crashed)
    assert verdict == PollAll()
    watch, verdict = watching.check(order, watch, crashed)
    assert isinstance(verdict, WaitFor)
    watch, verdict = watching.check(order, watch, crashed)
    assert isinstance(verdict, WaitFor)
    quiet = Observation(now=100.0, cursor="1", pods=(pods[0], pod(1)), generation=1)
    watch, verdict = watching.check(order, replace(watch, facts=()), quiet)
    assert isinstance(verdict, WaitFor)
    assert watching.check(order, watch, crashed)[1] == PollAll()


def test_a_crash_with_a_silent_slot_is_not_named_before_its_time() -> None:
    pods = (pod(0), pod(1), pod(2), silent(3))
    assert look(CRASH, now=101.0, pods=pods) == WaitFor(until=160.0)


def test_when_the_time_of_the_silent_slot_is_over_it_decides() -> None:
    report = look(CRASH, now=160.0, pods=(pod(0), pod(1), pod(2), silent(3)))
    assert isinstance(report, WatchReport)
    assert [f.kind for f in report.facts] == ["process.exit", "node.silent"]
    assert playbook.name(report.facts)[0].cls is FaultClass.NODE


def test_a_crash_is_named_at_once_when_the_silent_slot_has_a_verdict() -> None:
    down = fact("node.down", at=100.0, node="n3")
    report = look(CRASH, down, now=100.1, pods=(pod(0), pod(1), pod(2), silent(3)))
    assert isinstance(report, WatchReport)
    assert report.facts == (CRASH, down)


def test_a_pod_that_others_end_is_replaced_at_once_although_its_agent_is_silent() -> None:
    deleted = fact("pod.deleted", at=100.0, slot=3, node="n3", generation=1)
    leaving = silent(3)._replace(state=PodState.LEAVING)
    report = look(deleted, now=100.1, pods=(pod(0), pod(1), pod(2), leaving))
    assert isinstance(report, WatchReport)
    assert report.lost_containers == (3,)


@pytest.mark.parametrize("kind", ["device.healed", "device.fault", "subhealth.power"])
def test_a_fact_that_stopped_nothing_is_no_reason_to_give_up_a_silent_slot(kind: str) -> None:
    warning = fact(kind, at=100.0, node="n0", device=0, severity="warning")
    report = look(warning, now=1_000.0, pods=(pod(0), pod(1), pod(2), silent(3)))
    assert isinstance(report, WatchReport)
    assert report.facts == (warning,)


WEIGHTIER = (
    ("a node outranks a device", FaultClass.NODE, FaultClass.DEVICE),
    ("a node outranks a crash", FaultClass.NODE, FaultClass.CRASH),
    ("a device outranks a crash", FaultClass.DEVICE, FaultClass.CRASH),
    ("a device outranks a hang", FaultClass.DEVICE_USER, FaultClass.HANG),
    ("a bad checkpoint outranks its crash", FaultClass.CHECKPOINT, FaultClass.CRASH),
    ("full storage outranks its crash", FaultClass.STORAGE, FaultClass.CRASH),
    ("a hang outranks silence", FaultClass.HANG, FaultClass.UNREACHABLE),
    ("anything outranks a warning", FaultClass.CRASH, FaultClass.SUBHEALTH),
)


@pytest.mark.parametrize(
    ("first", "second"), [row[1:] for row in WEIGHTIER], ids=[row[0] for row in WEIGHTIER]
)
def test_the_weightier_fact_names_the_group(first: FaultClass, second: FaultClass) -> None:
    fault, _ = playbook.name((sighting(second, at=1.0), sighting(first, at=2.0)))
    assert fault.cls is first


def test_of_several_crashes_the_earliest_names_the_rank() -> None:
    later = fact("process.exit", at=102.0, slot=0, rank=0, signal=9)
    earlier = fact("process.exit", at=101.0, slot=2, rank=2, exit_code=1)
    fault, _ = playbook.name((later, earlier))
    assert (fault.rank, fault.slot) == (2, 2)
    assert fault.slots == (0, 2)


def test_a_deleted_pod_explains_exits_of_ranks_that_were_seen_earlier() -> None:
    ended = fact("process.exit", at=101.0, slot=0, rank=0, exit_code=1)
    deleted = fact("pod.deleted", at=102.0, slot=2)
    fault, _ = playbook.name((ended, deleted))
    assert (fault.kind, fault.slot) == ("pod.deleted", 2)


def test_rules_of_the_user_look_at_the_whole_group() -> None:
    rule = Rule(match=Match(exit_code=(3,)), action="fail", why="bad configuration")
    job = running(Policy(rules=(rule,)))
    decision = job.see(
        fact("process.exit", at=START, slot=0, signal=9),
        fact("process.exit", at=START + 1, slot=1, exit_code=3),
    )
    assert decision.level is Level.FAIL
    assert "bad configuration" in decision.reason


def test_of_the_users_rules_the_first_match_wins() -> None:
    rules = (
        Rule(match=Match(exit_code=(3,)), action="levels", levels=(Level.JOB,)),
        Rule(match=Match(kind="process."), action="fail"),
    )
    job = running(Policy(rules=rules))
    assert job.see(fact("process.exit", slot=1, exit_code=3)).level is Level.JOB


@pytest.mark.parametrize("action", ["note", "ignore"])
def test_a_rule_that_ignores_one_fact_does_not_swallow_a_crash_beside_it(action: str) -> None:
    rule = Rule(match=Match(code="77"), action=action)  # type: ignore[arg-type]  # two of its words
    job = running(Policy(rules=(rule,)))
    noisy = fact("device.fault", node="n2", device=0, code="77")
    decision = job.see(noisy, fact("process.exit", slot=1, exit_code=1))
    assert (decision.level, decision.fault.cls) == (Level.IN_PLACE, FaultClass.CRASH)
    assert running(Policy(rules=(rule,))).see(noisy).level is Level.NOTE


def test_a_rule_that_names_a_code_answers_it_where_its_level_alone_is_only_noted() -> None:
    warning = fact("device.fault", node="n2", device=0, code="77", severity="warning")
    healed = fact("device.healed", node="n2", device=0, code="77")
    rule = Rule(match=Match(code="77"), action="levels", levels=(Level.JOB,))
    job = running(Policy(rules=(rule,)))
    assert job.see(warning).level is Level.JOB
    assert running(Policy(rules=(rule,))).see(healed).level is Level.NOTE
    of_all = Rule(match=Match(kind="device."), action="levels", levels=(Level.JOB,))
    assert running(Policy(rules=(of_all,))).see(warning).level is Level.NOTE


def test_a_class_that_is_only_noted_does_not_swallow_a_lighter_one_that_is_not() -> None:
    job = running(with_ladder(Policy(), FaultClass.DEVICE, Level.NOTE))
    decision = job.see(sighting(FaultClass.DEVICE), sighting(FaultClass.CRASH))
    assert (decision.level, decision.fault.cls) == (Level.IN_PLACE, FaultClass.CRASH)


def test_a_rule_may_give_a_fact_another_class() -> None:
    rule = Rule(match=Match(log="vocab size"), action="class", cls=FaultClass.NUMERIC)
    decision = running(Policy(rules=(rule,))).see(
        fact("process.exit", slot=1, log="a vocab size of 3")
    )
    assert (decision.fault.cls, decision.level) == (FaultClass.NUMERIC, Level.ROLLBACK)


@pytest.mark.parametrize(
    ("can", "level"),
    [((), Level.POD), (CAPABILITIES, Level.PROCESS)],
    ids=["no library", "library in every rank"],
)
def test_a_second_broken_device_is_left_by_the_same_restart(
    can: tuple[str, ...], level: Level
) -> None:
    lost, broken = sighting(FaultClass.NODE), sighting(FaultClass.DEVICE_FATAL, node="n2")
    decision = running().see(lost, broken, can=can)
    assert (decision.level, decision.facts_for_later) == (level, ())
    assert {isolation.node for isolation in decision.remedy.isolate} == {"n1", "n2"}
    assert decision.remedy.recreate == (1, 2)


@pytest.mark.parametrize("cls", FaultClass)
def test_stop_is_the_first_step_of_every_level_that_stops(cls: FaultClass) -> None:
    decision = running().see(sighting(cls))
    assert (decision.remedy.steps[:1] == ("stop",)) == decision.is_executed


def test_nothing_runs_any_more_cannot_be_answered_with_a_note() -> None:
    rule = Rule(match=Match(kind="process."), action="ignore")
    job = running(Policy(rules=(rule,)))
    assert job.see(fact("process.exit", slot=1)).level is Level.NOTE
    ended = fact("process.all_ended", slot=1)
    assert job.see(ended).level is Level.FAIL


def test_what_was_told_before_is_not_news() -> None:
    job = running()
    warning = sighting(FaultClass.SUBHEALTH)
    job.see(warning)
    assert job.see(warning).fault.kind == "nothing.new"


def test_a_fact_of_replaced_processes_is_late() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    old = fact("process.exit", slot=2, generation=1)
    assert job.see(old).level is Level.NOTE


@pytest.mark.parametrize("kind", ["node.down", "gpu.weird", "network.link_down", "hang.steps"])
def test_a_fault_of_a_node_this_job_has_left_is_none_of_its_business(kind: str) -> None:
    """Nor is one of an unknown node: its name was mistyped."""
    job = running()
    job.see(fact(kind, node="n9"))
    assert job.decisions[-1].level is Level.NOTE
    assert "nodes that are not this job's" in job.decisions[-1].reason


@pytest.mark.parametrize(
    "where",
    [{"node": "n1"}, {}, {"node": "n9", "slot": 2}],
    ids=["its node", "nowhere", "its slot"],
)
def test_an_unknown_fault_of_this_job_is_its_business(where: dict[str, Any]) -> None:
    job = running()
    assert job.see(fact("gpu.weird", **where)).level is not Level.NOTE


def test_what_was_seen_is_said_once_and_a_cut_line_says_that_it_is_cut() -> None:
    """The sentence comes first: of the details only what it does not say follows."""
    why = "RuntimeError: CUDA error: the loss is not a number"
    crash = fact(
        "process.exit",
        slot=1,
        rank=1,
        message=f"exit code 1: {why}",
        exit_code=1,
        exception=why,
        attempt=11,
        warden="",
    )
    assert lines((crash,)) == (f"process.exit slot 1 exit code 1: {why} attempt=11",)
    (cut,) = lines((replace(crash, message="x" * 300),))
    assert len(cut) == 200
    assert cut.endswith("…")


def test_a_class_that_is_only_noted_stays_so_however_often_it_is_sighted() -> None:
    """The third one of a day is a fatal fault, which this document only notes."""
    job = running(with_ladder(Policy(), FaultClass.DEVICE_FATAL, Level.NOTE))
    levels = []
    for n in range(1, 4):
        job.saves(100 * n)
        levels.append(job.see(sighting(FaultClass.DEVICE, at=job.state.now)).level)
        if levels[-1] is not Level.NOTE:
            job.succeeds()
    assert levels[2] is Level.NOTE


_C = FaultClass
MAY_BE_LATER: tuple[tuple[str, FaultClass, FaultClass, dict[str, str]], ...] = (
    ("a bad checkpoint moves with the job", _C.NODE, _C.CHECKPOINT, {}),
    ("so do wrong numbers, on whatever node", _C.NODE, _C.NUMERIC, {"node": "n1"}),
    ("so does a full storage, and no place that is taken back", _C.PREEMPTED, _C.STORAGE, {}),
    ("a device that heals in place leaves no node", _C.DEVICE, _C.MAINTENANCE, {}),
)


@pytest.mark.parametrize(
    ("cls", "other", "changes"), [r[1:] for r in MAY_BE_LATER], ids=[r[0] for r in MAY_BE_LATER]
)
def test_a_fault_that_a_restart_does_not_remove_is_answered_after_it(
    cls: FaultClass, other: FaultClass, changes: dict[str, str]
) -> None:
    job = running()
    job.saves(10)
    job.saves(20)
    second = sighting(other, **changes)
    assert job.see(sighting(cls), second).facts_for_later == (second.id,)
    job.succeeds()
    assert job.decisions[-1].fault.cls is other


def test_a_notice_about_a_node_that_is_left_anyway_needs_no_answer() -> None:
    job = running()
    assert job.see(sighting(_C.NODE), sighting(_C.MAINTENANCE)).facts_for_later == ()


@pytest.mark.parametrize("cls", [_C.NODE, _C.DEVICE_FATAL, _C.DEVICE, _C.DEVICE_USER, _C.PRECHECK])
def test_one_restart_answers_a_fault_and_waits_for_the_storage_beside_it(cls: FaultClass) -> None:
    job = running()
    job.saves(10)
    decision = job.see(sighting(cls), sighting(_C.STORAGE))
    assert (decision.fault.cls, decision.facts_for_later) == (cls, ())
    assert Step.WRITABLE in decision.remedy.steps
    assert "; storage has to be writable first; " in decision.reason
    job.succeeds()
    assert len(job.decisions) == 1


def test_the_next_level_waits_for_the_storage_as_well() -> None:
    job = running()
    job.see(sighting(_C.NODE), sighting(_C.STORAGE))
    assert Step.WRITABLE in job.fails("place.none", at=Step.PLACE).remedy.steps


def test_a_node_that_is_lost_while_the_job_waits_for_its_storage_does_not_end_the_wait() -> None:
    job = running()
    job.see(sighting(_C.STORAGE))
    assert Step.WRITABLE in job.gives_way(sighting(_C.NODE), at=Step.WRITABLE).remedy.steps


def test_the_storage_beside_another_fault_is_waited_for_once() -> None:
    job = running()
    job.see(sighting(_C.NODE), sighting(_C.STORAGE))
    why = "/ckpt takes no more files for 1800 s"
    decision = job.fails("storage.unwritable", at=Step.WRITABLE, message=why)
    assert (decision.level, why in decision.reason) == (Level.FAIL, True)


def test_an_answer_to_storage_that_the_document_names_is_not_left_out() -> None:
    job = running(with_ladder(Policy(), _C.STORAGE, Level.JOB))
    storage = sighting(_C.STORAGE)
    assert job.see(sighting(_C.NODE), storage).facts_for_later == (storage.id,)
    job = running(with_ladder(Policy(), _C.STORAGE, Level.NOTE))
    assert Step.WRITABLE not in job.see(sighting(_C.NODE), sighting(_C.STORAGE)).remedy.steps


@pytest.mark.parametrize(
    ("kind", "code", "device", "message", "line"),
    [
        ("node.down", None, None, "n1 is down", "node.down n1 is down"),
        ("node.down", None, None, "", "node.down n1"),
        ("node.down", None, None, "n10 is down", "node.down n1 n10 is down"),
        ("device.fault", "XID 79", 3, "XID 79 on n1/3", "device.fault XID 79 on n1/3"),
        (
            "device.fault",
            "XID 79",
            3,
            "it fell off the bus",
            "device.fault XID 79 n1/3 it fell off the bus",
        ),
    ],
)
def test_what_the_message_names_is_said_once(
    kind: str, code: str | None, device: int | None, message: str, line: str
) -> None:
    seen_fact = fact(kind, node="n1", code=code, device=device, message=message)
    assert lines((seen_fact,)) == (line,)
