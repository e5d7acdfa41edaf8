"""The ModelArts document -> JobSpec.

`compile_modelarts` validates the document (`_parsed`), puts its fields into native words (`_spec`), merges
the overlay over them, compiles the result like a native document with the policy of its annotations
(`_policy`) and adds to each phase what the native shape does not allow (`_with_modelarts_values`). Fields
without effect are rows of a table (`notes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from everstep.core.spec import JobSpec, Note, Origin, PhaseSpec, Policy
from everstep.dialects import overlays
from everstep.dialects.dialect import HasPods
from everstep.dialects.modelarts import shapes as ma_shapes
from everstep.dialects.modelarts.notes import notes_of
from everstep.dialects.modelarts.outputs import of_checkpoints
from everstep.dialects.modelarts.policy import modelarts
from everstep.dialects.native import shapes
from everstep.dialects.native.document import (
    NO_CHECKPOINTS,
    PHASES_BYTES_MOST,
    TOO_LARGE,
    compile_spec,
)
from everstep.documents.merge import merged
from everstep.documents.problems import judged, refusal

OUTPUTS = "algorithm.outputs"
MINUTE_S = 60.0
HOUR_S = 3600.0
HANG_MINUTES_DEFAULT = "30"


def compile_modelarts(document: dict[str, Any], has_pods: HasPods) -> JobSpec:
    """Compile the document. Raises `InvalidSpec` with all problems."""
    parsed = _parsed(document)
    root, overlay = _overlay(parsed)
    in_pods = has_pods(str(overlay.get("cluster", "local")))
    spec = merged(_spec(parsed, in_pods=in_pods), overlay)
    if overlay.get("accelerator") == "none":  # a job without devices need not set their number too
        spec["accelerators_per_node"] = overlay.get("accelerators_per_node", 0)
    # Only the overlay can bring a mistake here: messages name its path.
    shape = judged(shapes.Spec, spec, root)
    phases, notes = compile_spec(
        spec, shape, has_pods=has_pods, root=root, base=_policy(parsed), needs_command=False
    )
    if len(json.dumps(_variables(parsed))) * len(phases) > PHASES_BYTES_MOST:
        raise refusal([(ma_shapes.ENVIRONMENTS, TOO_LARGE)])
    return JobSpec(
        name=parsed.metadata.name or ma_shapes.NAMELESS,
        cluster=shape.cluster,
        namespace=shape.namespace or "",
        priority=shape.priority,
        start_phase=shape.start_phase,
        phases=tuple(
            _with_modelarts_values(phase, parsed, partial(overlays.place, root, overlay, i))
            for i, phase in enumerate(phases)
        ),
        dialect="modelarts",
        origin=_origin(parsed),
        topic=parsed.spec.notification.topic_urn,
        events=tuple(parsed.spec.notification.events),
        notes=(
            *(Note(field=at, message=what) for at, what in notes_of(parsed, phases)),
            *(replace(n, field=OUTPUTS) if n.message == NO_CHECKPOINTS else n for n in notes),
        ),
    )


def _parsed(document: dict[str, Any]) -> ma_shapes.Document:
    """Validate the document. Raises `InvalidSpec` with all problems."""
    return judged(ma_shapes.Document, _without_nulls(document))


def _without_nulls(document: dict[str, Any]) -> dict[str, Any]:
    """The document as the ModelArts API reads it: null means not set. In the overlay null is a value."""
    return {
        key: value if key == overlays.BLOCK else overlays.without_nulls(value)
        for key, value in document.items()
        if value is not None
    }


# --- The overlay -----------------------------------------------------------------------------------


def fragment(document: dict[str, Any]) -> dict[str, Any]:
    """The overlay: a fragment of the native `spec`."""
    return _overlay(_parsed(document))[1]


def _overlay(document: ma_shapes.Document) -> tuple[str, dict[str, Any]]:
    """The path that messages use for the overlay, and the overlay."""
    return overlays.overlay(document.metadata.annotations, document.everstep)


# --- In native words -------------------------------------------------------------------------------


def _spec(document: ma_shapes.Document, *, in_pods: bool) -> dict[str, Any]:
    """The document as a native `spec`. As in ModelArts a job takes all devices of its nodes, of the
    cluster's kind."""
    spec: dict[str, Any] = {
        "nodes": document.spec.resource.node_count,
        "accelerators_per_node": "all",
        "accelerator": "ascend" if in_pods else "simulated",
        "priority": document.spec.schedule_policy.priority,
    }
    if document.algorithm.command is not None:
        spec["command"] = _command(document.algorithm.command, _variables(document))
    index = of_checkpoints(document)
    if index is not None:
        spec["checkpoints"] = {"path": document.algorithm.outputs[index].local_dir}
    return spec


