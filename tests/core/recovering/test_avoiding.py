"""Which nodes a job avoids, why and until when; a node in maintenance only as long as that lasts."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.levels import FaultClass
from everstep.core.loop.next_actions import WatchAction
from everstep.core.recovering.avoiding import (
    AVOIDED_MOST,
    avoided_nodes,
    maintenance_over,
    until,
    with_avoided,
    with_nodes,
)
from everstep.core.spec import Match, Policy, Rule
from everstep.core.waits import WaitKind, sentence_of
from everstep.core.world import NodeView
from tests.support.builders import ScriptedJob, fact, running, sighting


def serviced(node: str = "n1") -> ScriptedJob:
    """A job that left a node for its maintenance and runs elsewhere."""
    job = running()
    job.see(fact("maintenance.notice", node=node))
    job.succeeds()
    return job


def test_a_node_is_avoided_for_its_maintenance_with_the_reason_and_since_when() -> None:
    job = running()
    job.see(fact("maintenance.notice", node="n1", message="n1 is about to be serviced"))
    (one,) = avoided_nodes(job.state)
    assert (one.node, one.in_maintenance) == ("n1", True)
    assert one.why == "maintenance: n1 is about to be serviced"
    assert one.since > 0
    assert until(one, "demo") == "its cordon or taint is removed"
    job.succeeds()
    assert [each.why for each in job.state.avoided] == [one.why]


def test_a_watch_is_told_the_nodes_in_maintenance_and_its_report_ends_that() -> None:
    job = serviced()
    assert isinstance(job.action, WatchAction)
    assert job.action.order.in_maintenance == ("n1",)
    job.report(maintenance_over=("n1", "n2"))
    assert job.state.avoided == ()


def test_a_rule_that_calls_an_exit_maintenance_shows_no_maintenance_of_the_node() -> None:
    """The cluster shows none: by its word the node would be taken again at once, without an end."""
    rule = Rule(match=Match(exit_code=(7,)), action="class", cls=FaultClass.MAINTENANCE)
    job = running(Policy(rules=(rule,)))
    job.see(fact("process.exit", node="n1", slot=1, rank=1, exit_code=7))
    assert [one.in_maintenance for one in avoided_nodes(job.state)] in ([], [False])
    assert job.decisions[-1].fault.cls is FaultClass.MAINTENANCE
    assert job.decisions[-1].remedy.in_maintenance == ()


def test_the_end_of_a_maintenance_ends_no_other_reason() -> None:
    job = running(Policy(precheck=True))
    job.see(sighting(FaultClass.PRECHECK, details={"hardware": False}))
    job.succeeds()
    job.report(maintenance_over=("n1",))
    (one,) = job.state.avoided
    assert (one.node, one.in_maintenance) == ("n1", False)
    assert until(one, "demo") == "`everstep release n1 --job demo`"


def test_a_maintenance_that_only_a_report_told_of_lasts_until_a_release() -> None:
    """No cordon and no taint shows its end."""
    job = running()
    job.see(replace(fact("maintenance.notice", node="n1"), id="report/a"))
    assert job.plan.remedy.in_maintenance == ()
    job.succeeds()
    assert [one.in_maintenance for one in job.state.avoided] == [False]


def test_a_node_that_failed_a_check_stays_avoided_after_its_maintenance() -> None:
    job = running(Policy(precheck=True))
    job.see(sighting(FaultClass.PRECHECK, details={"hardware": False}))
    job.succeeds()
    job.see(fact("maintenance.notice", node="n0"))
    assert job.plan.remedy.avoid == ("n1", "n0")
    assert job.plan.remedy.in_maintenance == ("n0",)


def test_a_node_that_the_quarantine_did_not_isolate_is_avoided_for_that() -> None:
    job = running()
    job.see(sighting(FaultClass.NODE))
    job.succeeds(isolated=(), avoid=("n1",))
    (one,) = job.state.avoided
    assert one.why.startswith("the quarantine has not isolated it: node on n1")
    assert not one.in_maintenance


def test_a_maintenance_is_over_where_the_node_is_in_service_or_gone() -> None:
    nodes = (
        NodeView(name="open"),
        NodeView(name="cordoned", maintenance="cordoned is cordoned"),
        NodeView(name="down", ready=False),
    )
    names = ("open", "cordoned", "down", "gone")
    assert maintenance_over(names, nodes) == ("open", "gone")


def test_a_release_lets_the_repeated_level_use_the_node() -> None:
    job = running(Policy(precheck=True))
    job.see(sighting(FaultClass.PRECHECK, details={"hardware": False}))
    job.command("release", node="n1")
    assert avoided_nodes(job.state) == ()
    job.interrupted()
    job.finds(started=False, generation=job.state.generation)
    assert job.plan.remedy.avoid == ()


def test_an_outcome_that_comes_first_does_not_undo_a_release() -> None:
    job = running(Policy(precheck=True))
    job.see(sighting(FaultClass.PRECHECK, details={"hardware": False}))
    before = job.plan
    job.command("release", node="n1")
    job.succeeds(avoid=before.remedy.avoid)
    assert job.state.avoided == ()


def test_a_wait_names_the_nodes_that_it_does_not_use() -> None:
    job = running()
    job.see(fact("maintenance.notice", node="n1"))
    plan = job.plan
    room = WaitKind.ROOM.of("1 more pod")
    assert sentence_of(with_avoided(room, plan, ("n1",))) == (
        "room for 1 more pod; the job avoids n1 until the maintenance there is over"
    )
    many = ("n1", *(f"m{number}" for number in range(5)))
    assert sentence_of(with_avoided(room, plan, many)).endswith(
        "the job avoids m0, m1, m2 and 2 more until `everstep release NODE --job demo`"
    )
    assert with_avoided(room, plan, ()) == room


def test_only_so_many_nodes_are_kept() -> None:
    job = running()
    job.see(fact("maintenance.notice", node="n1"))
    state = replace(job.state, avoided=())
    names = [f"m{number}" for number in range(AVOIDED_MOST + 1)]
    avoided = with_nodes(state, job.plan, names)
    assert [one.node for one in avoided] == names[1:]
