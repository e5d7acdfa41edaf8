"""Files that a command reads, made anew for each start: its dialect knows what a restart changes in them."""

from __future__ import annotations

from everstep.core.recovering.plans import CHECKS_NUMBERS
from everstep.core.world import StartOrder
from everstep.dialects.cerebras.params import params
from everstep.documents.text import written


def command_files(order: StartOrder) -> dict[str, str]:
    """Their texts by their names; in the command `{params}` stands for the path of `params.yaml`."""
    if order.config is None:
        return {}
    checked = order.env.get(CHECKS_NUMBERS)
    told = params(
        order.config,
        systems=len(order.slots),
        resume=None if order.resume is None else order.resume.path,
        checked_steps=None if checked is None else int(checked),
    )
    return {"params.yaml": written(told)}
