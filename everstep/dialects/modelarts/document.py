"""The ModelArts document -> JobSpec: their words become a native `spec`, the overlay is laid over it.

What their annotations switch on is a policy (`policy`); everything else is said in
native words and compiled like a native document. What has no effect is a row of a table of notes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError

from everstep.core.errors import InvalidSpec
from everstep.core.spec import JobSpec, Note, Origin, PhaseSpec, Policy
from everstep.dialects.modelarts import shapes as theirs
from everstep.dialects.modelarts.policy import modelarts
from everstep.dialects.native import shapes
from everstep.dialects.native.document import (
    NO_CHECKPOINTS,
    NOT_HANDED_OVER,
    ON_THIS_MACHINE,
    OURS,
    SPELLED_OUT,
    TOO_LARGE,
    compile_spec,
)
from everstep.documents.merge import merged
from everstep.documents.plain import plain_fragment
from everstep.documents.problems import Problem, path, problems_of, refusal
from everstep.documents.text import read_text

COMMAND = "algorithm.command"
"""What has to be there before a job can run; their examples do without."""
ENVIRONMENTS = "algorithm.environments"
OUTPUTS = "algorithm.outputs"
MISSING = object()

NAMELESS = "training-job"
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
    shape = _spec(spec, root)
    phases, notes = compile_spec(spec, shape, root=root, base=_policy(says), commands_known=False)
    if len(json.dumps(_variables(says))) * len(phases) > SPELLED_OUT:
        raise refusal([(ENVIRONMENTS, TOO_LARGE)])
    return JobSpec(
        name=says.metadata.name or NAMELESS,
        cluster=shape.cluster,
        priority=shape.priority,
        start_phase=shape.start_phase,
        phases=tuple(
            _finished(phase, says, partial(_place, root, overlay, i))
            for i, phase in enumerate(phases)
        ),
        dialect="modelarts",
        origin=_origin(says),
        topic=says.spec.notification.topic_urn,
        events=tuple(says.spec.notification.events),
        notes=(
            *(Note(field=at, message=what) for at, what in _notes(says, phases)),
            *(replace(n, field=OUTPUTS) if n.message == NO_CHECKPOINTS else n for n in notes),
        ),
    )


def _checked(document: dict[str, Any]) -> theirs.Document:
    try:
        return theirs.Document.model_validate(_without_nulls(document))
    except ValidationError as error:
        raise refusal(problems_of(error, theirs.Document)) from None


def _without_nulls(document: dict[str, Any]) -> dict[str, Any]:
    """The document with each key left out that holds null, as their API takes it; in our own words
    null is a value."""
    return {
        key: value if key == "everstep" else _bare(value)
        for key, value in document.items()
        if value is not None
    }


def _bare(value: Any) -> Any:
    match value:
        case dict():
            return {key: _bare(inner) for key, inner in value.items() if inner is not None}
        case list():
            return [_bare(inner) for inner in value]
        case _:
            return value


def _spec(spec: dict[str, Any], root: str) -> shapes.Spec:
    try:
        return shapes.Spec.model_validate(spec)
    except ValidationError as error:  # what is wrong can only have come with the overlay
        raise refusal(problems_of(error, shapes.Spec, root)) from None


# --- The overlay -----------------------------------------------------------------------------------


def fragment(document: dict[str, Any]) -> dict[str, Any]:
    """What the document says in words of the native `spec`."""
    return _overlay(_checked(document))[1]


def _overlay(says: theirs.Document) -> tuple[str, dict[str, Any]]:
    """The fragment of the native `spec` that is laid over the rest, and how its fields are called."""
    text = says.metadata.annotations.get(theirs.OVERLAY)
    if text is None:
        return "everstep", says.everstep
    root = path("metadata", "annotations", theirs.OVERLAY)
    try:
        said = plain_fragment(read_text(text), root)
    except InvalidSpec as error:
        raise refusal([(root, f"{field}: {what}") for field, what in error.problems]) from None
    return (root if not says.everstep else "everstep"), merged(said, says.everstep)


Place = Callable[..., str | None]
"""Where the overlay speaks of a field, given by its keys."""


def _place(root: str, overlay: Mapping[str, Any], phase: int, *keys: str) -> str | None:
    """What the overlay's own word on a field of this phase is called, if it has one."""
    own = (overlay.get("phases") or {phase: {}})[phase]
    for said, at in ((own, (root, "phases", phase)), (overlay, (root,))):
        value: Any = said
        for key in keys:
            value = value.get(key, MISSING) if isinstance(value, Mapping) else MISSING
        if value is not MISSING:
            return path(*at, *keys)
    return None


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
    index = _of_checkpoints(says)
    if index is not None:
        spec["checkpoints"] = {"path": says.algorithm.outputs[index].local_dir}
    return spec


