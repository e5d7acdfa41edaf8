"""What of a ModelArts document has no effect here, or another one than its author may think."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel

from everstep.core.spec import PhaseSpec
from everstep.dialects.modelarts import shapes as theirs
from everstep.dialects.modelarts.outputs import of_checkpoints
from everstep.dialects.native.document import NOT_HANDED_OVER, OURS
from everstep.documents.problems import Problem, path, suggestion

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


def notes_of(says: theirs.Document, phases: Sequence[PhaseSpec]) -> Iterator[Problem]:
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
        yield (
            "metadata.name",
            f"missing: the job is called {theirs.NAMELESS}; `submit --id` names it",
        )
    if says.algorithm.command is None:
        yield (
            theirs.COMMAND,
            f"missing; {_advice(says)}; the document can be looked at, not submitted",
        )
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
            yield path(theirs.ENVIRONMENTS, name), NOT_HANDED_OVER
        elif name.startswith("MA_") and name not in theirs.VARIABLES:
            what = "begins with MA_, which names of the platform do: choose another name"
            yield path(theirs.ENVIRONMENTS, name), what


def _of_outputs(says: theirs.Document, saved_to: Iterable[str]) -> Iterator[Problem]:
    for i, output in enumerate(says.algorithm.outputs):
        at = path("algorithm", "outputs", i)
        if output.has_variable and OURS.fullmatch(output.name or ""):
            yield path(at, "name"), NOT_HANDED_OVER
        if not output.local_dir:
            yield at, "has no local_dir: what the job writes there is not seen here"
        elif i == of_checkpoints(says) and any(p.endswith(output.local_dir) for p in saved_to):
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


def _nearest(word: str, known: Sequence[str]) -> str:
    hint = suggestion(word, known, likeness=0.8)
    return f"; {hint}" if hint else ""
