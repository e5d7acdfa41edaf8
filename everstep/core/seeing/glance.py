"""The heartbeat of a watch: a glance at the job, which `status` shows over the job's last report.

For people, but for two values: a new try of the watch begins with step and checkpoint of the last glance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from everstep.core.seeing import hang
from everstep.core.seeing.hang import Pods
from everstep.core.seeing.pace import slow_ranks
from everstep.core.seeing.watch_report import WatchOrder
from everstep.core.seeing.watching import Watch, newest_step, of_active_slots, of_this_generation
from everstep.core.world import (
    Checkpoint,
    DeviceUse,
    Observation,
    PodView,
    newest_whole_step,
)

SAVED = "saved"
DEVICES_OF_MOST = 16
"""Slots whose devices are shown: a heartbeat has no room for those of a thousand."""


def glance(order: WatchOrder, watch: Watch, observation: Observation) -> dict[str, object]:
    """Values for the heartbeat of a watch, which `status` shows over the job's last report."""
    observation = of_active_slots(order, observation)
    now_running = of_this_generation(order, observation.pods)
    stepped_at = [
        pod.run.step_at for pod in now_running.representatives if pod.run.step_at is not None
    ]
    helpers = [pod.prewarm_bytes for pod in observation.pods if pod.prewarm_bytes is not None]
    return {
        "now": observation.now,
        "generation": order.generation,
        "step": newest_step(watch, now_running),
        "step_at": max(stepped_at, default=None),
        "checkpoint_step": watch.saved.step if watch.saved else None,
        "checkpoint_path": watch.saved.path if watch.saved else None,
        SAVED: None if watch.saved is None else asdict(watch.saved),
        "prewarm_bytes": sum(helpers) if helpers else None,
        "prewarm_modules": sorted({name for p in observation.pods for name in p.prewarm_modules}),
        "snapshot_step": newest_whole_step(observation.pods),
        "slow_ranks": len(slow_ranks(now_running.all)),
        "device_use": _device_use(observation),
        "unreachable": sum(pod.silent_since is not None for pod in observation.pods),
        **_stillness(order, watch, now_running, observation.now),
    }


def _device_use(observation: Observation) -> list[dict[str, object]] | None:
    """What devices show of their use and memory; of a large job where they are used least. None: nothing."""
    pods = [pod for pod in observation.pods if pod.device_use and pod.silent_since is None]
    least = sorted(pods, key=lambda pod: (_least_percent(pod), pod.slot))[:DEVICES_OF_MOST]
    rows = [
        {
            "slot": pod.slot,
            "node": pod.node,
            "devices": [_device_row(use) for use in pod.device_use],
        }
        for pod in sorted(least, key=lambda pod: pod.slot)
    ]
    return rows or None


def _device_row(use: DeviceUse) -> dict[str, object]:
    values = use._asdict()
    return {"index": values.pop("device"), **values}


def _least_percent(pod: PodView) -> float:
    return min((d.percent for d in pod.device_use if d.percent is not None), default=0.0)


def saved_in(glance: object) -> Checkpoint | None:
    """The newest checkpoint in the last heartbeat of an earlier try of this watch.

    The agents that reported it may be gone since.
    """
    saved = glance.get(SAVED) if isinstance(glance, Mapping) else None
    return None if saved is None else Checkpoint(**saved)


def step_in(glance: object, *, generation: int) -> int | None:
    """The newest step in that heartbeat, if it is one of this generation."""
    if not isinstance(glance, Mapping) or glance.get("generation") != generation:
        return None
    step = glance.get("step")
    return step if isinstance(step, int) else None


def _stillness(order: WatchOrder, watch: Watch, pods: Pods, now: float) -> dict[str, float]:
    """How long the stillest slot has not moved, and how long it may; nothing where other rules judge."""
    if order.is_paused or order.limits.still_s is not None:
        return {}
    suspects = hang.suspects(
        pods.all,
        order.limits,
        watch.learned,
        now=now,
        time_scale=order.time_scale,
        ends_job=order.ends_at_hang,
    )
    if not suspects:
        return {}
    still_s = max(0.0, now - suspects[0].still_since)
    return {"still_s": round(still_s, 3), "still_limit_s": suspects[0].limit_s}
