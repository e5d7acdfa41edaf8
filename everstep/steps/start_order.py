"""What a cluster is told to start, from a plan and what its steps brought."""

from __future__ import annotations

from everstep.core.deciding.playbook import log_rules
from everstep.core.recovering.placement import node_ranks
from everstep.core.world import (
    SlotStart,
    StartOrder,
)
from everstep.steps.looking import Eyes


def start_order(eyes: Eyes) -> StartOrder:
    order, phase = eyes.order, eyes.order.plan.phase
    ranks = node_ranks(order.living)
    counts = order.plan.slots
    return StartOrder(
        job=order.plan.job,
        phase=phase.name,
        generation=eyes.generation,
        command=phase.command,
        slots={
            slot: SlotStart(rank, counts[slot].schedule, counts[slot].process_start)
            for slot, rank in ranks.items()
        },
        env=phase.env,
        env_from=phase.env_from,
        workdir=phase.workdir,
        processes_per_node=phase.processes_per_node,
        resume=order.resume,
        model_dir=phase.model_dir,
        checkpoints_path=phase.checkpoints_path,
        checkpoints_format=phase.checkpoints_format,
        log_pattern=phase.log_pattern,
        prewarm=phase.prewarm,
        accelerator=phase.accelerator,
        still_s=phase.limits.still_s,
        log_rules=log_rules(phase.policy.rules),
        kept=order.plan.keep,
        config=phase.config,
        restarts=order.plan.restarts,
    )
