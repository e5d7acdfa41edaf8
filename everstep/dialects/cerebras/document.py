"""The trainer configuration -> JobSpec: each trainer becomes a phase of the native document.

The overlay (`everstep:`) is merged over these phases, then all is compiled like a native document. Sentences
below are problems of trainers, or notes on what has another effect than expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everstep.core.errors import InvalidSpec
from everstep.core.spec import JobSpec, Note, PhaseSpec, Policy, Prefetch
from everstep.dialects.cerebras.params import COMPILES, PARAMS
from everstep.dialects.cerebras.policy import WITHOUT_RESTARTS, cerebras
from everstep.dialects.cerebras.shapes import Saving, Trainer
from everstep.dialects.dialect import HasPods
from everstep.dialects.native import shapes
from everstep.dialects.native.document import NO_CHECKPOINTS, OF_THE_JOB, compile_spec
from everstep.dialects.native.values import PHASES
from everstep.documents.merge import merged
from everstep.documents.problems import Problem, described, judged, path, refusal, suggestion

ROOT = "everstep"
KEYS = (ROOT, "trainer")

NAMELESS = "training-job"
"""Name of a job, as the document has no place for one."""

MODEL_DIR = "model_dir"
"""The trainer's default folder."""

COMPILE_LOG = f"{COMPILES}/prefetch_num_csx_{{nodes}}.log"

OF_A_COMMAND = frozenset({"command", "prefetch"})
"""Keys of the overlay that replace the trainer's own prefetch command."""

ITS_PARAMS = "{params}"
"""Where a command reads its phase's own configuration."""

MODE_OF_A_COMMAND = r"\bcszoo\s+(fit|validate_all|validate)\b"

