"""What the program of a phase reads: its configuration as it was written, but for what a restart changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.core.spec import CHECKS_NUMBERS
from everstep.core.world import StartOrder

PARAMS = "params.yaml"
COMPILES = "prefetched_compiles"
"""Folder of compiles for fewer systems (our nodes); a restart directory has their logs in one of its name."""

MICRO_BATCH = "csx.performance.micro_batch_size"


def started(config: Mapping[str, Any], order: StartOrder) -> dict[str, Any]:
    """The configuration with which this start runs."""
    checked = order.env.get(CHECKS_NUMBERS)
    return params(
        config,
        systems=len(order.slots),
        resume=None if order.resume is None else order.resume.path,
        checked_steps=None if checked is None else int(checked),
    )


def params(
    config: Mapping[str, Any], *, systems: int, resume: str | None, checked_steps: int | None = None
) -> dict[str, Any]:
    """The configuration for a start on so many systems, from this checkpoint.

    Restarts are ours alone, and need something to begin from: a first checkpoint, saved once. On fewer
    systems than it wants the program finds its own micro-batches.
    `checked_steps`: so long it looks for what made numbers go wrong.
    """
    trainer = config["trainer"]
    init = {key: value for key, value in trainer["init"].items() if key != "autorestart"}
    if _restarts(trainer) and trainer.get("fit") is not None:
        first = {"save_initial_checkpoint": resume is None}
        init["checkpoint"] = {**(init.get("checkpoint") or {}), **first}
    if checked_steps is not None:
        check = {"NaNChecker": {"num_steps": checked_steps}}
        init["callbacks"] = [*(init.get("callbacks") or ()), check]
    changed = {**trainer, "init": init}
    wanted_systems = _num_csx(init)
    if systems != wanted_systems:
        backend = init.get("backend") or {}
        cluster = {**(backend.get("cluster_config") or {}), "num_csx": systems}
        changed["init"] = {**init, "backend": {**backend, "cluster_config": cluster}}
    if systems < wanted_systems:
        changed = _with_auto_micro_batches(changed)
    if resume is not None and changed.get("fit") is not None:
        changed["fit"] = {**changed["fit"], "ckpt_path": resume}
    return {**config, "trainer": changed}


def _restarts(trainer: Mapping[str, Any]) -> bool:
    return ((trainer["init"].get("autorestart") or {}).get("max_num_restarts") or 0) > 0


def _num_csx(init: Mapping[str, Any]) -> int:
    cluster = (init.get("backend") or {}).get("cluster_config") or {}
    return int(cluster.get("num_csx") or 1)


def _with_auto_micro_batches(value: Any) -> Any:
    match value:
        case dict():
            changed = {key: _with_auto_micro_batches(inner) for key, inner in value.items()}
            return {**changed, **({MICRO_BATCH: "auto"} if MICRO_BATCH in changed else {})}
        case list():
            return [_with_auto_micro_batches(inner) for inner in value]
        case _:
            return value
