"""Simulated devices that repair themselves. Part of a transaction."""

from __future__ import annotations

from everstep.backends.local.database import nodes
from everstep.backends.local.database.placing import Moment
from everstep.backends.local.faults import mend
from everstep.core.world import HealState


def heal(moment: Moment, node: str, device: int) -> tuple[HealState, float | None]:
    """Begin to heal, or how far it is; and when there will be more to say."""
    faults = [
        fact for (index, _), fact in nodes.codes_on(moment.db, node).items() if index == device
    ]
    if not faults:
        return HealState(state="healed"), None
    service = nodes.named(moment.db, node).service
    if service == "down":
        return HealState(state="failed", message=f"{node} is down"), None
    if service == "cut_off":
        return HealState(state="healing", message=f"{node} does not answer"), None
    ends_at = _ends_at(moment, node, device)
    if moment.now < ends_at:
        return HealState(state="healing"), ends_at
    stubborn = [fact.code for fact in faults if fact.details.get("heals") is False]
    if stubborn:
        return HealState(state="failed", message=f"{stubborn[0]} does not heal"), None
    mend(moment, node, device)
    return HealState(state="healed"), None


def _ends_at(moment: Moment, node: str, device: int) -> float:
    where = (node, device)
    found = moment.db.execute(
        "SELECT ends_at FROM heals WHERE node = ? AND device = ?", where
    ).fetchone()
    if found is not None:
        return float(found["ends_at"])
    told = moment.db.execute(
        "SELECT seconds FROM heal_times WHERE node = ? AND device = ?", where
    ).fetchone()
    ends_at = moment.now + (moment.settings.heal_s if told is None else told["seconds"])
    moment.db.execute("INSERT INTO heals VALUES (?, ?, ?)", (*where, ends_at))
    return ends_at
