"""The native document -> JobSpec: phases laid over their job, contradictions found, notes taken.

`shapes` has checked every key by itself before; here is what only a whole phase shows. Two tables, one of
contradictions (errors) and one of things without effect (notes): a new one is a row, a function that yields
the field's path and a sentence. The other dialects use `compile_spec` too, with a policy of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from everstep.agent.observing import step_patterns
from everstep.core.levels import FaultClass, Level
from everstep.core.spec import (
    Budget,
    JobSpec,
    LadderRow,
    Limits,
    Match,
    Note,
    PhaseSpec,
    Policy,
    Prefetch,
    Rule,
)
from everstep.dialects import variables
from everstep.dialects.dialect import HasPods
from everstep.dialects.native import regexes, shapes
from everstep.documents import merge
from everstep.documents.problems import PathPart, Problem, judged, path, refusal

OF_THE_JOB = frozenset({"cluster", "namespace", "priority", "start_phase", "phases"})
"""Keys of `spec` that no phase has."""

PHASES_BYTES_MOST = 1_000_000
"""Bytes that all phases together may have, each with everything it inherits."""

TOO_LARGE = "with all they inherit the phases are larger than 1 MB: shorten what they share"

MISSING = object()

DEFAULT_POLICY = Policy()
"""Policy of a native document that sets nothing."""

PRODUCT_VARIABLES = re.compile(
    r"EVERSTEP_\w*|(LOCAL_|NODE_|ROLE_)?RANK|(LOCAL_)?WORLD_SIZE|NNODES|MASTER_(ADDR|PORT)"
    f"|{'|'.join(variables.NAMES)}"
)
"""Variables that every training process gets from us."""
NOT_HANDED_OVER = "has no effect: every training process gets its own value"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPhase:
    """A phase with everything it inherits, and where in the document it was written."""

    root: str
    name: str
    cluster: str
    has_pods: bool  # of its cluster
    place: tuple[PathPart, ...]
    written: Mapping[str, Any]  # what the phase itself sets
    settings: shapes.Settings  # with what it inherits
    base: Policy  # of the dialect; the document's own replaces it in parts

    def at(self, *keys: PathPart) -> str:
        """The path of a field: in the phase if the phase sets it, else in the job."""
        is_own = merge.at(self.written, keys, MISSING) is not MISSING
        return path(*(self.place if is_own else (self.root,)), *keys)


def compile_native(document: dict[str, Any], has_pods: HasPods) -> JobSpec:
    """Compile the document. Raises `InvalidSpec` with all problems."""
    shape = judged(shapes.NativeDocument, document)
    phases, notes = compile_spec(document["spec"], shape.spec, has_pods=has_pods)
    return JobSpec(
        name=shape.metadata.name,
        labels=shape.metadata.labels,
        links=shape.metadata.links,
        cluster=shape.spec.cluster,
        namespace=shape.spec.namespace or "",
        priority=shape.spec.priority,
        start_phase=shape.spec.start_phase,
        phases=phases,
        notes=notes,
    )


def compile_spec(
    spec: dict[str, Any],
    shape: shapes.Spec,
    *,
    has_pods: HasPods,
    root: str = "spec",
    base: Policy | Sequence[Policy] = DEFAULT_POLICY,
    needs_command: bool = True,
) -> tuple[tuple[PhaseSpec, ...], tuple[Note, ...]]:
    """Compile a native `spec` to its phases; `root` is the path of the spec in messages.

    `base` is the policy that the document's own replaces in parts, one for all phases or one for each. With
    `needs_command=False` a missing command is no problem yet.
    """
    phases = list(_written(spec, shape, root, base, has_pods=has_pods(shape.cluster)))
    checks = CONTRADICTIONS if needs_command else (_devices_without_kind,)
    problems = [problem for phase in phases for check in checks for problem in check(phase)]
    if problems:
        raise refusal(problems)
    notes = dict.fromkeys(
        [
            *_namespace_without_pods(shape, root, has_pods=has_pods(shape.cluster)),
            *(note for phase in phases for find in NOTES for note in find(phase)),
        ]
    )
    return (
        tuple(phase_spec(phase.name, phase.settings, phase.base) for phase in phases),
        tuple(Note(field=field, message=message) for field, message in notes),
    )


def _written(
    spec: dict[str, Any],
    shape: shapes.Spec,
    root: str,
    base: Policy | Sequence[Policy],
    *,
    has_pods: bool,
) -> Iterator[WrittenPhase]:
    shared = {key: value for key, value in spec.items() if key not in OF_THE_JOB}
    size = 0
    for i, written in enumerate(spec.get("phases") or [{"name": "main"}]):
        whole = merge.merged(shared, written)
        name = whole.pop("name")
        size += len(json.dumps(whole))
        if size > PHASES_BYTES_MOST:
            raise refusal([(f"{root}.phases", TOO_LARGE)])
        place = (root, "phases", i)
        yield WrittenPhase(
            root=root,
            name=name,
            cluster=shape.cluster,
            has_pods=has_pods,
            place=place,
            written=written,
            settings=judged(shapes.Settings, whole, *place),  # fine on its own, too much together
            base=base if isinstance(base, Policy) else base[i],
        )


# --- Contradictions --------------------------------------------------------------------------------


def _without_command(phase: WrittenPhase) -> Iterator[Problem]:
    if phase.settings.command is None:
        what = f"missing for phase `{phase.name}`; say what to run, command: [python, train.py]"
        yield phase.at("command"), what


def _devices_without_kind(phase: WrittenPhase) -> Iterator[Problem]:
    if phase.settings.accelerators_per_node != 0 and phase.settings.accelerator == "none":
        what = "needs their kind too: accelerator: nvidia, ascend or simulated (it is none)"
        yield phase.at("accelerators_per_node"), what


CONTRADICTIONS: tuple[Callable[[WrittenPhase], Iterator[Problem]], ...] = (
    _without_command,
    _devices_without_kind,
)


# --- Notes -----------------------------------------------------------------------------------------


NO_PODS = "has no effect on cluster `{cluster}`, which starts processes, no pods"


def _namespace_without_pods(shape: shapes.Spec, root: str, *, has_pods: bool) -> Iterator[Problem]:
    if shape.namespace is not None and not has_pods:
        yield path(root, "namespace"), NO_PODS.format(cluster=shape.cluster)


def _pod_keys_without_pods(phase: WrittenPhase) -> Iterator[Problem]:
    if not phase.has_pods:
        for key in phase.settings.model_fields_set & {"image", "pod_template"}:
            yield phase.at(key), NO_PODS.format(cluster=phase.cluster)


def _kind_without_devices(phase: WrittenPhase) -> Iterator[Problem]:
    if phase.settings.accelerator != "none" and phase.settings.accelerators_per_node == 0:
        what = "has no effect without `accelerators_per_node`: the job takes no device"
        yield phase.at("accelerator"), what


def _prewarm_without_python(phase: WrittenPhase) -> Iterator[Problem]:
    if (
        isinstance(phase.settings.prewarm, list)
        and phase.settings.prewarm
        and not _is_python(phase.settings.command)
    ):
        what = "has no effect: only `python script.py` and `python -m module` start from a fork"
        yield phase.at("prewarm"), what


def _prewarm(written: list[str] | str) -> tuple[str, ...] | None:
    if isinstance(written, list):
        return tuple(written)
    return None if written == "auto" else ()


def _is_python(command: list[str] | str | None) -> bool:
    """Whether this is `python script.py` or `python -m module`, written as a list."""
    if not isinstance(command, list) or len(command) < 2:
        return False
    is_python = re.fullmatch(r"python[0-9.]*", command[0].rsplit("/", 1)[-1]) is not None
    return is_python and (command[1] == "-m" or not command[1].startswith("-"))


HOW_FEW = "say how few nodes will do, nodes: {min: 2, wanted: 4}"


def _fewer_nodes_without_minimum(phase: WrittenPhase) -> Iterator[Problem]:
    nodes_min, nodes = _node_range(phase.settings)
    if nodes_min < nodes:
        return
    for cls, levels in phase.settings.recovery.ladders.items():
        if Level.ELASTIC in levels:
            yield phase.at("recovery", "ladders", cls.value), f"`elastic` has no effect: {HOW_FEW}"
    for n, rule in enumerate(phase.settings.recovery.rules):
        if rule.action == "resize":
            yield phase.at("recovery", "rules", n, "action"), f"ends the job: {HOW_FEW}"
    if phase.settings.prefetch:
        yield phase.at("prefetch"), f"has no effect: {HOW_FEW}"


def _ladder_of_planned_restarts(phase: WrittenPhase) -> Iterator[Problem]:
    if FaultClass.PLANNED in phase.settings.recovery.ladders:
        what = "has no effect: a planned restart takes the level that was asked for"
        yield phase.at("recovery", "ladders", FaultClass.PLANNED.value), what


DEFAULT_SIGNAL = "SIGUSR1"
NO_CHECKPOINTS = (
    "missing: the step from which a restart resumes is unknown; if the job saves checkpoints, "
    "name their folder"
)


def _restarts_without_checkpoints(phase: WrittenPhase) -> Iterator[Problem]:
    if (
        phase.settings.checkpoints is None
        and _policy(phase.settings.recovery, phase.base).may_restart
    ):
        yield phase.at("checkpoints"), NO_CHECKPOINTS


def _product_variables(phase: WrittenPhase) -> Iterator[Problem]:
    for name in filter(PRODUCT_VARIABLES.fullmatch, phase.settings.env):
        yield phase.at("env", name), NOT_HANDED_OVER


NOTES: tuple[Callable[[WrittenPhase], Iterator[Problem]], ...] = (
    _pod_keys_without_pods,
    _kind_without_devices,
    _prewarm_without_python,
    _fewer_nodes_without_minimum,
    _ladder_of_planned_restarts,
    _restarts_without_checkpoints,
    _product_variables,
)


# --- Values ----------------------------------------------------------------------------------------


def phase_spec(name: str, settings: shapes.Settings, base: Policy = DEFAULT_POLICY) -> PhaseSpec:
    """One phase as a value of the core, every default filled in. Its command must be known."""
    nodes_min, nodes = _node_range(settings)
    return PhaseSpec(
        name=name,
        command=_command(settings.command),
        env={name: value for name, value in settings.env.items() if isinstance(value, str)},
        env_from={n: v.from_ for n, v in settings.env.items() if isinstance(v, shapes.FromWorker)},
        workdir=settings.workdir,
        image=settings.image,
        pod_template=settings.pod_template,
        nodes=nodes,
        nodes_min=nodes_min,
        spares=settings.spares,
        processes_per_node=settings.processes_per_node,
        accelerators_per_node=settings.accelerators_per_node,
        accelerator=settings.accelerator,
        model_dir=_joined(settings.workdir, settings.model_dir),
        checkpoints_path=_joined(
            settings.workdir, settings.checkpoints.path if settings.checkpoints else None
        ),
        checkpoints_format=settings.checkpoints.format if settings.checkpoints else "auto",
        checkpoints_pattern=settings.checkpoints.pattern if settings.checkpoints else None,
        save_signal=_save_signal(settings.checkpoints),
        prewarm=_prewarm(settings.prewarm),
        log_pattern=_log_pattern(settings.progress.log_pattern),
        loss_pattern=_loss_pattern(settings.progress.loss_pattern, base),
        last_step=settings.progress.last_step,
        prefetch=Prefetch(command=_command(settings.prefetch)) if settings.prefetch else None,
        limits=_limits(settings.limits),
        policy=_policy(settings.recovery, base),
    )


def _log_pattern(pattern: str | None) -> str | None:
    """The regular expression, also where the document has the name of one."""
    return pattern if pattern is None else step_patterns.expanded(pattern) or pattern


def _save_signal(checkpoints: shapes.Checkpoints | None) -> str | None:
    signal = None if checkpoints is None else checkpoints.save_signal
    return (DEFAULT_SIGNAL if signal else None) if isinstance(signal, bool) else signal


def _loss_pattern(pattern: str | None, base: Policy) -> str | None:
    """The pattern; empty: losses are not read.

    In other dialects bad numbers end a job, or spend its restarts: there the usual pattern is not tried.
    """
    is_off = pattern == regexes.NO_PATTERN or (pattern is None and base != DEFAULT_POLICY)
    return "" if is_off else pattern


def _joined(workdir: str, path: str | None) -> str | None:
    """The path below the workdir, if the document sets one."""
    if path is None or workdir == ".":
        return path
    return str(PurePosixPath(workdir) / path)


def _command(command: list[str] | str | None) -> tuple[str, ...]:
    if isinstance(command, str):
        return ("/bin/sh", "-c", command)
    return tuple(command or ())


def _node_range(settings: shapes.Settings) -> tuple[int, int]:
    if isinstance(settings.nodes, shapes.NodeRange):
        return settings.nodes.min, settings.nodes.wanted
    return settings.nodes, settings.nodes


def _limits(limits: shapes.Limits) -> Limits:
    values = limits.model_dump()
    return Limits(**{**values, "hang_s": None if limits.hang_s == "auto" else limits.hang_s})


def _policy(recovery: shapes.Recovery, base: Policy) -> Policy:
    """The base with the document's changes; a budget or a ladder of the same name replaces it."""
    ladders = (
        LadderRow(tuple(levels), (cls,), is_literal=True)
        for cls, levels in recovery.ladders.items()
    )
    budgets = {budget.name: budget for budget in base.budgets}
    budgets |= {name: _budget(name, budget) for name, budget in recovery.budgets.items()}
    keys = {"no_progress_restarts", "start_failures", "rollbacks"}
    numbers = recovery.model_dump(include=keys, exclude_unset=True)
    if "no_progress_restarts" in numbers:
        numbers.setdefault("start_failures", numbers["no_progress_restarts"])
    return replace(
        base,
        ladders=(*ladders, *base.ladders),
        budgets=tuple(budgets.values()),
        rules=(*(_rule(rule) for rule in recovery.rules), *base.rules),
        **numbers,
    )


def _budget(name: str, shape: shapes.Budget) -> Budget:
    return Budget(name=name, **{"limit": None, **_set_fields(shape)})


def _set_fields(shape: shapes.Shape) -> dict[str, Any]:
    """Fields that are set, by the names that the core uses too."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in shape
        if value is not None
    }


def _rule(rule: shapes.Rule) -> Rule:
    conditions = Match(**_set_fields(rule.match))
    match rule.action:
        case shapes.Rename(cls=cls):
            return Rule(match=conditions, action="class", cls=cls, why=rule.why)
        case list(levels):
            return Rule(match=conditions, action="levels", levels=tuple(levels), why=rule.why)
        case word:
            return Rule(match=conditions, action=word, why=rule.why)
