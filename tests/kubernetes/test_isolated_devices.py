"""Isolated devices of a cluster, whose pods request a number of devices and not some of them.

That no pod gets such a node is in test_templates.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from everstep.backends.kubernetes.books import isolated_nodes, isolations
from everstep.backends.kubernetes.node_views import node_view
from everstep.core.errors import ClusterRefused
from everstep.core.recovering.placement import Need, fits
from tests.kubernetes.jobs import KubernetesLab

PLUGINS = {"nvidia": "nvidia.com/gpu"}
GPUS = {"nvidia.com/gpu": "2"}


def node(name: str = "n1", **allocatable: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    status = {"conditions": [ready], "allocatable": allocatable}
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status}


def test_a_node_that_no_device_is_isolated_of_has_room() -> None:
    view = node_view(node(**GPUS), {"n2/0": "broken"}, {}, PLUGINS)
    assert (view.isolated, [d.isolated for d in view.devices]) == (False, [None, None])
    assert fits(view, Need(accelerators=2))
    assert fits(view, Need())


def test_an_isolated_device_is_shown_by_itself_and_keeps_its_node_free() -> None:
    view = node_view(node(**GPUS), {"n1/1": "broken"}, {}, PLUGINS)
    assert (view.isolated, [d.isolated for d in view.devices]) == (False, [None, "broken"])
    assert not fits(view, Need(accelerators=1))
    assert not fits(view, Need())


@pytest.mark.parametrize("allocatable", [{}, GPUS], ids=["no devices", "fewer devices"])
def test_a_device_that_the_cluster_does_not_show_is_shown_as_its_node(
    allocatable: dict[str, str],
) -> None:
    view = node_view(node(**allocatable), {"n1/7": "broken"}, {}, PLUGINS)
    assert (view.isolated, view.reason) == (True, "broken")


def test_codes_that_an_observer_lists_are_shown_also_of_a_device_that_the_cluster_gives_to_no_pod() -> (
    None
):
    view = node_view(node(**GPUS), {}, {}, PLUGINS, {1: ("77",), 7: ("79", "80")})
    assert view.lists_codes
    assert [(d.index, d.health, d.codes) for d in view.devices] == [
        (0, "ok", ()),
        (1, "ok", ("77",)),
        (7, "faulty", ("79", "80")),
    ]
    assert not node_view(node(**GPUS), {}, {}, PLUGINS).lists_codes


async def test_a_node_is_isolated_until_all_that_isolates_it_is_released(
    lab: KubernetesLab, namespace: str
) -> None:
    api, backend = lab.backend._api, lab.backend
    for name in ("n1/0", "n1", "n1/3"):
        await backend.ensure_isolated(name, reason=f"broken {name}")
    for name in ("n1/3", "n1"):
        await backend.ensure_released(name)
        await backend.ensure_released(name)
        assert await isolated_nodes(api, namespace) == {"n1"}
    assert await isolations(api, namespace) == {"n1/0": "broken n1/0"}
    await backend.ensure_released("n1/0")
    assert await isolated_nodes(api, namespace) == set()


async def test_a_node_with_the_longest_name_is_isolated_and_released(
    lab: KubernetesLab, namespace: str
) -> None:
    """A key of a ConfigMap is as long as a name of a node may be, and says more than the name."""
    name = ".".join(["n" * 50] * 4 + ["x" * 49])
    assert len(name) == 253
    for what in (name, f"{name}/3"):
        await lab.backend.ensure_isolated(what, reason="broken\nlink")
        assert await isolations(lab.backend._api, namespace) == {what: "broken\nlink"}
        await lab.backend.ensure_released(what)
        assert await isolations(lab.backend._api, namespace) == {}


@pytest.mark.parametrize("name", ["bad name!", "n1"], ids=["name", "size"])
async def test_what_the_cluster_cannot_store_is_refused_for_good(
    lab: KubernetesLab, namespace: str, name: str
) -> None:
    """A ConfigMap has room for 1 MiB."""
    large = "x" * 600_000
    await lab.backend.ensure_isolated("n2", reason=large)
    with pytest.raises(ClusterRefused):
        await lab.backend.ensure_isolated(name, reason=large)
    for each in (name, "n2"):
        await lab.backend.ensure_released(each)
    assert await isolations(lab.backend._api, namespace) == {}
