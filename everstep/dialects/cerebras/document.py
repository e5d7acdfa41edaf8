"""A trainer configuration -> JobSpec: each trainer is a phase, said in native words, and the
`everstep:` block is laid over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstep.core.errors import InvalidSpec
from everstep.core.spec import JobSpec, Note, PhaseSpec, Policy
from everstep.dialects.cerebras.journal import PARAMS
from everstep.dialects.cerebras.policy import WITHOUT_RESTARTS, cerebras
from everstep.dialects.cerebras.shapes import Trainer
from everstep.dialects.native import shapes
from everstep.dialects.native.document import NO_CHECKPOINTS, OF_THE_JOB, compile_spec
from everstep.dialects.native.values import PHASES
from everstep.documents.merge import merged
from everstep.documents.problems import Problem, described, judged, path, refusal
from everstep.documents.text import written

ROOT = "everstep"
COMMAND = path(ROOT, "command")

NAMELESS = "training-job"
"""What a job is called whose document has no place for a name."""

MODEL_DIR = "model_dir"
"""Where a trainer writes that does not say where."""

NAMED = f"says no name: the job is called {NAMELESS}; `submit --id` names it"
FINAL = "missing: every failure is final"
NEVER = "is 0: the first failure is final"
FROM_THE_START = "missing: nothing is saved on the way, so a restart begins from the initial state"
AGAIN = "a validation that failed starts from scratch: nothing of it is saved"
ALL_OR_NONE = "missing, but {other} has it: either every phase restarts by itself or none does"
TOO_FEW = "must not be more than num_csx, the systems that are asked for ({wanted})"
NAMES = "must have an entry for each of the {count} trainers, in their order: it has {said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTrainer:
    """A trainer, and where in the document it was written."""

    at: str
    raw: Mapping[str, Any]
    says: Trainer

    def path(self, *keys: str) -> str:
        return path(self.at, *keys)

    @property
    def is_fit(self) -> bool:
        """Whether it trains: it validates if that is all it has a section for."""
        others = self.says.validation is not None or self.says.validate_all is not None
        return self.says.fit is not None or not others

    @property
    def model_dir(self) -> str:
        return self.says.init.model_dir or MODEL_DIR


def compile_cerebras(document: dict[str, Any]) -> JobSpec:
    """The job this document asks for. Raises `InvalidSpec` with everything that is wrong."""
    trainers = _trainers(document["trainer"])
    if problems := [*_all_or_none(trainers), *_more_than_wanted(trainers)]:
        raise refusal(problems)
    overlay = fragment(document)
    spec = _native(trainers, overlay)
    shape = judged(shapes.Spec, spec, ROOT)
    policies = [_policy(trainer) for trainer in trainers]
    phases, notes = compile_spec(spec, shape, root=ROOT, base=policies, commands_known=False)
    return JobSpec(
        name=NAMELESS,
        cluster=shape.cluster,
        priority=shape.priority,
        start_phase=shape.start_phase,
        phases=tuple(map(_finished, phases, trainers, spec["phases"])),
        dialect="cerebras",
        notes=(
            *(Note(field=at, message=what) for at, what in _notes(trainers)),
            *(note for note in notes if note.message != NO_CHECKPOINTS),
        ),
        beside={
            phase.name: {PARAMS: written({"trainer": trainer.raw})}
            for phase, trainer in zip(phases, trainers, strict=True)
        },
    )


def fragment(document: dict[str, Any]) -> dict[str, Any]:
    """What the document says in words of the native `spec`, with a name for each of its phases."""
    whole: dict[str, Any] = named(document)[ROOT]
    judged(shapes.Spec, whole, ROOT)
    return whole


def named(document: dict[str, Any]) -> dict[str, Any]:
    """The document with a name for each phase: their own, else by their number."""
    said = {} if document.get(ROOT) is None else document[ROOT]
    if not isinstance(said, dict) or said.get("phases") is not None:
        return {**document, ROOT: said}
    trainer = document["trainer"]
    many = len(trainer) if isinstance(trainer, list) else 1
    names = ["main"] if many == 1 else [f"phase-{n}" for n in range(1, many + 1)]
    return {**document, ROOT: {**said, "phases": [{"name": name} for name in names]}}


# --- Trainers ---------------------------------------------------------------------------------------


def _trainers(value: object) -> list[WrittenTrainer]:
    found, problems = [], []
    for at, raw in _written(value):
        try:
            found.append(WrittenTrainer(at=at, raw=raw, says=judged(Trainer, raw, at)))
        except InvalidSpec as error:
            problems += error.problems
    if problems:
        raise refusal(problems)
    return found


def _written(value: object) -> Iterator[tuple[str, Any]]:
    """Each trainer by its place; in a list it may stand under a `trainer` of its own."""
    match value:
        case dict():
            yield "trainer", value
        case list() if 0 < len(value) <= PHASES:
            for i, entry in enumerate(value):
                is_wrapped = isinstance(entry, dict) and "trainer" in entry
                yield f"trainer[{i}]", entry["trainer"] if is_wrapped else entry
        case list():
            what = f"must have 1 to {PHASES} trainers, one for each phase, not {len(value)}"
            raise refusal([("trainer", what)])
        case _:
            what = f"must be a mapping, or a list of them, not {described(value)}"
            raise refusal([("trainer", what)])


def _all_or_none(trainers: Sequence[WrittenTrainer]) -> Iterator[Problem]:
    having = [t for t in trainers if t.says.init.autorestart is not None]
    for trainer in trainers:
        if having and trainer not in having:
            yield trainer.path("init", "autorestart"), ALL_OR_NONE.format(other=having[0].at)


def _more_than_wanted(trainers: Sequence[WrittenTrainer]) -> Iterator[Problem]:
    for trainer in trainers:
        init = trainer.says.init
        if init.autorestart is not None and init.autorestart.min_num_csx > init.num_csx:
            at = trainer.path("init", "autorestart", "min_num_csx")
            yield at, TOO_FEW.format(wanted=init.num_csx)


def _notes(trainers: Sequence[WrittenTrainer]) -> Iterator[Problem]:
    yield "trainer", NAMED
    if trainers[0].says.init.autorestart is None:
        yield trainers[0].path("init", "autorestart"), FINAL
        return
    for trainer in trainers:
        init = trainer.says.init
        if init.autorestart is not None and init.autorestart.max_num_restarts == 0:
            yield trainer.path("init", "autorestart", "max_num_restarts"), NEVER
        elif not trainer.is_fit:
            yield trainer.at, AGAIN
        elif not init.saves:
            yield trainer.path("init", "checkpoint", "steps"), FROM_THE_START


# --- In native words --------------------------------------------------------------------------------


def _native(trainers: Sequence[WrittenTrainer], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """The document as a native `spec`: what the overlay says of the job is said of each phase."""
    own = overlay["phases"]
    if len(own) != len(trainers):
        count, said = len(trainers), len(own)
        raise refusal([(path(ROOT, "phases"), NAMES.format(count=count, said=said))])
    shared = {key: value for key, value in overlay.items() if key not in OF_THE_JOB}
    phases = [
        merged(merged(_phase(trainer), shared), said)
        for trainer, said in zip(trainers, own, strict=True)
    ]
    of_the_job = {key: value for key, value in overlay.items() if key in OF_THE_JOB}
    return {**of_the_job, "phases": phases}


def _phase(trainer: WrittenTrainer) -> dict[str, Any]:
    init = trainer.says.init
    phase: dict[str, Any] = {"nodes": init.num_csx, "model_dir": trainer.model_dir}
    if trainer.is_fit:
        phase["checkpoints"] = {"path": trainer.model_dir}
    if init.autorestart is not None:
        phase["nodes"] = {"min": init.autorestart.min_num_csx, "wanted": init.num_csx}
    return phase


def _policy(trainer: WrittenTrainer) -> Policy:
    init = trainer.says.init
    if init.autorestart is None:
        return WITHOUT_RESTARTS
    return cerebras(
        max_num_restarts=init.autorestart.max_num_restarts,
        save_every=init.save_every if trainer.is_fit else 0,
    )


def _finished(phase: PhaseSpec, trainer: WrittenTrainer, said: Mapping[str, Any]) -> PhaseSpec:
    """The phase, with the trainer's own names for the folders that it chose."""
    folders = {"model_dir": said["model_dir"], **_checkpoints(said)}
    at, init = trainer.path("init", "model_dir"), trainer.says.init
    called = {name: at for name, folder in folders.items() if folder == trainer.model_dir}
    return replace(phase, last_step=init.last_step, called=called)


def _checkpoints(said: Mapping[str, Any]) -> dict[str, str]:
    checkpoints = said.get("checkpoints")
    return {} if checkpoints is None else {"checkpoints.path": checkpoints["path"]}
