"""Notes on a ModelArts document: keys without effect, or with another one than expected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel

from everstep.core.spec import PhaseSpec
from everstep.dialects.modelarts import COMMAND, COMMON_KIND
from everstep.dialects.modelarts import shapes as ma_shapes
from everstep.dialects.modelarts.outputs import of_checkpoints
from everstep.dialects.native.document import NOT_HANDED_OVER, PRODUCT_VARIABLES
from everstep.documents.problems import Problem, path, suggestion

WITHOUT_RETRIES = f"has no effect without {ma_shapes.JOB_RETRY}: nothing will be restarted"

NO_OPERATOR_RETRY = "has no effect yet: no collective is run again, the next level answers"
LIMITED_BY_STEPS = "has no effect: `hang_s` of the overlay limits each step instead"
NEVER_SUSPENDED = "has no effect: suspension is detected by devices, and this job has none"

UNRELATED = (
    "performance_diagnosis_enabled",
    "job_template",
    "jupyter-lab/enable",
    "tensorboard/enable",
    "mindstudio-insight/enable",
)
"""Annotations of ModelArts that have nothing to do with recovery."""

ELSEWHERE: Mapping[str, str] = {
    "tasks": "has no effect: what a job of one kind of task needs is in `algorithm` and `spec`",
    "endpoints": "has no effect: nothing listens for the job here",
    "algorithm.code_dir": "is not fetched: the code has to be where the job runs",
    "algorithm.boot_file": "has no effect: the command says what to run",
    "algorithm.engine": "has no effect: the job runs in the environment of its worker",
    "algorithm.inputs": "are not fetched: the data has to be where the job runs",
    "algorithm.parameters": "have no effect: write them into the command",
    "spec.volumes": "has no effect: the job sees the file systems of its nodes",
    "spec.schedule_policy.preemptible": "has no effect: only the cluster decides which job is preempted",
    "spec.schedule_policy.required_affinity": "has no effect here",
}
"""Keys of ModelArts that are not read, each with its note."""


def notes_of(document: ma_shapes.Document, phases: Sequence[PhaseSpec]) -> Iterator[Problem]:
    yield from _of_the_document(document)
    yield from _of_annotations(document)
    yield from _of_restarts(document, phases)
    yield from _of_variables(document)
    yield from _of_outputs(document, {phase.checkpoints_path or "" for phase in phases})
    yield from _not_read(document)


def _of_the_document(document: ma_shapes.Document) -> Iterator[Problem]:
    if "kind" not in document.model_fields_set:
        yield "kind", f"missing: taken for kind: {COMMON_KIND}, a ModelArts document"
    if document.kind != COMMON_KIND:
        yield "kind", f"a {document.kind} is run like a common job"
    if document.metadata.name is None:
        yield (
            "metadata.name",
            f"missing: the job is called {ma_shapes.NAMELESS}; choose a name with `submit --id`",
        )
    if document.algorithm.command is None:
        yield (
            COMMAND,
            f"missing; {_advice(document)}; the document can be looked at, not submitted",
        )
    if document.spec.log_export_path is not None:
        yield "spec.log_export_path", "has no effect: `everstep logs` shows what the job prints"


def _advice(document: ma_shapes.Document) -> str:
    boot_file = (document.algorithm.model_extra or {}).get("boot_file")
    if not isinstance(boot_file, str) or not boot_file.strip():
        return "say what to run, for example python train.py"
    script = boot_file.rsplit("/", 1)[-1]
    return f"boot_file alone starts nothing here: say what to run, for example python {script}"


def _of_annotations(document: ma_shapes.Document) -> Iterator[Problem]:
    annotations = document.metadata.annotations
    for name, text in annotations.items():
        at = path("metadata", "annotations", name)
        if name in ma_shapes.ANNOTATIONS:
            if (
                name != ma_shapes.JOB_RETRY
                and ma_shapes.JOB_RETRY not in annotations
                and text != "false"
            ):
                yield at, WITHOUT_RETRIES
        elif name in UNRELATED:
            yield at, "is kept and has no effect on recovery"
        elif name != ma_shapes.OVERLAY:
            yield at, f"is unknown: it is kept and has no effect{_nearest(name, ALL_ANNOTATIONS)}"


def _of_restarts(document: ma_shapes.Document, phases: Sequence[PhaseSpec]) -> Iterator[Problem]:
    """Annotations and variables that are on and can have no effect for this job."""
    annotations = document.metadata.annotations
    on = {name for name, text in annotations.items() if text == "true"}
    if ma_shapes.JOB_RETRY not in annotations:
        return
    if ma_shapes.OPERATOR_RETRY in on:
        yield path("metadata", "annotations", ma_shapes.OPERATOR_RETRY), NO_OPERATOR_RETRY
    is_limited_by_steps = all(p.limits.hang_s is not None for p in phases)
    if ma_shapes.HANG_MINUTES in document.algorithm.environments and is_limited_by_steps:
        yield path(ma_shapes.ENVIRONMENTS, ma_shapes.HANG_MINUTES), LIMITED_BY_STEPS
    can_hang = (p.accelerators_per_node != 0 or p.limits.hang_s is not None for p in phases)
    if ma_shapes.HANG_RETRY in on and not any(can_hang):
        yield path("metadata", "annotations", ma_shapes.HANG_RETRY), NEVER_SUSPENDED


ALL_ANNOTATIONS = (*ma_shapes.ANNOTATIONS, *UNRELATED, ma_shapes.OVERLAY)


def _of_variables(document: ma_shapes.Document) -> Iterator[Problem]:
    for name in document.algorithm.environments:
        if PRODUCT_VARIABLES.fullmatch(name):
            yield path(ma_shapes.ENVIRONMENTS, name), NOT_HANDED_OVER
        elif name.startswith("MA_") and name not in ma_shapes.VARIABLES:
            what = "begins with MA_, which names of the platform do: choose another name"
            yield path(ma_shapes.ENVIRONMENTS, name), what


def _of_outputs(document: ma_shapes.Document, saved_to: Iterable[str]) -> Iterator[Problem]:
    for i, output in enumerate(document.algorithm.outputs):
        at = path("algorithm", "outputs", i)
        if output.has_variable and PRODUCT_VARIABLES.fullmatch(output.name or ""):
            yield path(at, "name"), NOT_HANDED_OVER
        if not output.local_dir:
            yield at, "has no local_dir: what the job writes there is not seen here"
        elif i == of_checkpoints(document) and any(p.endswith(output.local_dir) for p in saved_to):
            yield at, "is taken for checkpoints; nothing is uploaded"
        else:
            yield at, "stays on its node: nothing is uploaded"


def _not_read(part: BaseModel, *under: str) -> Iterator[Problem]:
    """Keys that are not read, in this part and those below it."""
    for key in part.model_extra or {}:
        keys = [*type(part).model_fields]
        at = path(*under, key)
        otherwise = f"is unknown: it is kept and has no effect{_nearest(key, keys)}"
        yield at, ELSEWHERE.get(at, otherwise)
    for name, value in part:
        if isinstance(value, BaseModel):
            yield from _not_read(value, *under, name)


def _nearest(word: str, candidates: Sequence[str]) -> str:
    hint = suggestion(word, candidates, likeness=0.8)
    return f"; {hint}" if hint else ""
