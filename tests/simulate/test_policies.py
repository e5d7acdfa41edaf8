"""The numbers follow from the real decisions: another policy has another result, in the right direction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.simulate.accounts import Account
from everstep.simulate.experiment import Experiment, scene
from everstep.simulate.fault_classes import PROFILES, Effect, FaultClassRow, Lasting
from everstep.simulate.jobs import JobNumbers
from everstep.simulate.mishaps import Mishap
from everstep.simulate.policies import NAMES, PolicyUnderTest, policy_named
from everstep.simulate.runs import played
from everstep.simulate.world import COLLECTIVE_S
from tests.simulate.scenes import CURED, experiment, profile

BROKEN = FaultClassRow(
    name="node_fatal_hw",
    effect=Effect.DEVICE,
    share=1.0,
    detect_s=10.0,
    cured=0.0,
    repair=Lasting(median_s=36_000.0),
    source="made up",
)


def one(made: Experiment, name: str = "document", seed: int = 1) -> Account:
    return played(scene(made, seed), policy_named(name))


def crashes(**recovery: Any) -> Experiment:
    spec = {"recovery": recovery} if recovery else {}
    return experiment(8, spec=spec, days=15, profile=profile(CURED, rate=1_200.0))


def test_a_ladder_of_the_document_changes_levels_and_lost_time() -> None:
    """New pods cost `pod_s` more than a restart in place, each time, and nothing else."""
    usual, recreated = one(crashes()), one(crashes(ladders={"crash": ["job"]}))
    assert set(recreated.levels) == {"job"}
    assert usual.levels["in_place"] > 0.9 * usual.restarts
    assert recreated.restarts == pytest.approx(usual.restarts, abs=3)
    more_s = recreated.lost_s["restart"] - usual.lost_s["restart"]
    assert more_s == pytest.approx(recreated.restarts * JobNumbers().pod_s, rel=0.1)
    assert recreated.ettr < usual.ettr


def test_a_limit_of_the_document_ends_the_job_as_often_as_it_says() -> None:
    limited = one(crashes(budgets={"few": {"limit": 4, "levels": ["in_place", "pod", "job"]}}))
    assert limited.ended_wrongly == pytest.approx(limited.restarts / 4, abs=2)
    assert limited.lost_s["ended"] > 0
    assert limited.ettr < one(crashes()).ettr


def test_a_rule_of_the_document_that_fails_a_crash_ends_the_job_at_each() -> None:
    rule = {"match": {"exception": "RuntimeError"}, "action": "fail", "why": "never again"}
    made = one(crashes(rules=[rule]))
    assert made.restarts == 0
    assert made.ended_wrongly > 20


def broken(nodes: int = 8, **fields: Any) -> Experiment:
    return experiment(nodes, **{"days": 20, "profile": profile(BROKEN, rate=60.0), **fields})


def test_spares_are_waited_for_where_there_are_none() -> None:
    without, with_two = one(broken()), one(broken(spares=2))
    assert without.lost_s["place"] > 100 * max(with_two.lost_s["place"], 1.0)
    assert with_two.ettr > 0.98


def test_isolation_for_ever_uses_up_the_spares() -> None:
    usual, for_ever = (one(broken(spares=2), name) for name in ("native", "isolate-for-ever"))
    assert usual.healthy_isolated_h == 0
    assert for_ever.healthy_isolated_h > 500
    assert for_ever.ettr < usual.ettr - 0.1


def test_a_probation_ends_after_a_day_whether_the_node_was_repaired_or_not() -> None:
    usual, probation = (one(broken(spares=2), name) for name in ("native", "probation"))
    nodes = probation.levels["pod"] + probation.levels.get("job", 0)
    day_less_repair_h = 24 - BROKEN.repair.median_s / 3_600
    assert probation.healthy_isolated_h == pytest.approx(nodes * day_less_repair_h, rel=0.15)
    assert usual.healthy_isolated_h == 0


HIDDEN = replace(BROKEN, hidden=1.0)


def test_new_pods_leave_a_node_that_ended_runs_again_though_no_monitor_names_it() -> None:
    made = broken(spares=2, days=60, profile=profile(HIDDEN, rate=30.0))
    usual, goes_back = (one(made, name) for name in ("native", "no-last-choice"))
    assert usual.ended_wrongly < goes_back.ended_wrongly / 2
    assert usual.lost_s["ended"] < goes_back.lost_s["ended"] / 2
    assert usual.ettr > goes_back.ettr


def test_a_restart_in_place_on_broken_hardware_ends_the_job_without_need() -> None:
    usual, in_place = (one(broken(spares=2), name) for name in ("native", "in-place"))
    assert usual.ended_wrongly == 0
    assert in_place.ended_wrongly > 0
    assert in_place.ettr < usual.ettr


HANG = replace(CURED, name="hang", effect=Effect.HANG)


def test_where_no_rule_sees_a_hang_it_ends_by_the_time_out_of_a_collective_operation() -> None:
    """A MindCluster document only notes a hang."""
    made = experiment(8, days=5, profile=profile(HANG, rate=300.0))
    usual, only_notes = one(made), one(made, "mindcluster")
    assert 0 < usual.lost_s["detect"] < 10 * 60 * usual.restarts
    hangs = only_notes.restarts + only_notes.ended_wrongly
    assert hangs > 5
    assert only_notes.lost_s["detect"] == pytest.approx(hangs * COLLECTIVE_S, rel=0.05)


def test_the_oracle_detects_at_once_and_ends_nothing_without_need() -> None:
    made = broken(spares=2)
    oracle, usual = one(made, "oracle"), one(made)
    assert oracle.lost_s["detect"] < 0.1 * usual.lost_s["detect"]
    assert oracle.ettr > usual.ettr
    assert oracle.ended_wrongly == 0


@pytest.mark.parametrize("name", NAMES)
def test_each_policy_says_what_it_is_and_where_that_is_from(name: str) -> None:
    policy: PolicyUnderTest = policy_named(name)
    assert policy.about
    assert policy.source
    assert one(experiment(2, days=1.0), name).total_s > 80_000


def test_all_time_is_accounted_for() -> None:
    made = experiment(16, spares=2, days=6, profile=PROFILES["bad"])
    for name in ("document", "in-place", "oracle"):
        account = one(made, name, seed=5)
        assert account.useful_s + sum(account.lost_s.values()) == pytest.approx(
            account.total_s, rel=1e-4
        )


def test_the_wait_for_a_silent_slot_beside_a_crash_counts_as_deciding() -> None:
    """It may have ended the training. Here it answers again before its minute is over."""
    made = replace(scene(experiment(4, days=0.1), 1), mishaps=(SILENCE, CRASH))
    account = played(made, policy_named("document"))
    assert account.levels == {"in_place": 1}
    assert account.lost_s["detect"] == pytest.approx(0.0, abs=0.1)
    assert account.lost_s["decide"] == pytest.approx(59.0, abs=0.5)


SILENCE = Mishap(
    at_s=2_000.0, name="false_silence", effect=Effect.FALSE_SILENCE, nodes=("n1",), sound_s=60.0
)
CRASH = Mishap(at_s=2_001.0, name="net_flap", effect=Effect.LINK, nodes=("n2",), is_cured=True)


def test_several_jobs_share_the_spares_and_the_queue() -> None:
    small = experiment(2).jobs[0]
    both = broken(spares=1)
    two = Experiment(
        jobs=(both.jobs[0], type(small)(name="small", phases=small.phases)),
        spares=1,
        days=20,
        profile=both.profile,
    )
    made = one(two)
    assert two.cluster_nodes == 11
    assert made.total_s > 1.9 * 20 * 86_400
    assert made.restarts > 0
