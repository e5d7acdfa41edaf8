"""Whether a node could take another pod of a job, by what its pods require of nodes. Pure.

The scheduler looks at more: what else runs on the node, for one. A node that is refused here it refuses too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.avoided_nodes import terms_that_fit, without_rules

_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

Expression = Mapping[str, Any]


def may_take(node: Json, pod: Json) -> bool:
    """Whether the labels and taints of the node let a pod like this one there.

    `pod` is as the API server stores it: an admission plugin may have added to what the template says.
    """
    labels = _labels(node)
    selector: Mapping[str, str] = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    if any(not _is_tolerated(taint, pod) for taint in node["spec"].get("taints") or ()):
        return False
    terms = _terms(pod)
    return terms is None or any(_fits(term, node) for term in terms)


def isolated_for(pod: Json, nodes: Iterable[Json], isolated: Collection[str]) -> tuple[str, ...]:
    """Those of the isolated nodes that are there and could take the pod once they are released."""
    could = (node for node in nodes if node["metadata"]["name"] in isolated and may_take(node, pod))
    return tuple(sorted(node["metadata"]["name"] for node in could))


def _labels(node: Json) -> Mapping[str, str]:
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    return labels


def _is_tolerated(taint: Mapping[str, str], pod: Json) -> bool:
    if taint["effect"] not in _KEEPS_AWAY:
        return True
    return any(_tolerates(one, taint) for one in pod["spec"].get("tolerations") or ())


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    """An operator that is not known here counts as one that does."""
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    operator = toleration.get("operator") or "Equal"
    if not toleration.get("key"):
        return operator == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    return operator != "Equal" or toleration.get("value", "") == taint.get("value", "")


def _terms(pod: Json) -> Sequence[Mapping[str, Any]] | None:
    """The terms of which a node has to fit one; None: there are none."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get(_REQUIRED)
    if required is None:
        return None
    fingerprints = pod["metadata"].get("annotations", {}).get(names.KEEPS_OFF)
    terms = terms_that_fit(required["nodeSelectorTerms"])
    # Nodes that were isolated when the pod was created, or held back: the next pod keeps off others.
    return [without_rules(term, fingerprints) for term in terms] if fingerprints else terms


def _fits(term: Mapping[str, Any], node: Json) -> bool:
    fields = {"metadata.name": node["metadata"]["name"]}
    return all(
        _holds(expression, values)
        for key, values in (("matchExpressions", _labels(node)), ("matchFields", fields))
        for expression in term.get(key) or ()
    )


def _holds(expression: Expression, values: Mapping[str, str]) -> bool:
    """Of an operator that is not known here too."""
    value, listed = values.get(expression["key"]), expression.get("values") or ()
    holds = _OPERATORS.get(expression["operator"])
    return holds is None or holds(value, listed)


def _is_greater(value: str | None, listed: Sequence[str]) -> bool:
    return value is not None and _number(value) > _number(listed[0])


def _is_less(value: str | None, listed: Sequence[str]) -> bool:
    return value is not None and _number(value) < _number(listed[0])


def _number(text: str) -> float:
    """Not a number for other text: nothing is greater or less."""
    try:
        return int(text)
    except ValueError:
        return float("nan")


_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, listed: value in listed,
    "NotIn": lambda value, listed: value not in listed,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _is_greater,
    "Lt": _is_less,
}
