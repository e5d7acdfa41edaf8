"""What a change may not move while a job runs: its cluster, its namespace, the folders of its phases.

The compiled jobs are compared, as folders may be named by the dialect's own keys or begin at `workdir`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everstep.core.spec import JobSpec
from everstep.documents.merge import FIXED, FIXED_OF_THE_JOB
from everstep.documents.problems import Problem, path

WORKDIR = "workdir"
BEGINS_THERE = "cannot change while the job runs: {folder} begins there, with its fence"


def moves(before: JobSpec, after: JobSpec, change: Mapping[str, Any]) -> Iterator[Problem]:
    """A problem for each thing that this change of the document would move. Phases have kept their names."""
    if before.cluster != after.cluster:
        yield "patch.cluster", FIXED_OF_THE_JOB["cluster",]
    if before.namespace != after.namespace:
        yield "patch.namespace", FIXED_OF_THE_JOB["namespace",]
    for old, new in zip(before.phases, after.phases, strict=True):
        if old.model_dir != new.model_dir:
            yield _place(change, new.name, ("model_dir",))
        if old.checkpoints_path != new.checkpoints_path:
            yield _place(change, new.name, ("checkpoints", "path"))


def _place(change: Mapping[str, Any], phase: str, field: tuple[str, ...]) -> Problem:
    """The key of the change that moves this folder of this phase, and the sentence about it."""
    phases = enumerate(change.get("phases") or ())
    of_phase = ((path("patch", "phases", i), keys) for i, keys in phases if keys["name"] == phase)
    for root, keys in (*of_phase, ("patch", change)):
        if _is_changed(keys, field):
            return path(root, field[0]), FIXED[field]
        if WORKDIR in keys:
            return path(root, WORKDIR), BEGINS_THERE.format(folder=path(*field))
    return "patch", FIXED[field]


def _is_changed(keys: Mapping[str, Any], field: tuple[str, ...]) -> bool:
    """Whether the field is among the keys, or what it is a part of is taken away."""
    name, *inner = field
    if not inner or not isinstance(keys.get(name), Mapping):
        return name in keys
    return _is_changed(keys[name], tuple(inner))