UNLIKE = 3
LIKENESSES: Mapping[int, re.Pattern[str]] = {
    0: re.compile(r"ckpt|ckp|check_?point", re.IGNORECASE),
    1: re.compile(r"model|weight|snapshot|save", re.IGNORECASE),
    UNLIKE: re.compile(r"log|board|summar|profil|metric|eval|result|cache|tmp", re.IGNORECASE),
}
"""What an output is called that holds checkpoints, the likeliest first, and one that does not."""


def _of_checkpoints(says: theirs.Document) -> int | None:
    """Which output is looked at for checkpoints: the one that is called most like it, else the first."""
    outputs = enumerate(says.algorithm.outputs)
    likeness = {i: _likeness({*_called_so(says, o)}) for i, o in outputs if o.local_dir}
    return min(likeness, key=lambda i: (likeness[i], i), default=None)


def _likeness(names: Iterable[str]) -> int:
    found = {kind for kind, pattern in LIKENESSES.items() if any(map(pattern.search, names))}
    return min(found, default=UNLIKE - 1)


def _called_so(says: theirs.Document, output: theirs.Output) -> Iterator[str]:
    """The output's own name and folder, and what of the document is given that folder."""
    folder = (output.local_dir or "").rstrip("/")
    yield from filter(None, (output.name, folder.rpartition("/")[2]))
    given = [*says.algorithm.environments.items(), *_parameters(says)]
    yield from (name for name, value in given if value.rstrip("/") == folder)
    yield from re.findall(
        rf"--?([\w-]+)[= ]\W?{re.escape(folder)}(?![\w-])", says.algorithm.command or ""
    )


def _parameters(says: theirs.Document) -> Iterator[tuple[str, str]]:
    told = (says.algorithm.model_extra or {}).get("parameters")
    for one in told if isinstance(told, list) else ():
        name, value = (
            (one.get(key) for key in ("name", "value")) if isinstance(one, dict) else (0, 0)
        )
        if isinstance(name, str) and isinstance(value, str):
            yield name, value


def _command(command: str, names: Iterable[str]) -> str | list[str]:
    """What runs the command: a plain /bin/sh hides variables from it that no shell could name."""
    if all(name.isascii() and name.isidentifier() for name in names):
        return command
    return ["/bin/bash", "-c", command]


def _variables(says: theirs.Document) -> dict[str, str]:
    """Where an output lies is told in a variable of its name, if the document wants it that way."""
    outputs = (output for output in says.algorithm.outputs if output.is_told)
    told = {output.name or "": output.local_dir or "" for output in outputs}
    return {**told, **says.algorithm.environments}


def _finished(phase: PhaseSpec, says: theirs.Document, place: Place) -> PhaseSpec:
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


def _called(says: theirs.Document, place: Place) -> dict[str, str]:
    """What fields of this phase are called that messages name, by their native names."""
    index = _of_checkpoints(says)
    theirs_are = {
        "model_dir": None,
        "checkpoints.path": None if index is None else f"algorithm.outputs.{index}.local_dir",
        "limits.run_s": None if says.spec.auto_stop is None else "spec.auto_stop",
    }
    called = {name: place(*name.split(".")) or own for name, own in theirs_are.items()}
    return {name: at for name, at in called.items() if at is not None}


