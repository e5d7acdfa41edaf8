"""The NetworkPolicies of deploy/: which connections they let through, and that each rule is needed.

No network here enforces them, so this file reads them as the API documents it. The pods are those of the
manifests and of jobs, with the labels and ports that they have in a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.backends.kubernetes import manifest, names, network
from tests.kubernetes.test_manifest import pod
from tests.testbed.api import Json
from tests.testbed.operator import TRY

NAME_OF_NAMESPACE = "kubernetes.io/metadata.name"
"""A label that the API server sets on each namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A pod as NetworkPolicies select it."""

    namespace: str
    labels: Mapping[str, str]

    @property
    def namespace_labels(self) -> Mapping[str, str]:
        return {NAME_OF_NAMESPACE: self.namespace}


def lets_through(policies: Sequence[Json], source: Peer, target: Peer, port: int) -> bool:
    """Whether these policies allow a TCP connection between two pods."""
    may_leave = _is_allowed(policies, "Egress", source, target, port)
    return may_leave and _is_allowed(policies, "Ingress", target, source, port)


def _is_allowed(
    policies: Sequence[Json], direction: str, selected: Peer, other: Peer, port: int
) -> bool:
    """A pod that no policy of this direction selects is open."""
    of_pod = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == selected.namespace
        and direction in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], selected.labels)
    ]
    if not of_pod:
        return True
    peers = {"Ingress": "from", "Egress": "to"}[direction]
    return any(
        _is_of_rule(rule, peers, selected.namespace, other) and _has_port(rule, port)
        for policy in of_pod
        for rule in policy["spec"].get(direction.lower()) or ()
    )


def _is_of_rule(rule: Json, peers: str, namespace: str, other: Peer) -> bool:
    """Whether one of the peers of the rule is this pod. A rule without any is for all."""
    listed = rule.get(peers) or ()
    return not listed or any(_is_peer(one, namespace, other) for one in listed)


def _is_peer(peer: Json, namespace: str, other: Peer) -> bool:
    assert peer.keys() <= {"podSelector", "namespaceSelector"}, peer
    if "namespaceSelector" in peer:
        is_there = _selects(peer["namespaceSelector"], other.namespace_labels)
    else:
        is_there = other.namespace == namespace
    return is_there and _selects(peer.get("podSelector") or {}, other.labels)


def _has_port(rule: Json, port: int) -> bool:
    listed = rule.get("ports") or ()
    assert all({"protocol": "TCP", **one}.keys() == {"protocol", "port"} for one in listed), listed
    return not listed or any(one["port"] == port for one in listed)


def _selects(selector: Json, labels: Mapping[str, str]) -> bool:
    by_value = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in by_value.items()) and all(
        _holds(one, labels) for one in selector.get("matchExpressions") or ()
    )


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    value, listed = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in listed,
        "NotIn": value not in listed,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


# -- What the manifests have ------------------------------------------------------------------------


def objects(folder: Path) -> Iterator[Json]:
    """The objects of a kustomization, and of those that it names, in its namespace."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for name in kustomization["resources"]:
        path = folder / name
        if path.is_dir():
            yield from objects(path)
            continue
        for one in yaml.safe_load_all(path.read_text()):
            one["metadata"].setdefault("namespace", kustomization.get("namespace"))
            yield one


OBJECTS = [*objects(TRY)]
JOB, OTHER_JOB = "demo", "other"


def policies_of_jobs(namespace: str, *jobs: str) -> Iterator[Json]:
    """Those that the workers make."""
    for job in jobs:
        owner = {"name": names.record(job), "uid": "0"}
        policy = network.job_policy(job, books="abc123", owner=owner, workers_in=WORKER.namespace)
        yield {**policy, "metadata": {**policy["metadata"], "namespace": namespace}}


