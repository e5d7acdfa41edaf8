"""The rule in the affinity of a pod that keeps it off isolated nodes. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.names import KEEPS_OFF

HOSTNAME = "kubernetes.io/hostname"
"""A label that most nodes have. Autoscalers take it, which do not take the name of a node."""
NAME = "metadata.name"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesToAvoid:
    """Nodes on which a pod may not land: by their host names, or by their own if they have none."""

    hosts: Collection[str] = ()
    names: Collection[str] = ()

    def __bool__(self) -> bool:
        return bool(self.hosts or self.names)

    @property
    def fingerprint(self) -> str:
        """A hash of these nodes, for an annotation of the pods that avoid them; empty: there are none."""
        if not self:
            return ""
        words = (*sorted(self.hosts), *(f"{name}/" for name in sorted(self.names)))
        return hashlib.sha256(",".join(words).encode()).hexdigest()[:16]


LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""What the API server takes as the value of a label."""
_PART = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
NODE_NAME = re.compile(rf"(?=.{{1,253}}$){_PART}(\.{_PART})*")


def rule_for(nodes: Mapping[str, Mapping[str, str] | None]) -> NodesToAvoid:
    """The nodes as affinity names them, by the labels of each; None: the cluster has no such node now.

    A node that is absent may come back with the host name that most nodes have, its own name. The name of a
    node may be longer than a label: then only a field can name it. No node can have any other name.
    """
    labels = {
        name: ({HOSTNAME: name} if LABEL.fullmatch(name) else {}) if of is None else of
        for name, of in nodes.items()
    }
    return NodesToAvoid(
        hosts={of[HOSTNAME] for of in labels.values() if HOSTNAME in of},
        names={
            name for name, of in labels.items() if HOSTNAME not in of and NODE_NAME.fullmatch(name)
        },
    )


def keep_off(spec: Json, nodes: NodesToAvoid) -> None:
    """Let the pod land on none of these nodes, whatever else the template requires of nodes."""
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault(_REQUIRED, {})
    template_terms = required.get("nodeSelectorTerms")
    terms = required.setdefault("nodeSelectorTerms", [{}])
    # A node has to fit one of them. With a rule an empty one, which fits no node, would fit most.
    for term in terms if template_terms is None else terms_that_fit(template_terms):
        if nodes.hosts:
            rule = _not_in(HOSTNAME, sorted(nodes.hosts))
            term["matchExpressions"] = [*term.get("matchExpressions", []), rule]
        if nodes.names:  # a field takes one value
            rules = [_not_in(NAME, [name]) for name in sorted(nodes.names)]
            term["matchFields"] = [*term.get("matchFields", []), *rules]


def prefer_others(spec: Json, names: Collection[str]) -> None:
    """Have the scheduler prefer other nodes: the pod lands on these where no other one takes it."""
    fields = [_not_in(NAME, [name]) for name in sorted(names) if NODE_NAME.fullmatch(name)]
    if not fields:
        return
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    term = {"weight": 100, "preference": {"matchFields": fields}}
    affinity[_PREFERRED] = [*affinity.get(_PREFERRED, []), term]


def patch_of_held(pod: Json, nodes: NodesToAvoid) -> Json | None:
    """A patch with which a pod that has no node yet keeps off these too. None: it keeps off them anyway.

    The API server takes only rules that are added to those that a pod with scheduling gates has.
    """
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required: Json = deepcopy(affinity.get(_REQUIRED, {}))
    terms = terms_that_fit(required.get("nodeSelectorTerms", ()))
    if required and not terms:  # no node fits
        return None
    fitting = terms or [{}]
    hosts = set.intersection(*(_kept_off(term, "matchExpressions", HOSTNAME) for term in fitting))
    names = set.intersection(*(_kept_off(term, "matchFields", NAME) for term in fitting))
    if hosts.issuperset(nodes.hosts) and names.issuperset(nodes.names):
        return None
    both = NodesToAvoid(hosts=hosts.union(nodes.hosts), names=names.union(nodes.names))
    metadata = pod["metadata"]
    same = {key: metadata[key] for key in ("uid", "resourceVersion")}
    fingerprints = " ".join(
        filter(None, (both.fingerprint, metadata.get("annotations", {}).get(KEEPS_OFF)))
    )
    spec: Json = {"affinity": {"nodeAffinity": {_REQUIRED: required}}}
    keep_off(spec, both)
    return {"metadata": {**same, "annotations": {KEEPS_OFF: fingerprints}}, "spec": spec}


def terms_that_fit(terms: Sequence[Json]) -> list[Json]:
    """Without those that are empty: such a term fits no node."""
    return [one for one in terms if one.get("matchExpressions") or one.get("matchFields")]


def _kept_off(term: Mapping[str, Any], field: str, key: str) -> set[str]:
    """The values that a node may not have for this key."""
    rules = [rule for rule in term.get(field) or () if _are_of([rule], key)]
    return {value for rule in rules for value in rule["values"]}


def without_rules(term: Mapping[str, Any], fingerprints: str) -> Mapping[str, Any]:
    """The term without what `keep_off` appended for each fingerprint. All else is the template's."""
    for fingerprint in fingerprints.split():  # the newest first
        term = _without_rule(term, fingerprint)
    return term


def _without_rule(term: Mapping[str, Any], fingerprint: str) -> Mapping[str, Any]:
    """The term without the rules that `keep_off` appended for the nodes of this fingerprint, if any.

    A fingerprint is a hash of the nodes. So the ends of the two lists are tried until their nodes have it:
    each number of last rules for names, with the last rule for host names and without it.
    """
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    hosts = expressions[-1]["values"] if _are_of(expressions[-1:], HOSTNAME) else []
    for count in range(len(fields) + 1):
        own_fields = fields[len(fields) - count :]
        if not _are_of(own_fields, NAME) and count:
            break
        names = [field["values"][0] for field in own_fields]
        for own_hosts in (hosts, []):
            if NodesToAvoid(hosts=own_hosts, names=names).fingerprint == fingerprint:
                return {
                    **term,
                    "matchExpressions": expressions[:-1] if own_hosts else expressions,
                    "matchFields": fields[: len(fields) - count],
                }
    return term


def _not_in(key: str, values: Sequence[str]) -> Json:
    return {"key": key, "operator": "NotIn", "values": [*values]}


def _are_of(rules: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Whether there are such rules, all of them for this key."""
    return bool(rules) and all((r["key"], r["operator"]) == (key, "NotIn") for r in rules)