NO_NAME = f"has no name: the job is called {NAMELESS}; choose one with `submit --id`"
NO_AUTORESTART = "missing: every failure is final"
NO_RESTARTS = "is 0: the first failure is final"
NOTHING_SAVED = (
    "missing: nothing is saved during training, so a restart begins from the initial state"
)
VALIDATION_STARTS_OVER = "a validation that failed starts from scratch: nothing of it is saved"
NO_FOLDER = "is not a folder: checkpoints there are not found, so no restart makes progress"
RELATIVE_LOOP = (
    "is counted from where a run begins, so that a restart makes it longer: write max_steps, "
    "which is counted from the very beginning"
)
ALL_OR_NONE = "missing, but {other} has it: either every phase restarts by itself or none does"
MORE_THAN_WANTED = "must not be more than num_csx, the number of systems wanted ({wanted})"
PHASE_PER_TRAINER = (
    "must have an entry for each of the {count} trainers, in their order: it has {entries}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTrainer:
    """A trainer, its place in the document, and the overlay of its phase."""

    at: str
    config: Mapping[str, Any]
    shape: Trainer
    overlay: Mapping[str, Any] = field(default_factory=dict)

    def path(self, *keys: str) -> str:
        return path(self.at, *keys)

    @property
    def mode(self) -> str:
        """The mode of the program: by the command, else by the first section that the trainer has."""
        words = self.overlay.get("command") or ()
        text = words if isinstance(words, str) else " ".join(words)
        if match := re.search(MODE_OF_A_COMMAND, text):
            return match[1]
        sections = {"fit": self.shape.fit, "validate": self.shape.validation}
        sections["validate_all"] = self.shape.validate_all
        return next((mode for mode, section in sections.items() if section is not None), "fit")

    @property
    def is_fit(self) -> bool:
        return self.mode == "fit"

    @property
    def model_dir(self) -> str:
        return self.shape.init.model_dir or MODEL_DIR

    @property
    def saves_to(self) -> str | None:
        """The folder of its checkpoints. None if it saves to a URL."""
        root = (self.shape.init.checkpoint or Saving()).checkpoint_root or self.model_dir
        return None if "://" in root else root


def compile_cerebras(document: dict[str, Any], has_pods: HasPods) -> JobSpec:
    """Compile the document. Raises `InvalidSpec` with all problems."""
    bare = _trainers(document)
    if problems := [*_all_or_none(bare), *_more_than_wanted(bare)]:
        raise refusal(problems)
    overlay = fragment(document)
    trainers = _with_overlay(bare, overlay)
    spec = {**_of_the_job(overlay), "phases": [merged(_phase(t), t.overlay) for t in trainers]}
    shape = judged(shapes.Spec, spec, ROOT)
    policies = [_policy(trainer) for trainer in trainers]
    phases, notes = compile_spec(
        spec, shape, has_pods=has_pods, root=ROOT, base=policies, needs_command=False
    )
    return JobSpec(
        name=NAMELESS,
        cluster=shape.cluster,
        namespace=shape.namespace or "",
        priority=shape.priority,
        start_phase=shape.start_phase,
        phases=tuple(map(_finished, phases, trainers)),
        dialect="cerebras",
        notes=(
            *(Note(field=at, message=what) for at, what in _notes(trainers)),
            *(Note(field=key, message=_not_read(key)) for key in document if key not in KEYS),
            *(note for note in notes if note.message != NO_CHECKPOINTS),
        ),
    )


def fragment(document: dict[str, Any]) -> dict[str, Any]:
    """The overlay, a fragment of the native `spec`, with a name for each of its phases."""
    whole: dict[str, Any] = with_named_phases(document)[ROOT]
    judged(shapes.Spec, whole, ROOT)
    return whole


def with_named_phases(document: dict[str, Any]) -> dict[str, Any]:
    """The document with named phases in its overlay: without any, `main`, or `phase-1` and so on."""
    overlay = {} if document.get(ROOT) is None else document[ROOT]
    if not isinstance(overlay, dict) or overlay.get("phases") is not None:
        return {**document, ROOT: overlay}
    trainer = document["trainer"]
    many = len(trainer) if isinstance(trainer, list) else 1
    names = ["main"] if many == 1 else [f"phase-{n}" for n in range(1, many + 1)]
    return {**document, ROOT: {**overlay, "phases": [{"name": name} for name in names]}}


# --- Trainers ---------------------------------------------------------------------------------------


def _trainers(document: Mapping[str, Any]) -> list[WrittenTrainer]:
    trainers, problems = [], []
    for at, config in _written(document):
        try:
            shape = judged(Trainer, config["trainer"], at)
            trainers.append(WrittenTrainer(at=at, config=config, shape=shape))
        except InvalidSpec as error:
            problems += error.problems
    if problems:
        raise refusal(problems)
    return trainers


def _written(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the configuration of each trainer. An entry of a list may be a whole configuration."""
    match document["trainer"]:
        case dict():
            yield "trainer", {key: value for key, value in document.items() if key != ROOT}
        case list() as entries if 0 < len(entries) <= PHASES:
            for i, entry in enumerate(entries):
                is_whole = isinstance(entry, dict) and "trainer" in entry
                yield f"trainer[{i}]", entry if is_whole else {"trainer": entry}
        case list() as entries:
            what = f"must have 1 to {PHASES} trainers, one for each phase, not {len(entries)}"
            raise refusal([("trainer", what)])
        case other:
            what = f"must be a mapping, or a list of them, not {described(other)}"
            raise refusal([("trainer", what)])


def _all_or_none(trainers: Sequence[WrittenTrainer]) -> Iterator[Problem]:
    having = [t for t in trainers if t.shape.init.autorestart is not None]
    for trainer in trainers:
        if having and trainer not in having:
            yield trainer.path("init", "autorestart"), ALL_OR_NONE.format(other=having[0].at)


def _more_than_wanted(trainers: Sequence[WrittenTrainer]) -> Iterator[Problem]:
    for trainer in trainers:
        init = trainer.shape.init
        if init.autorestart is not None and init.least_csx > init.num_csx:
            at = trainer.path("init", "autorestart", "min_num_csx")
            yield at, MORE_THAN_WANTED.format(wanted=init.num_csx)


def _not_read(key: str) -> str:
    return f"is not read; {suggestion(key, KEYS) or 'known are ' + ', '.join(KEYS)}"


def _notes(trainers: Sequence[WrittenTrainer]) -> Iterator[Problem]:
    yield "trainer", NO_NAME
    if trainers[0].shape.init.autorestart is None:
        yield trainers[0].path("init", "autorestart"), NO_AUTORESTART
        return
    for trainer in trainers:
        init = trainer.shape.init
        if init.autorestart is not None and init.autorestart.max_num_restarts == 0:
            yield trainer.path("init", "autorestart", "max_num_restarts"), NO_RESTARTS
        elif not trainer.is_fit:
            yield trainer.at, VALIDATION_STARTS_OVER
        elif not init.saves:
            yield trainer.path("init", "checkpoint", "steps"), NOTHING_SAVED
        elif trainer.saves_to is None:
            yield trainer.path("init", "checkpoint", "checkpoint_root"), NO_FOLDER
        elif (key := init.relative_loop_key) is not None:
            yield trainer.path("init", "loop", key), RELATIVE_LOOP


# --- In native words --------------------------------------------------------------------------------


def _of_the_job(overlay: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in overlay.items() if key in OF_THE_JOB}


def _with_overlay(
    trainers: Sequence[WrittenTrainer], overlay: Mapping[str, Any]
) -> list[WrittenTrainer]:
    """The trainers with the overlay of their phase, which inherits that of the job."""
    phases = overlay["phases"]
    if len(phases) != len(trainers):
        count, entries = len(trainers), len(phases)
        raise refusal(
            [(path(ROOT, "phases"), PHASE_PER_TRAINER.format(count=count, entries=entries))]
        )
    shared = {key: value for key, value in overlay.items() if key not in OF_THE_JOB}
    return [
        replace(t, overlay=merged(shared, phase)) for t, phase in zip(trainers, phases, strict=True)
    ]


def _phase(trainer: WrittenTrainer) -> dict[str, Any]:
    init = trainer.shape.init
    phase: dict[str, Any] = {
        "command": ["cszoo", trainer.mode, ITS_PARAMS],
        "nodes": init.num_csx,
        "model_dir": trainer.model_dir,
    }
    if trainer.is_fit and trainer.saves_to is not None:
        phase["checkpoints"] = {"path": trainer.saves_to}
        if (pattern := (init.checkpoint or Saving()).pattern) is not None:
            phase["checkpoints"]["pattern"] = pattern
    if init.autorestart is not None:
        phase["nodes"] = {"min": init.least_csx, "wanted": init.num_csx}
    return phase


def _policy(trainer: WrittenTrainer) -> Policy:
    init = trainer.shape.init
    if init.autorestart is None:
        return WITHOUT_RESTARTS
    is_seen_saving = trainer.is_fit and trainer.saves_to is not None
    return cerebras(
        max_num_restarts=init.autorestart.max_num_restarts,
        goes_back=bool((trainer.overlay.get("recovery") or {}).get("rollbacks")),
        save_every=init.save_every if is_seen_saving else 0,
    )


def _finished(phase: PhaseSpec, trainer: WrittenTrainer) -> PhaseSpec:
    """The phase with what its program reads. `called`: the document's keys for its folders, for messages."""
    return replace(
        phase,
        first_nodes_min=None if "nodes" in trainer.overlay else phase.nodes,
        last_step=trainer.shape.init.last_step,
        called=_called(trainer),
        files={PARAMS: trainer.config},
        prefetch=_prefetch(phase, trainer),
    )


def _prefetch(phase: PhaseSpec, trainer: WrittenTrainer) -> Prefetch | None:
    """The document's prefetch command, else that of the trainer's program."""
    prefetch = phase.prefetch
    if trainer.shape.init.autorestart is not None and not OF_A_COMMAND & trainer.overlay.keys():
        prefetch = Prefetch(command=(*phase.command, "--compile_only"))
    return prefetch and replace(prefetch, log=COMPILE_LOG)


def _called(trainer: WrittenTrainer) -> dict[str, str]:
    root = (trainer.shape.init.checkpoint or Saving()).checkpoint_root
    saves = ("checkpoint", "checkpoint_root") if root else ("model_dir",)
    chosen = {
        "model_dir": trainer.path("init", "model_dir"),
        "checkpoints.path": trainer.path("init", *saves),
    }
    return {name: at for name, at in chosen.items() if name.split(".")[0] not in trainer.overlay}
