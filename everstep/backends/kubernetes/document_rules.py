"""What this backend refuses of a document and notes about it, wherever its cluster is. Pure."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from everstep.backends.kubernetes import manifest, names
from everstep.backends.kubernetes.folders import FOLDERS
from everstep.core.errors import InvalidSpec
from everstep.core.spec import JobSpec, PhaseSpec
from everstep.core.world import JobRef, PlaceOrder

Problem = tuple[str, str]
"""A field and a sentence about it."""

NO_UID = "00000000-0000-0000-0000-000000000000"
RELATIVE_WORKDIR = (
    "is relative: it begins at the working directory of the image, not at a folder of this machine"
)
OTHER_NAME = (
    f"is another container than that of the ranks, which is called `{manifest.CONTAINER}`: what this one "
    "says has no effect on them"
)
OWN_STATES, COPIED_STATES = 2, 2
"""Snapshots of each rank in its own pod, and copies of each rank of another one."""
UNITS = {
    "": 1.0,
    **{unit: 1000.0**power for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)},
    **{unit: 1024.0**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
}
QUANTITY = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)})")
SIMILAR = 0.7
"""Names as alike as `trainer` and `train`, or more."""


def first_pod(spec: JobSpec, phase: PhaseSpec) -> PlaceOrder:
    """The order to place the pods of a phase, as for a new job."""
    slots = tuple(range(phase.nodes))
    return PlaceOrder(
        job=JobRef(id=spec.name, run=""),
        phase=phase.name,
        generation=1,
        slots=slots,
        recreate=slots,
        priority=spec.priority,
        accelerator=phase.accelerator,
        accelerators_per_node=phase.accelerators_per_node,
        image=phase.image,
        pod_template=phase.pod_template,
    )


def owner_of(spec: JobSpec) -> dict[str, str]:
    """An owner for pods that are never made."""
    return {"name": names.record(spec.name), "uid": NO_UID}


def broken_rules(spec: JobSpec, settings: manifest.PodSettings) -> list[Problem]:
    """What no cluster would make pods of."""
    problems: dict[Problem, None] = {}
    for phase in spec.phases:
        problems |= dict.fromkeys(_of_pods(spec, phase, settings))
        problems |= dict.fromkeys(_of_folders(phase))
    return list(problems)


def _of_pods(spec: JobSpec, phase: PhaseSpec, settings: manifest.PodSettings) -> list[Problem]:
    # In which namespace the workers make pods is theirs to say.
    namespace = spec.namespace or _own_namespace(phase) or settings.namespace
    try:
        manifest.pod(
            first_pod(spec, phase),
            0,
            owner=owner_of(spec),
            settings=replace(settings, namespace=namespace),
        )
    except InvalidSpec as error:
        return list(error.problems)
    return []


def _own_namespace(phase: PhaseSpec) -> str:
    metadata = phase.pod_template.get("metadata")
    return str(metadata.get("namespace") or "") if isinstance(metadata, dict) else ""


def _of_folders(phase: PhaseSpec) -> list[Problem]:
    try:
        FOLDERS.field_of_each(phase.folders)
    except InvalidSpec as error:
        return [(f"spec.{field}", what) for field, what in error.problems]
    return []


def notes(spec: JobSpec) -> list[Problem]:
    """What works, and perhaps not as its author means it."""
    phase_notes = (
        note
        for phase in spec.phases
        for note in (*_of_workdir(phase), *_of_names(phase), *_of_memory(phase))
    )
    return list(dict.fromkeys(phase_notes))


def _of_workdir(phase: PhaseSpec) -> Iterator[Problem]:
    if phase.workdir != "." and not posixpath.isabs(phase.workdir):
        yield "spec.workdir", RELATIVE_WORKDIR


def _of_memory(phase: PhaseSpec) -> Iterator[Problem]:
    """How large a state may be that ranks keep in memory, where the pod has a limit."""
    for number, container in enumerate(_containers(phase)):
        limit = _bytes(str(_value_at(container, "resources", "limits", "memory")))
        if container.get("name") == manifest.CONTAINER and limit:
            states = phase.processes_per_node * (OWN_STATES + COPIED_STATES * (phase.nodes > 1))
            field = f"spec.pod_template.spec.containers.{number}.resources.limits.memory"
            most = f"{limit / states / 1e9:.3g} GB"
            ranks = (
                "1 rank" if phase.processes_per_node == 1 else f"{phase.processes_per_node} ranks"
            )
            copies = " and those of as many in another pod" if phase.nodes > 1 else ""
            yield (
                field,
                f"is for snapshots of `everstep.train` too, where the script keeps any: two of {ranks}"
                f"{copies}, so that a state has {most} at most, less what the training takes",
            )


def _value_at(value: Any, *names: str) -> Any:
    """The value at this path; None: there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _containers(phase: PhaseSpec) -> list[dict[str, Any]]:
    pod = phase.pod_template.get("spec")
    containers = pod.get("containers") if isinstance(pod, dict) else None
    elements = containers if isinstance(containers, list) else []
    return [one if isinstance(one, dict) else {} for one in elements]


def _bytes(quantity: str) -> float | None:
    """The number of bytes of a quantity of Kubernetes, such as `64Gi`; None: it is none."""
    match = QUANTITY.fullmatch(quantity)
    return None if match is None else float(match[1]) * UNITS[match[2]]


def _of_names(phase: PhaseSpec) -> Iterator[Problem]:
    """A container whose name is nearly that of the ranks' own, where the template has none of that name."""
    given_names = [str(one.get("name", "")) for one in _containers(phase)]
    if manifest.CONTAINER in given_names:
        return
    for number, name in enumerate(given_names):
        if difflib.SequenceMatcher(None, manifest.CONTAINER, name).ratio() >= SIMILAR:
            yield f"spec.pod_template.spec.containers.{number}.name", f"`{name}` {OTHER_NAME}"
