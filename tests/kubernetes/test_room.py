"""Which nodes have room for slots that were scaled away: those that could take a pod of the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from everstep.backends.kubernetes import names, object_fields
from everstep.backends.kubernetes.avoided_nodes import (
    NodesToAvoid,
    keep_off,
    patch_of_held,
    rule_for,
)
from everstep.backends.kubernetes.room import isolated_for, may_take
from everstep.core.recovering.placement import Need, fits
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.conftest import OWN_NODES
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.testbed.api import Api
from tests.testbed.machines import Machines

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOST = "kubernetes.io/hostname"


def node(*taints: tuple[str, str, str], **labels: str) -> dict[str, Any]:
    keys = ("key", "value", "effect")
    spec = {"taints": [dict(zip(keys, taint, strict=True)) for taint in taints]}
    return {"metadata": {"name": "n1", "labels": {HOST: "h1", **labels}}, "spec": spec}


def pod(*, avoided: NodesToAvoid | None = None, **spec: Any) -> dict[str, Any]:
    """As a worker stores it. `avoided`: nodes that were isolated when it was created."""
    annotations = {}
    if avoided is not None:
        spec = json.loads(json.dumps(spec))
        keep_off(spec, avoided)
        annotations[names.KEEPS_OFF] = avoided.fingerprint
    whole = {"metadata": {"name": "p", "annotations": annotations}, "spec": spec}
    return object_fields.trimmed(whole, object_fields.POD)


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


OWN_RULE = affinity(expression(HOST, "NotIn", "h1"))
OWN_FIELD = affinity(
    {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}
)
"""A term of the pod template by a field of a node."""
EMPTY_OR_POOL = affinity({"matchExpressions": []}, expression("pool", "Exists"))

LONG = ".".join(["n" * 60] * 2)
"""A name that a node may have and a label may not."""


@pytest.mark.parametrize(
    ("nodes", "rule"),
    [
        ({"n1": {HOST: "h1"}}, NodesToAvoid(hosts={"h1"}, names=set())),
        ({"n1": {"pool": "a"}}, NodesToAvoid(hosts=set(), names={"n1"})),
        ({"n1": None}, NodesToAvoid(hosts={"n1"}, names=set())),
        ({LONG: None}, NodesToAvoid(hosts=set(), names={LONG})),
        ({LONG: {HOST: "h1"}}, NodesToAvoid(hosts={"h1"}, names=set())),
        ({"bad name!": None, "": None, "x" * 254: None}, NodesToAvoid(hosts=set(), names=set())),
    ],
)
def test_a_node_is_kept_off_in_words_that_the_api_server_takes(
    nodes: Mapping[str, Mapping[str, str] | None], rule: NodesToAvoid
) -> None:
    assert rule_for(nodes) == rule


GPU = ("dedicated", "gpu", "NoSchedule")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (node(), pod(), True),
        (node(pool="a"), pod(nodeSelector={"pool": "a"}), True),
        (node(pool="b"), pod(nodeSelector={"pool": "a"}), False),
        (node(), pod(nodeSelector={"pool": "a"}), False),
        (node(GPU), pod(), False),
        (node(("dedicated", "gpu", "PreferNoSchedule")), pod(), True),
        (node(GPU), pod(tolerations=[{"operator": "Exists"}]), True),
        (node(GPU), pod(tolerations=[{"key": "dedicated", "value": "gpu"}]), True),
        (node(GPU), pod(tolerations=[{"key": "dedicated", "value": "cpu"}]), False),
        (node(GPU), pod(tolerations=[{"key": "dedicated", "operator": "Exists"}]), True),
        (node(GPU), pod(tolerations=[{"operator": "Exists", "effect": "NoExecute"}]), False),
        (node(GPU), pod(tolerations=[{"key": "other", "operator": "Exists"}]), False),
        (node(pool="a"), pod(affinity=affinity(expression("pool", "In", "a", "b"))), True),
        (node(pool="c"), pod(affinity=affinity(expression("pool", "In", "a", "b"))), False),
        (node(pool="a"), pod(affinity=affinity(expression("pool", "NotIn", "a"))), False),
        (node(), pod(affinity=affinity(expression("pool", "Exists"))), False),
        (node(), pod(affinity=affinity(expression("pool", "DoesNotExist"))), True),
        (node(cores="9"), pod(affinity=affinity(expression("cores", "Gt", "8"))), True),
        (node(cores="9"), pod(affinity=affinity(expression("cores", "Lt", "8"))), False),
        (node(cores="many"), pod(affinity=affinity(expression("cores", "Gt", "8"))), False),
        (
            node(pool="b"),
            pod(affinity=affinity(expression("pool", "In", "a"), expression("pool", "In", "b"))),
            True,
        ),
        (
            node(),
            pod(
                affinity=affinity(
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
                )
            ),
            False,
        ),
        (node(), pod(affinity=affinity(expression(HOST, "NotIn", "h1"))), False),
        (node(), pod(avoided=NodesToAvoid(hosts=["h1", "h2"])), True),
        (node(), pod(avoided=NodesToAvoid(names=["n1", "n2"])), True),
        (node(), pod(avoided=NodesToAvoid(hosts=["h1"], names=["n1", "n2"])), True),
        (node(), pod(affinity=OWN_RULE, avoided=NodesToAvoid(hosts=["h2"])), False),
        (node(), pod(affinity=OWN_RULE, avoided=NodesToAvoid(names=["n2"])), False),
        (node(), pod(affinity=OWN_RULE, avoided=NodesToAvoid(hosts=["h1"])), False),
        (node(), pod(affinity=OWN_FIELD, avoided=NodesToAvoid(hosts=["h2"])), False),
        (node(), pod(affinity=OWN_FIELD, avoided=NodesToAvoid(names=["n2", "n3"])), False),
        (node(), pod(affinity=affinity({})), False),  # an empty term fits no node
        (node(), pod(affinity=affinity({}), avoided=NodesToAvoid(hosts=["h2"])), False),
        (node(), pod(affinity=EMPTY_OR_POOL, avoided=NodesToAvoid(names=["n2"])), False),
        (node(pool="a"), pod(affinity=EMPTY_OR_POOL, avoided=NodesToAvoid(hosts=["h2"])), True),
        (node(), pod(affinity={"podAntiAffinity": {}}), True),
        (node(), pod(affinity=affinity(expression("pool", "Near", "a"))), True),
    ],
)
def test_a_node_has_room_for_a_pod_that_its_labels_and_taints_let_in(
    one: dict[str, Any], other: dict[str, Any], expected: bool
) -> None:
    assert may_take(one, other) is expected


def test_a_pod_that_a_queue_held_while_nodes_were_isolated_shows_room_on_them_once_released() -> (
    None
):
    templates: list[dict[str, Any]] = [{}, {"affinity": affinity(expression(HOST, "NotIn", "h3"))}]
    for spec in templates:
        held = pod(avoided=NodesToAvoid(hosts=["h1"]), **spec)
        held["metadata"] |= {"uid": "u", "resourceVersion": "1"}
        for isolated in (["h1", "h2"], ["h4"]):
            patch = patch_of_held(held, NodesToAvoid(hosts=isolated))
            assert patch is not None
            held["metadata"]["annotations"] |= patch["metadata"]["annotations"]
            held["spec"] |= patch["spec"]
        assert may_take(node(), held)
        excluded = node()
        excluded["metadata"]["labels"][HOST] = "h3"
        assert may_take(excluded, held) is (not spec)


def test_a_pod_that_no_node_fits_keeps_off_isolated_nodes_as_it_is() -> None:
    held = pod(affinity=affinity({}))
    held["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    assert patch_of_held(held, NodesToAvoid(hosts=["h1"], names=["n1"])) is None


async def test_only_nodes_that_could_take_a_pod_of_the_job_have_room_for_one(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    """The namespace gives its pods one kind of node, and a cordoned one gets none."""
    job = KubernetesRun(lab, id="room", env=NEVER_ENDS)
    await job.launch()
    other, cordoned = f"{namespace}-other", f"{namespace}-2"
    labels = {other: {OWN_NODES: "of-nobody"}}

    async def rooms() -> dict[str, bool]:
        views = await lab.backend.nodes(job.ref)
        return {view.name: fits(view, Need()) for view in views if view.name.startswith(namespace)}

    async with machines.nodes(labels):
        await until(lambda: lab.backend.watch.node(other) is not None)
        first_nodes = {f"{namespace}-{number}": True for number in range(3)}
        assert await rooms() == {**first_nodes, other: False}
        assert other in {view.name for view in await lab.backend.nodes() if fits(view, Need())}
        await api.patch(f"/api/v1/nodes/{cordoned}", {"spec": {"unschedulable": True}})

        async def is_full() -> bool:
            return not (await rooms())[cordoned]

        await until(is_full)
    await api.patch(f"/api/v1/nodes/{cordoned}", {"spec": {"unschedulable": False}})
    await job.gone()


def test_of_isolated_nodes_a_wait_names_those_that_would_take_the_pod() -> None:
    nodes = [
        {**(one := node(zone=zone)), "metadata": {**one["metadata"], "name": name}}
        for name, zone in (("n2", "a"), ("n1", "a"), ("other-zone", "b"), ("in-use", "a"))
    ]
    isolated = ("n1", "n2", "other-zone", "was-removed")
    waiting = pod(nodeSelector={"zone": "a"})
    assert isolated_for(waiting, nodes, isolated) == ("n1", "n2")
    assert isolated_for(waiting, nodes, ()) == ()
