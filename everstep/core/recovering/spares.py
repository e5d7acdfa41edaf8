"""Which spare pods a job wants now: such as stand by to replace the first pod that is lost. Pure."""

from __future__ import annotations

from everstep.core.seeing.watch_report import SparesOrder
from everstep.core.state import JobState, Mode
from everstep.core.world import PlaceOrder


def spares_order(state: JobState) -> SparesOrder | None:
    """The order for the job's spares while it is watched. None: its document has none.

    None stands by for a job that is paused, nor for one on fewer nodes than it wants: it would hold the place
    that the job itself lacks.
    """
    phase = state.phase
    if not phase.spares:
        return None
    is_whole = state.mode is Mode.WATCHING and len(state.active) == phase.nodes
    return SparesOrder(
        places=PlaceOrder(
            job=state.job,
            phase=phase.name,
            generation=state.generation,
            slots=state.active,
            recreate=phase.spare_slots if is_whole else (),
            avoid=state.avoid,
            avoid_devices=state.avoid_devices,
            last_choice=state.last_choice,
            accelerator=phase.accelerator,
            accelerators_per_node=phase.accelerators_per_node,
            priority=state.spec.priority,
            image=phase.image,
            pod_template=phase.pod_template,
            folders=phase.folders,
        ),
        prechecks=phase.policy.precheck,
    )
