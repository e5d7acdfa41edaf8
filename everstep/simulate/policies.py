"""The policies that meet the same mishaps: the document's own, the dialects', shapes of others, an oracle.

A shape is what a product's restart amounts to, with that product's defaults, in the terms of our rules: its
ladder, its limit of restarts, its isolations. It is not the product. All see the same facts at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from everstep.core.deciding.decide import decide
from everstep.core.deciding.decision import Decision
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.levels import FaultClass, Level
from everstep.core.spec import (
    Budget,
    Exclusion,
    JobSpec,
    LadderRow,
    Match,
    PhaseSpec,
    Policy,
    Rule,
)
from everstep.dialects.registry import compile_document
from everstep.simulate.fault_classes import HOUR_S
from everstep.simulate.world import USERS_FAULT

SAME = frozenset({FaultClass.UNREACHABLE, FaultClass.SUBHEALTH, FaultClass.SLOW})
"""No product restarts a job for these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUnderTest:
    """A policy of the comparison."""

    name: str
    about: str
    source: str
    change: Callable[[PhaseSpec], PhaseSpec] = lambda phase: phase
    decide: Callable[[DecisionInput], Decision] = decide
    has_true_facts: bool = False  # its facts are true, complete and at once
    releases: bool = True  # operators release nodes that were isolated
    probation_s: float | None = None  # isolations end by themselves

    def applied(self, spec: JobSpec) -> JobSpec:
        return replace(spec, phases=tuple(self.change(phase) for phase in spec.phases))


def _with_policy(policy: Policy) -> Callable[[PhaseSpec], PhaseSpec]:
    return lambda phase: replace(phase, policy=policy)


def _shape(levels: tuple[Level, ...], *, limit: int | None) -> Policy:
    """These levels for every fault that ends a run, as often as the limit says; no other rule of ours."""
    rows = (LadderRow((Level.NOTE,), tuple(SAME)), LadderRow(levels))
    left_out = tuple(level for level in Level if level not in (*levels, Level.NOTE, Level.FAIL))
    return Policy(
        ladders=rows,
        exclusions=(Exclusion(left_out, "this shape has no such level"),),
        budgets=() if limit is None else (Budget(name="restarts", limit=limit),),
        no_progress_restarts=None,
        start_failures=None,
        rollbacks=None,
        suspects_checkpoints=False,
        escalates=False,
        spaced=False,
        repeats=(),
    )


def _decide_without_isolation(inputs: DecisionInput) -> Decision:
    decision = decide(inputs)
    return replace(decision, remedy=replace(decision.remedy, isolate=()))


def _decide_without_last_choice(inputs: DecisionInput) -> Decision:
    decision = decide(inputs)
    return replace(decision, remedy=replace(decision.remedy, last_choice=()))


def _with_oracle_rules(phase: PhaseSpec) -> PhaseSpec:
    rule = Rule(match=Match(exception=USERS_FAULT), action="fail", why="the script is wrong")
    policy = replace(Policy(), rules=(rule,), suspects_checkpoints=False)
    return replace(phase, policy=policy, limits=replace(phase.limits, requeue_s=None))


def _hang_after_30_min(phase: PhaseSpec) -> PhaseSpec:
    return replace(phase, policy=Policy(), limits=replace(phase.limits, hang_s=1_800.0))


def _of_dialect(document: Mapping[str, object]) -> Callable[[PhaseSpec], PhaseSpec]:
    """The policy and the limits that this document of another dialect compiles to."""
    compiled = compile_document(dict(document), needs_command=False).phases[0]
    return lambda phase: replace(
        phase, policy=compiled.policy, limits=replace(compiled.limits, run_s=None)
    )


MODELARTS = {
    "kind": "job",
    "metadata": {
        "name": "job",
        "annotations": {
            "fault-tolerance/job-retry-num": "3",
            "fault-tolerance/job-unconditional-retry": "true",
            "fault-tolerance/hang-retry": "true",
        },
    },
    "algorithm": {"command": "train"},
    "spec": {"resource": {"node_count": 2}},
}
CEREBRAS = {
    "trainer": {
        "init": {
            "model_dir": "out",
            "backend": {"backend_type": "CSX", "cluster_config": {"num_csx": 2}},
            "loop": {"max_steps": 1000},
            "checkpoint": {"steps": 20},
            "autorestart": {"max_num_restarts": 3},
        },
        "fit": {},
    },
    "everstep": {"command": "train"},
}