def made_by(kind: str, name: str) -> tuple[Peer, Mapping[str, int]]:
    """A pod of this object, and its ports by their names."""
    [one] = [o for o in OBJECTS if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    template = one["spec"]["template"]
    [container] = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    peer = Peer(namespace=one["metadata"]["namespace"], labels=template["metadata"]["labels"])
    return peer, ports


WORKER, WORKER_PORTS = made_by("Deployment", "everstep-worker")
SETTING_UP, _ = made_by("Job", "everstep-setup")
TEMPORAL, TEMPORAL_PORTS = made_by("Deployment", "temporal")
JOB_POD = pod()
[TRAIN] = JOB_POD["spec"]["containers"]
[AGENT_PORT] = [one["containerPort"] for one in TRAIN["ports"]]
JOBS = "everstep-jobs"
"""The namespace of jobs that name none. Another one is made of the same manifests."""
TEAM = "team-a"
RANK = Peer(namespace=JOBS, labels=JOB_POD["metadata"]["labels"])
OTHER_RANK = replace(RANK, labels={**RANK.labels, **names.labels("abc123", OTHER_JOB)})
TEAM_RANK = replace(RANK, namespace=TEAM)
PLAIN_RANK = replace(RANK, namespace="plain")
"""A rank in a namespace without the policy of deploy/job-namespace."""
BARE_RANK = replace(RANK, labels={**RANK.labels, **names.labels("abc123", "bare")})
BARE_TEAM_RANK = replace(BARE_RANK, namespace=TEAM)
"""Of a job whose own policy was deleted."""
OF_DEPLOY = [one for one in OBJECTS if one["kind"] == "NetworkPolicy"]
[OF_NAMESPACE] = [one for one in OF_DEPLOY if one["metadata"]["namespace"] == JOBS]
NEEDED = [
    *OF_DEPLOY,
    {**OF_NAMESPACE, "metadata": {**OF_NAMESPACE["metadata"], "namespace": TEAM}},
    *policies_of_jobs(PLAIN_RANK.namespace, JOB),
]
POLICIES = [*NEEDED, *policies_of_jobs(JOBS, JOB, OTHER_JOB), *policies_of_jobs(TEAM, JOB)]
STRANGER = Peer(namespace=JOBS, labels={"app": "another"})
FAR_STRANGER = replace(STRANGER, namespace="elsewhere")
FALSE_WORKER = Peer(namespace="elsewhere", labels=WORKER.labels)
"""A pod of another namespace with the labels of a worker."""
MONITOR = Peer(namespace="monitoring", labels={"app": "prometheus"})
MASTER_PORT, UI, METRICS = 20_000, TEMPORAL_PORTS["ui"], WORKER_PORTS["metrics"]
GRPC = TEMPORAL_PORTS["grpc"]


SPOOFED_LABELS = {
    name: value for name, value in WORKER.labels.items() if not name.startswith(names.PREFIX)
}
IN_DISGUISE = Peer(
    namespace=WORKER.namespace,
    labels=pod({"metadata": {"labels": SPOOFED_LABELS}})["metadata"]["labels"],
)
"""A rank of a job whose template gives its pods those labels of the workers that a template may give."""

Connection = tuple[Peer, Peer, int]

USED: Mapping[str, Connection] = {
    "a worker and its agents": (WORKER, RANK, AGENT_PORT),
    "a worker and agents of another namespace": (WORKER, TEAM_RANK, AGENT_PORT),
    "ranks of a job": (RANK, RANK, MASTER_PORT),
    "ranks of a job in a namespace of its own": (TEAM_RANK, TEAM_RANK, MASTER_PORT),
    "ranks of a job in a plain namespace": (PLAIN_RANK, PLAIN_RANK, MASTER_PORT),
    "a worker and an agent in a plain namespace": (WORKER, PLAIN_RANK, AGENT_PORT),
    "a worker and an agent whose job has no policy": (WORKER, BARE_RANK, AGENT_PORT),
    "a worker and an agent of a team whose job has no policy": (WORKER, BARE_TEAM_RANK, AGENT_PORT),
    "a worker and its server": (WORKER, TEMPORAL, GRPC),
    "the set-up and its server": (SETTING_UP, TEMPORAL, GRPC),
    "a worker and what is elsewhere: the API server, DNS, another server": (
        *(WORKER, FAR_STRANGER),
        443,
    ),
    "a rank and data elsewhere": (RANK, FAR_STRANGER, 443),
    "a scrape of metrics": (MONITOR, WORKER, METRICS),
}
REFUSED: Mapping[str, Connection] = {
    "ranks of two jobs": (OTHER_RANK, RANK, MASTER_PORT),
    "a rank and an agent of another job": (OTHER_RANK, RANK, AGENT_PORT),
    "ranks of two jobs in a plain namespace": (
        *(replace(OTHER_RANK, namespace=PLAIN_RANK.namespace), PLAIN_RANK),
        MASTER_PORT,
    ),
    "another pod and an agent in a plain namespace": (
        *(replace(STRANGER, namespace=PLAIN_RANK.namespace), PLAIN_RANK),
        AGENT_PORT,
    ),
    "another pod and a rank in a plain namespace": (
        *(replace(STRANGER, namespace=PLAIN_RANK.namespace), PLAIN_RANK),
        MASTER_PORT,
    ),
    "a false worker and an agent in a plain namespace": (FALSE_WORKER, PLAIN_RANK, AGENT_PORT),
    "a worker and a rank in a plain namespace": (WORKER, PLAIN_RANK, MASTER_PORT),
    "another pod beside the workers and an agent in a plain namespace": (
        *(replace(STRANGER, namespace=WORKER.namespace), PLAIN_RANK),
        AGENT_PORT,
    ),
    "ranks of a job without a policy": (BARE_RANK, BARE_RANK, MASTER_PORT),
    "another pod and an agent whose job has no policy": (STRANGER, BARE_RANK, AGENT_PORT),
    "another pod of a team and an agent whose job has no policy": (
        *(replace(STRANGER, namespace=TEAM), BARE_TEAM_RANK),
        AGENT_PORT,
    ),
    "a false worker and an agent whose job has no policy": (FALSE_WORKER, BARE_RANK, AGENT_PORT),
    "a false worker and an agent of a team whose job has no policy": (
        *(FALSE_WORKER, BARE_TEAM_RANK),
        AGENT_PORT,
    ),
    "another pod beside the workers and an agent whose job has no policy": (
        *(replace(STRANGER, namespace=WORKER.namespace), BARE_RANK),
        AGENT_PORT,
    ),
    "another pod beside the workers and an agent of a team whose job has no policy": (
        *(replace(STRANGER, namespace=WORKER.namespace), BARE_TEAM_RANK),
        AGENT_PORT,
    ),
    "a worker and a rank whose job has no policy": (WORKER, BARE_RANK, MASTER_PORT),
    "a worker and a rank of a team whose job has no policy": (WORKER, BARE_TEAM_RANK, MASTER_PORT),
    "a rank and the metrics": (RANK, WORKER, METRICS),
    "another pod and the metrics": (FAR_STRANGER, WORKER, METRICS),
    "another pod beside the workers and the metrics": (
        *(replace(STRANGER, namespace=WORKER.namespace), WORKER),
        METRICS,
    ),
    "what scrapes and another port of a worker": (MONITOR, WORKER, GRPC),
    "another pod and an agent": (STRANGER, RANK, AGENT_PORT),
    "another pod and a rank": (STRANGER, RANK, MASTER_PORT),
    "another pod and an agent of another namespace": (STRANGER, TEAM_RANK, AGENT_PORT),
    "another pod and a rank of its namespace": (
        *(replace(STRANGER, namespace=TEAM), TEAM_RANK),
        MASTER_PORT,
    ),
    "a pod elsewhere and an agent": (FAR_STRANGER, TEAM_RANK, AGENT_PORT),
    "a false worker and an agent": (FALSE_WORKER, RANK, AGENT_PORT),
    "a false worker and an agent of another namespace": (FALSE_WORKER, TEAM_RANK, AGENT_PORT),
    "a worker and a rank": (WORKER, RANK, MASTER_PORT),
    "a worker and a rank of another namespace": (WORKER, TEAM_RANK, MASTER_PORT),
    "jobs of two namespaces": (RANK, TEAM_RANK, MASTER_PORT),
    "a job and an agent of another namespace": (RANK, TEAM_RANK, AGENT_PORT),
    "a rank in disguise and an agent of another namespace": (IN_DISGUISE, TEAM_RANK, AGENT_PORT),
    "a rank and the server": (RANK, TEMPORAL, GRPC),
    "a rank in disguise and the server": (IN_DISGUISE, TEMPORAL, GRPC),
    "another pod and the server": (STRANGER, TEMPORAL, GRPC),
    "another pod beside the server and the server": (
        *(replace(STRANGER, namespace=TEMPORAL.namespace), TEMPORAL),
        GRPC,
    ),
    "a false worker and the server": (FALSE_WORKER, TEMPORAL, GRPC),
    "a worker and the pages of the server": (WORKER, TEMPORAL, UI),
}


def wrong(policies: Sequence[Json]) -> list[str]:
    """The connections that these policies decide otherwise than they should."""
    cut = [name for name, one in USED.items() if not lets_through(policies, *one)]
    return cut + [name for name, one in REFUSED.items() if lets_through(policies, *one)]


def test_policies_let_through_what_the_system_uses_and_nothing_else_to_agents_and_server() -> None:
    assert wrong(POLICIES) == []


def test_the_ports_are_those_that_the_system_listens_at() -> None:
    assert AGENT_PORT == manifest.PORT
    [worker] = [
        o for o in OBJECTS if o["kind"] == "Deployment" and o["metadata"]["name"] != "temporal"
    ]
    [container] = worker["spec"]["template"]["spec"]["containers"]
    settings = {one["name"]: one.get("value", "") for one in container["env"]}
    assert settings["EVERSTEP_METRICS_ADDRESS"].endswith(f":{METRICS}")


def smaller() -> Iterator[tuple[str, list[Json]]]:
    """The policies without one that is needed, or one of its rules, of their peers, of a peer's limits."""
    for policy in NEEDED:
        name = f"{policy['metadata']['namespace']}/{policy['metadata']['name']}"
        rest = [one for one in POLICIES if one is not policy]
        yield name, rest
        for path in _paths(policy["spec"]["ingress"]):
            changed = deepcopy(policy)
            *way, last = path
            place = changed["spec"]["ingress"]
            for step in way:
                place = place[step]
            del place[last]
            yield f"{name}: {'.'.join(map(str, path))}", [*rest, changed]


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    """Each place below, from the outside in; of a peer whole selectors, and of these each expression."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in entries:
        yield (key,)
        if isinstance(one, dict | list) and key not in ("matchLabels", "ports"):
            is_expression = isinstance(one, dict) and "operator" in one
            inner = () if is_expression else _paths(one)
            yield from ((key, *rest) for rest in inner)


CHANGES = dict(smaller())


@pytest.mark.parametrize("change", CHANGES)
def test_a_connection_shows_that_a_part_of_a_policy_is_missing(change: str) -> None:
    assert wrong(CHANGES[change])
