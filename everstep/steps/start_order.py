"""What a cluster is told to start, from a plan and what its steps brought."""

from __future__ import annotations

from everstep.core.deciding.playbook import log_rules
from everstep.core.recovering.placement import node_ranks
from everstep.core.world import (
    SlotStart,
    StartOrder,
)
from everstep.steps.looking import Eyes

STOP_CONFIRM_S = 5.0
"""A slot of a sound node that does not confirm its end within this time gets a new pod."""
HEAL_S_MAX = 600.0
STORAGE_POLL_S = 5.0
WORTH_SAYING_S = 3.0
"""A fence or a start that took so long already says what it waits for."""


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
            slot: SlotStart(
                node_rank=rank,
                schedule_count=counts[slot].schedule,
                process_start_count=counts[slot].process_start,
            )
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
    )
