"""Merge one piece of a document over another: a phase over its job, a hot update over a document.

Mappings merge key by key, anything else is replaced; null is a value like any other. Compile the result to
judge it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from everstep.documents.plain import plain_document, plain_fragment
from everstep.documents.problems import PathPart, Problem, path, refusal

OUTSIDE: Mapping[str, str] = {
    "apiVersion": "cannot change while the job runs",
    "kind": "cannot change while the job runs",
    "metadata": "cannot change while the job runs: name and labels belong to the workflow",
    "spec": "is not a key of `spec`: write the keys below it, for example {nodes: 4}",
}
"""Keys that a patch cannot have, as it is a fragment of `spec`."""

FIXED_OF_THE_JOB: Mapping[tuple[str, ...], str] = {
    ("cluster",): "cannot change while the job runs: stop it and submit it there",
    ("namespace",): "cannot change while the job runs: its pods and its record are there",
    ("start_phase",): "cannot change while the job runs: it only says where a job begins",
}
FIXED: Mapping[tuple[str, ...], str] = {
    ("model_dir",): "cannot change while the job runs: its records and its fence are there",
    ("checkpoints", "path"): "cannot change while the job runs: its fence is there",
}
"""Places of `spec`, and of each phase, that stay as they are."""

UNSET: Mapping[tuple[str, ...], Any] = {("cluster",): "local"}
"""Defaults of fixed places; those of others are null."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid over it."""
    return {**base, **{key: _merged_value(base.get(key), value) for key, value in over.items()}}


def _merged_value(below: object, above: object) -> object:
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return merged(below, above)
    return above


def patch(document: object, fragment: object, *, under: str = "spec") -> dict[str, Any]:
    """The document with a fragment of the native `spec` laid over it, phases matched by name.

    `under`: the key of its `spec`, or of the overlay in another dialect.

    Raises `InvalidSpec` for what cannot change while a job runs. Compile the result to see whether it is
    valid.
    """
    whole = plain_document(document)
    change = plain_fragment(fragment, "patch")
    spec = plain_fragment({} if whole.get(under) is None else whole[under], under)
    change = {key: value for key, value in change.items() if (key, value) != ("phases", None)}
    written_phases = spec.get("phases")
    if written_phases is None:
        written_phases = [{"name": "main"}]
    phases = _by_name(written_phases, f"{under}.phases")
    changes = _by_name(change.get("phases", []), "patch.phases")
    problems = [*_outside(change), *_fixed(spec, change), *_fixed_in_phases(spec, phases, changes)]
    if problems:
        raise refusal(problems)
    result = merged(spec, {key: value for key, value in change.items() if key != "phases"})
    if changes:
        result["phases"] = [merged(p, changes.get(name, {})) for name, p in phases.items()]
    return {**whole, under: result}


def _by_name(phases: object, where: str) -> dict[str, dict[str, Any]]:
    """Phases by their name, in their order."""
    listed = phases if isinstance(phases, list) else [phases]
    by_name = {
        p["name"]: p for p in listed if isinstance(p, dict) and isinstance(p.get("name"), str)
    }
    if len(by_name) != len(listed):
        raise refusal([(where, "must be a list of phases, each with a name of its own")])
    return by_name


def _outside(change: Mapping[str, Any]) -> Iterator[Problem]:
    yield from ((path("patch", key), OUTSIDE[key]) for key in change if key in OUTSIDE)


def _fixed(spec: Mapping[str, Any], change: Mapping[str, Any]) -> Iterator[Problem]:
    return _moved(spec, change, {**FIXED_OF_THE_JOB, **FIXED}, "patch")


def _fixed_in_phases(
    spec: Mapping[str, Any],
    phases: Mapping[str, Mapping[str, Any]],
    changes: Mapping[str, Mapping[str, Any]],
) -> Iterator[Problem]:
    for i, (name, change) in enumerate(changes.items()):
        if name in phases:
            yield from _moved(merged(spec, phases[name]), change, FIXED, "patch", "phases", i)
        else:
            names = ", ".join(phases)
            yield (
                path("patch", "phases", i, "name"),
                f"phases cannot be added or renamed while the job runs; there is {names}",
            )


def _moved(
    old: Mapping[str, Any],
    change: Mapping[str, Any],
    fixed: Mapping[tuple[str, ...], str],
    *under: PathPart,
) -> Iterator[Problem]:
    """Fixed places whose value the change would change, also by taking away what they are in."""
    new = merged(old, change)
    for place, why in fixed.items():
        if at(new, place, UNSET.get(place)) != at(old, place, UNSET.get(place)):
            yield path(*under, *place), why


def at(mapping: Mapping[str, Any], place: Iterable[PathPart], otherwise: object) -> object:
    """The value at this place of the mapping, `otherwise` if there is none."""
    value: object = mapping
    for key in place:
        if not isinstance(value, Mapping) or key not in value:
            return otherwise
        value = value[key]
    return value
