"""The ModelArts document -> JobSpec: their words become a native `spec`, the overlay is laid over it.

What their annotations switch on is a policy (`policy`); everything else is said in
native words and compiled like a native document. What has no effect is a row of a table of notes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from everstep.core.spec import JobSpec, Note, Origin, PhaseSpec, Policy
from everstep.dialects import overlays
from everstep.dialects.modelarts import shapes as theirs
from everstep.dialects.modelarts.notes import notes_of
from everstep.dialects.modelarts.outputs import of_checkpoints
from everstep.dialects.modelarts.policy import modelarts
from everstep.dialects.native import shapes
from everstep.dialects.native.document import (
    NO_CHECKPOINTS,
    ON_THIS_MACHINE,
    SPELLED_OUT,
    TOO_LARGE,
    compile_spec,
)
from everstep.documents.merge import merged
from everstep.documents.problems import judged, refusal

OUTPUTS = "algorithm.outputs"
MINUTE_S = 60.0
HOUR_S = 3600.0
HANG_MINUTES_DEFAULT = "30"


def compile_modelarts(document: dict[str, Any]) -> JobSpec:
    """The job this document asks for. Raises `InvalidSpec` with everything that is wrong."""
    says = _checked(document)
    root, overlay = _overlay(says)
    spec = merged(_native(says, str(overlay.get("cluster", "local"))), overlay)
    if overlay.get("accelerator") == "none":  # one word makes it a job without devices
        spec["accelerators_per_node"] = overlay.get("accelerators_per_node", 0)
    shape = judged(shapes.Spec, spec, root)  # what is wrong can only have come with the overlay
    phases, notes = compile_spec(spec, shape, root=root, base=_policy(says), commands_known=False)
    if len(json.dumps(_variables(says))) * len(phases) > SPELLED_OUT:
        raise refusal([(theirs.ENVIRONMENTS, TOO_LARGE)])
    return JobSpec(
        name=says.metadata.name or theirs.NAMELESS,
        cluster=shape.cluster,
        priority=shape.priority,
        start_phase=shape.start_phase,
        phases=tuple(
            _finished(phase, says, partial(overlays.place, root, overlay, i))
            for i, phase in enumerate(phases)
        ),
        dialect="modelarts",
        origin=_origin(says),
        topic=says.spec.notification.topic_urn,
        events=tuple(says.spec.notification.events),
        notes=(
            *(Note(field=at, message=what) for at, what in notes_of(says, phases)),
            *(replace(n, field=OUTPUTS) if n.message == NO_CHECKPOINTS else n for n in notes),
        ),
    )


def _checked(document: dict[str, Any]) -> theirs.Document:
    return judged(theirs.Document, _without_nulls(document))


def _without_nulls(document: dict[str, Any]) -> dict[str, Any]:
    """The document as their API takes it: a key that holds null is not set. In our own words null is a
    value."""
    return {
        key: value if key == overlays.BLOCK else overlays.without_nulls(value)
        for key, value in document.items()
        if value is not None
    }


# --- The overlay -----------------------------------------------------------------------------------


def fragment(document: dict[str, Any]) -> dict[str, Any]:
    """What the document says in words of the native `spec`."""
    return _overlay(_checked(document))[1]


def _overlay(says: theirs.Document) -> tuple[str, dict[str, Any]]:
    """The fragment of the native `spec` that is laid over the rest, and how its fields are called."""
    return overlays.overlay(says.metadata.annotations, says.everstep)


# --- In native words -------------------------------------------------------------------------------


def _native(says: theirs.Document, cluster: str) -> dict[str, Any]:
    """What the document says, as a native `spec`. A job takes all devices of its nodes, as theirs do,
    of the kind that the cluster has."""
    spec: dict[str, Any] = {
        "nodes": says.spec.resource.node_count,
        "accelerators_per_node": "all",
        "accelerator": "ascend" if cluster not in ON_THIS_MACHINE else "simulated",
        "priority": says.spec.schedule_policy.priority,
    }
    if says.algorithm.command is not None:
        spec["command"] = _command(says.algorithm.command, _variables(says))
    index = of_checkpoints(says)
    if index is not None:
        spec["checkpoints"] = {"path": says.algorithm.outputs[index].local_dir}
    return spec


def _command(command: str, names: Iterable[str]) -> str | list[str]:
    """What runs the command: a plain /bin/sh hides variables from it that no shell could name."""
    if all(name.isascii() and name.isidentifier() for name in names):
        return command
    return ["/bin/bash", "-c", command]


def _variables(says: theirs.Document) -> dict[str, str]:
    """Where an output lies is told in a variable of its name, if the document wants it that way."""
    outputs = (output for output in says.algorithm.outputs if output.has_variable)
    variables = {output.name or "": output.local_dir or "" for output in outputs}
    return {**variables, **says.algorithm.environments}


def _finished(phase: PhaseSpec, says: theirs.Document, place: overlays.OverlayPlace) -> PhaseSpec:
    """What the document says of this phase beyond native words and bounds.

    Theirs are wider: a variable may have nearly any name, and a job run for a century.
    """
    if problems := [
        (place("env", name) or name, what)
        for name, what in theirs.wrong(theirs.VARIABLES, phase.env)
    ]:
        raise refusal(problems)
    env = {**_variables(says), **phase.env}
    minutes = env.get(theirs.HANG_MINUTES, HANG_MINUTES_DEFAULT)
    clearing = env.get(theirs.CLEARING, "-1")
    limits = phase.limits
    if limits.hang_s is None:  # else the overlay wants the limit of a step
        limits = replace(limits, still_s=int(minutes) * MINUTE_S)
    if says.spec.auto_stop is not None and not place("limits", "run_s"):
        limits = replace(limits, run_s=says.spec.auto_stop.duration * HOUR_S)
    policy = phase.policy
    if env.get(theirs.CHECKED) == "0":
        policy = replace(policy, precheck=False)
    return replace(
        phase,
        env=env,
        limits=limits,
        policy=policy,
        called=_called(says, place),
        clearing_s=None if clearing == "-1" else float(clearing),
    )


def _called(says: theirs.Document, place: overlays.OverlayPlace) -> dict[str, str]:
    """What fields of this phase are called that messages name, by their native names."""
    index = of_checkpoints(says)
    theirs_are = {
        "model_dir": None,
        "checkpoints.path": None if index is None else f"algorithm.outputs.{index}.local_dir",
        "limits.run_s": None if says.spec.auto_stop is None else "spec.auto_stop",
    }
    called = {name: place(*name.split(".")) or own for name, own in theirs_are.items()}
    return {name: at for name, at in called.items() if at is not None}


def _policy(says: theirs.Document) -> Policy:
    said = says.metadata.annotations
    retry, pod_retry = said.get(theirs.JOB_RETRY), said.get(theirs.POD_RETRY)
    return modelarts(
        job_retry=None if retry is None else int(retry),
        pod_retry=None if pod_retry is None else int(pod_retry),
        unconditional=said.get(theirs.UNCONDITIONAL) == "true",
        hang_retry=said.get(theirs.HANG_RETRY) == "true",
        operator_retry=said.get(theirs.OPERATOR_RETRY) == "true",
    )


def _origin(says: theirs.Document) -> Origin:
    metadata, resource = says.metadata, says.spec.resource
    return Origin(
        kind=says.kind,
        description=metadata.description,
        workspace_id=metadata.workspace_id,
        annotations=metadata.annotations,
        pool_id=resource.pool_id,
        flavor_id=resource.flavor_id,
    )
