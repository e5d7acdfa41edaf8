"""What the heartbeat of a watch shows of a job between two reports: how far it is, how long it is still."""

from __future__ import annotations

from everstep.core.seeing import hang
from everstep.core.seeing.watch_report import WatchOrder
from everstep.core.seeing.watching import Watch, of_the_living, of_this_generation
from everstep.core.world import Observation


def glance(order: WatchOrder, watch: Watch, seen: Observation) -> dict[str, object]:
    """Plain values: `status` lays them over what the job itself reported last."""
    steps = [pod.step for pod in seen.pods if pod.step is not None]
    helpers = [pod.prewarm_bytes for pod in seen.pods if pod.prewarm_bytes is not None]
    return {
        "now": seen.now,
        "step": min(steps, default=None),
        "step_at": max((pod.step_at for pod in seen.pods if pod.step_at is not None), default=None),
        "checkpoint_step": seen.checkpoint.step if seen.checkpoint else None,
        "checkpoint_path": seen.checkpoint.path if seen.checkpoint else None,
        "prewarm_bytes": sum(helpers) if helpers else None,
        "unreachable": sum(pod.silent_since is not None for pod in seen.pods),
        **_stillness(order, watch, seen),
    }


def _stillness(order: WatchOrder, watch: Watch, seen: Observation) -> dict[str, float]:
    """How long the stillest slot has not moved, and how long it may; nothing where other rules judge."""
    if order.is_paused or order.limits.still_s is not None:
        return {}
    living = of_the_living(order, seen)
    found = hang.suspects(
        of_this_generation(order, living.pods).all,
        order.limits,
        watch.learned,
        now=seen.now,
        time_scale=order.time_scale,
        ends_job=order.ends_at_hang,
    )
    if not found:
        return {}
    still_s = max(0.0, seen.now - found[0].still_since)
    return {"still_s": round(still_s, 3), "still_limit_s": found[0].limit_s}