def _policy(says: theirs.Document) -> Policy:
    notes = says.metadata.annotations
    retry, pod_retry = notes.get(theirs.JOB_RETRY), notes.get(theirs.POD_RETRY)
    return modelarts(
        job_retry=None if retry is None else int(retry),
        pod_retry=None if pod_retry is None else int(pod_retry),
        unconditional=notes.get(theirs.UNCONDITIONAL) == "true",
        hang_retry=notes.get(theirs.HANG_RETRY) == "true",
        operator_retry=notes.get(theirs.OPERATOR_RETRY) == "true",
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


# --- Notes -----------------------------------------------------------------------------------------

WITHOUT_RETRIES = f"has no effect without {theirs.JOB_RETRY}: nothing will be restarted"

NO_OPERATOR_RETRY = "has no effect yet: no collective is run again, the next level answers"
NEVER_SUSPENDED = "has no effect: suspension is told by devices, and this job has none"

UNRELATED = (
    "performance_diagnosis_enabled",
    "job_template",
    "jupyter-lab/enable",
    "tensorboard/enable",
    "mindstudio-insight/enable",
)
"""Annotations of theirs that have nothing to do with recovery."""

ELSEWHERE: Mapping[str, str] = {
    "tasks": "has no effect: what a job of one kind of task needs is in `algorithm` and `spec`",
    "endpoints": "has no effect: nothing listens for the job here",
    "algorithm.code_dir": "is not fetched: the code has to be where the job runs",
    "algorithm.boot_file": "has no effect: the command says what to run",
    "algorithm.engine": "has no effect: the job runs in the environment of its worker",
    "algorithm.inputs": "are not fetched: the data has to be where the job runs",
    "algorithm.parameters": "have no effect: write them into the command",
    "spec.volumes": "has no effect: the job sees the file systems of its nodes",
    "spec.schedule_policy.preemptible": "has no effect: only the cluster says who gives way",
    "spec.schedule_policy.required_affinity": "has no effect here",
}
"""Keys of theirs that are known, and what becomes of them."""


def _notes(says: theirs.Document, phases: Sequence[PhaseSpec]) -> Iterator[Problem]:
    yield from _of_the_document(says)
    yield from _of_annotations(says)
    yield from _of_restarts(says, phases)
    yield from _of_variables(says)
    yield from _of_outputs(says, {phase.checkpoints_path or "" for phase in phases})
    yield from _not_read(says)


def _of_the_document(says: theirs.Document) -> Iterator[Problem]:
    if "kind" not in says.model_fields_set:
        yield "kind", f"missing: taken for kind: {theirs.COMMON}, a ModelArts document"
    if says.kind != theirs.COMMON:
        yield "kind", f"a {says.kind} is run like a common job"
    if says.metadata.name is None:
        yield "metadata.name", f"missing: the job is called {NAMELESS}; `submit --id` names it"
    if says.algorithm.command is None:
        yield COMMAND, f"missing; {_advice(says)}; the document can be looked at, not submitted"
    if says.spec.log_export_path is not None:
        yield "spec.log_export_path", "has no effect: `everstep logs` shows what the job prints"


def _advice(says: theirs.Document) -> str:
    boot_file = (says.algorithm.model_extra or {}).get("boot_file")
    if not isinstance(boot_file, str) or not boot_file.strip():
        return "say what to run, for example python train.py"
    script = boot_file.rsplit("/", 1)[-1]
    return f"boot_file alone starts nothing here: say what to run, for example python {script}"


def _of_annotations(says: theirs.Document) -> Iterator[Problem]:
    annotations = says.metadata.annotations
    for name, text in annotations.items():
        at = path("metadata", "annotations", name)
        if name in theirs.ANNOTATIONS:
            if name != theirs.JOB_RETRY and theirs.JOB_RETRY not in annotations and text != "false":
                yield at, WITHOUT_RETRIES
        elif name in UNRELATED:
            yield at, "is kept and has no effect on recovery"
        elif name != theirs.OVERLAY:
            yield at, f"is not known: it is kept and has no effect{_nearest(name, _KNOWN)}"


def _of_restarts(says: theirs.Document, phases: Iterable[PhaseSpec]) -> Iterator[Problem]:
    """What is switched on for this job and cannot come to anything."""
    annotations = says.metadata.annotations
    on = {name for name, text in annotations.items() if text == "true"}
    if theirs.JOB_RETRY not in annotations:
        return
    if theirs.OPERATOR_RETRY in on:
        yield path("metadata", "annotations", theirs.OPERATOR_RETRY), NO_OPERATOR_RETRY
    can_hang = (p.accelerators_per_node != 0 or p.limits.hang_s is not None for p in phases)
    if theirs.HANG_RETRY in on and not any(can_hang):
        yield path("metadata", "annotations", theirs.HANG_RETRY), NEVER_SUSPENDED


_KNOWN = (*theirs.ANNOTATIONS, *UNRELATED, theirs.OVERLAY)


def _of_variables(says: theirs.Document) -> Iterator[Problem]:
    for name in says.algorithm.environments:
        if OURS.fullmatch(name):
            yield path(ENVIRONMENTS, name), NOT_HANDED_OVER
        elif name.startswith("MA_") and name not in theirs.VARIABLES:
            what = "begins with MA_, which names of the platform do: choose another name"
            yield path(ENVIRONMENTS, name), what


def _of_outputs(says: theirs.Document, saved_to: Iterable[str]) -> Iterator[Problem]:
    for i, output in enumerate(says.algorithm.outputs):
        at = path("algorithm", "outputs", i)
        if output.is_told and OURS.fullmatch(output.name or ""):
            yield path(at, "name"), NOT_HANDED_OVER
        if not output.local_dir:
            yield at, "has no local_dir: what the job writes there is not seen here"
        elif i == _of_checkpoints(says) and any(p.endswith(output.local_dir) for p in saved_to):
            yield at, "is taken for checkpoints; nothing is uploaded"
        else:
            yield at, "stays on its node: nothing is uploaded"


def _not_read(part: BaseModel, *under: str) -> Iterator[Problem]:
    """Keys that are not read, in this part and those below it."""
    for key in part.model_extra or {}:
        known = [*type(part).model_fields]
        at = path(*under, key)
        otherwise = f"is not known: it is kept and has no effect{_nearest(key, known)}"
        yield at, ELSEWHERE.get(at, otherwise)
    for name, value in part:
        if isinstance(value, BaseModel):
            yield from _not_read(value, *under, name)


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, [*known], n=1, cutoff=0.8)
    return f"; did you mean `{near[0]}`?" if near else ""