MINDCLUSTER_POD = {
    "replicas": 1,
    "restartPolicy": "Never",
    "template": {
        "spec": {
            "containers": [
                {
                    "name": "ascend",
                    "command": ["train"],
                    "resources": {"limits": {"huawei.com/Ascend910": 1}},
                }
            ]
        }
    },
}
MINDCLUSTER = {
    "apiVersion": "mindxdl.gitee.com/v1",
    "kind": "AscendJob",
    "metadata": {
        "name": "job",
        "labels": {
            "framework": "pytorch",
            "fault-scheduling": "force",
            "fault-retry-times": "3",
            "pod-rescheduling": "on",
        },
    },
    "spec": {"replicaSpecs": {"Master": MINDCLUSTER_POD, "Worker": MINDCLUSTER_POD}},
}

DOCUMENT = PolicyUnderTest(name="document", about="the document as it is", source="the document")

POLICIES: Mapping[str, PolicyUnderTest] = {
    policy.name: policy
    for policy in (
        DOCUMENT,
        PolicyUnderTest(
            name="native",
            about="what a document has that says nothing",
            source="everstep.core.spec.Policy",
            change=_with_policy(Policy()),
        ),
        PolicyUnderTest(
            name="in-place",
            about="start again where it ran, at most 3 times, then a person",
            source="torchrun --max-restarts and NVRx --max-restarts: 0 unless set, 3 in their examples",
            change=_with_policy(_shape((Level.IN_PLACE,), limit=3)),
            decide=_decide_without_isolation,
        ),
        PolicyUnderTest(
            name="recreate-all",
            about="recreate all pods, at most 3 times, then a person",
            source="JobSet failurePolicy.maxRestarts: 0 unless set, 3 in examples/simple/max-restarts.yaml",
            change=_with_policy(_shape((Level.JOB,), limit=3)),
            decide=_decide_without_isolation,
        ),
        PolicyUnderTest(
            name="no-isolation",
            about="our levels, no node is ever isolated",
            source="everstep.core.spec.Policy without its isolations",
            change=_with_policy(Policy()),
            decide=_decide_without_isolation,
        ),
        PolicyUnderTest(
            name="no-last-choice",
            about="our levels, new pods go back to the node where a run ended again",
            source="everstep.core.spec.Policy, without Remedy.last_choice",
            change=_with_policy(Policy()),
            decide=_decide_without_last_choice,
        ),
        PolicyUnderTest(
            name="isolate-for-ever",
            about="our levels, no isolation ever ends",
            source="everstep.core.spec.Policy, and no operator releases a node",
            change=_with_policy(Policy()),
            releases=False,
        ),
        PolicyUnderTest(
            name="probation",
            about="our levels, an isolation ends after a day, whatever is true",
            source="everstep.core.spec.Policy; Meta lets nodes return on probation (HPCA'25)",
            change=_with_policy(Policy()),
            releases=False,
            probation_s=24 * HOUR_S,
        ),
        PolicyUnderTest(
            name="hang-30m",
            about="our levels, a hang counts after 30 minutes",
            source="the default time-out of a collective operation in MindCluster; torch: 10 minutes (NCCL)",
            change=_hang_after_30_min,
        ),
        PolicyUnderTest(
            name="oracle",
            about="our levels, with the truth at once: which node, whose fault, what heals",
            source="everstep.core.spec.Policy, and the truth of the simulation as facts",
            change=_with_oracle_rules,
            has_true_facts=True,
        ),
    )
}
DIALECTS: Mapping[str, Mapping[str, object]] = {
    "modelarts": MODELARTS,
    "mindcluster": MINDCLUSTER,
    "cerebras": CEREBRAS,
}


def policy_named(name: str) -> PolicyUnderTest:
    """Raises KeyError for a name that no policy has."""
    if name in DIALECTS:
        return PolicyUnderTest(
            name=name,
            about=f"the defaults of {name} documents that ask for restarts",
            source=f"everstep.dialects.{name}",
            change=_of_dialect(DIALECTS[name]),
        )
    return POLICIES[name]


NAMES = (*POLICIES, *DIALECTS)
