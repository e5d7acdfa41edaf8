"""What may happen to a job, and what it may do next: the words between the lifecycle and its driver."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.deciding.decision import Decision, Outcome, Plan
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.world import JobRef

# -- What may happen ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The workflow starts, or goes on in a new run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEnded:
    """A plan came to its outcome; `outcome` None: it was taken away before it could tell."""

    outcome: Outcome | None
    interrupted: bool = False  # by a command of ours
    refused: str = ""  # why the cluster does not take this job at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The watcher, or one look at the world, reported."""

    report: WatchReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The question was answered."""

    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Nothing of the job is left on the cluster."""


Event = Begun | PlanEnded | Watched | Decided | Cleared

# -- What may be done next ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Carry out this plan; as a Recovery of its own if it has a number."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Keep watching."""

    order: WatchOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Look at the world once."""

    order: WatchOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Have this decided."""

    given: DecisionInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    """Remove everything of the job from the cluster."""

    job: JobRef
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPhase:
    """Go on as a new run with the next phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Close the workflow with this status."""

    status: str
    reason: str


Action = RunPlan | Keep | Look | Ask | Clear | NextPhase | End