def _command(command: str, names: Iterable[str]) -> str | list[str]:
    """The command to run. /bin/sh drops variables whose names are not valid in a shell, bash keeps them."""
    if all(name.isascii() and name.isidentifier() for name in names):
        return command
    return ["/bin/bash", "-c", command]


def _variables(document: ma_shapes.Document) -> dict[str, str]:
    """Environment of the job, with the folder of each output that has `access_method: env`."""
    outputs = (output for output in document.algorithm.outputs if output.has_variable)
    variables = {output.name or "": output.local_dir or "" for output in outputs}
    return {**variables, **document.algorithm.environments}


def _with_modelarts_values(
    phase: PhaseSpec, document: ma_shapes.Document, place: overlays.OverlayPlace
) -> PhaseSpec:
    """The phase with the values of the document that the native shape does not allow.

    ModelArts allows variables of nearly any name, and jobs that run for a century.
    """
    if problems := [
        (place("env", name) or name, what)
        for name, what in ma_shapes.wrong(ma_shapes.VARIABLES, phase.env)
    ]:
        raise refusal(problems)
    env = {**_variables(document), **phase.env}
    minutes = env.get(ma_shapes.HANG_MINUTES, HANG_MINUTES_DEFAULT)
    clearing = env.get(ma_shapes.CLEARING, "-1")
    limits = phase.limits
    if limits.hang_s is None:  # the overlay sets no limit of a step, which would take its place
        limits = replace(limits, still_s=int(minutes) * MINUTE_S)
    if document.spec.auto_stop is not None and not place("limits", "run_s"):
        limits = replace(limits, run_s=document.spec.auto_stop.duration * HOUR_S)
    policy = phase.policy
    if env.get(ma_shapes.CHECKED) == "0":
        policy = replace(policy, precheck=False)
    return replace(
        phase,
        env=env,
        limits=limits,
        policy=policy,
        called=_document_paths(document, place),
        clearing_s=None if clearing == "-1" else float(clearing),
    )


def _document_paths(document: ma_shapes.Document, place: overlays.OverlayPlace) -> dict[str, str]:
    """Where fields of this phase stand in the document, for messages: native path -> path in the document.

    A field of the overlay has its path there: {"limits.run_s": "spec.auto_stop"} without one.
    """
    index = of_checkpoints(document)
    document_paths = {
        "model_dir": None,
        "checkpoints.path": None if index is None else f"algorithm.outputs.{index}.local_dir",
        "limits.run_s": None if document.spec.auto_stop is None else "spec.auto_stop",
    }
    called = {name: place(*name.split(".")) or path for name, path in document_paths.items()}
    return {name: path for name, path in called.items() if path is not None}


def _policy(document: ma_shapes.Document) -> Policy:
    annotations = document.metadata.annotations
    retry, pod_retry = annotations.get(ma_shapes.JOB_RETRY), annotations.get(ma_shapes.POD_RETRY)
    return modelarts(
        job_retry=None if retry is None else int(retry),
        pod_retry=None if pod_retry is None else int(pod_retry),
        unconditional=annotations.get(ma_shapes.UNCONDITIONAL) == "true",
        hang_retry=annotations.get(ma_shapes.HANG_RETRY) == "true",
        operator_retry=annotations.get(ma_shapes.OPERATOR_RETRY) == "true",
    )


def _origin(document: ma_shapes.Document) -> Origin:
    metadata, resource = document.metadata, document.spec.resource
    return Origin(
        kind=document.kind,
        description=metadata.description,
        workspace_id=metadata.workspace_id,
        annotations=metadata.annotations,
        pool_id=resource.pool_id,
        flavor_id=resource.flavor_id,
    )
