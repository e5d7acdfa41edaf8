"""What a plan runs in every slot, and where that saves: the same for its fence and for its start."""

from __future__ import annotations

from everstep.core.deciding.decision import Plan
from everstep.core.deciding.naming import ends_at_hang
from everstep.core.deciding.playbook import log_rules
from everstep.core.seeing.hang import FLOOR_S
from everstep.core.spec import STILL_S_LEAST, PhaseSpec
from everstep.protocol.wire import RunOrder


def run_folders(plan: Plan) -> RunOrder:
    """Where the run begins and saves: all that its fence needs, and all that the step before it reads."""
    phase = plan.phase
    return RunOrder(
        workdir=phase.workdir,
        model_dir=phase.model_dir,
        checkpoints_path=phase.checkpoints_path,
        checkpoints_format=phase.checkpoints_format,
        checkpoints_pattern=phase.checkpoints_pattern,
        checkpoints_of=plan.checkpoints_of,
    )


def run_order(plan: Plan) -> RunOrder:
    """What the plan starts in every slot."""
    phase = plan.phase
    return run_folders(plan)._replace(
        command=[*phase.command],
        log_pattern=phase.log_pattern,
        loss_pattern=phase.loss_pattern,
        log_rules=log_rules(phase.policy.rules),
        prewarm=[*(phase.prewarm or ())],
        prewarm_auto=phase.prewarm is None,
        still_s=_judged_s(phase),
    )


def _judged_s(phase: PhaseSpec) -> float | None:
    """How long I/O and device use may stand still; agents choose by it how often they sample both.

    A hang that ends the job is judged by both too: its run gets a limit even if its document sets none.
    """
    if phase.limits.still_s is not None or not ends_at_hang(phase.policy):
        return phase.limits.still_s
    return max(phase.limits.hang_s or FLOOR_S, STILL_S_LEAST)
