"""The promises of `backends/base.py`, held against a real control plane.

They are the tests of tests/backends/contract; `ELSEWHERE` names those that make no sense here, and why.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.backends.contract import (
    test_fences,
    test_generations,
    test_observing,
    test_places,
    test_prefetches,
    test_records,
    test_signs_of_life,
    test_spares,
    test_standbys,
    test_starts,
    test_stops,
)
from tests.backends.lab import NODES, Run
from tests.kubernetes import rights
from tests.kubernetes.conftest import OWN_NODES
from tests.kubernetes.jobs import KubernetesLab
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess, until_pods_can_be_created
from tests.testbed.machines import Machines

_NODES = "which node a slot gets is the scheduler's choice: lost nodes are in test_lost_pods.py"
_DEVICES = "a pod gets a number of devices, not some of them, and no fault of one is rehearsed"
_PENDING = "a pod without a node keeps off the nodes that were isolated when it was created"
_QUEUE = "the scheduler of the cluster decides who waits for what"
_GANG = "a gang without a place waits as pods that have no node: test_gangs.py"
_VOLUME = "no pod lives any more, and only in pods the volume is reached"
_CLAIMS = (
    "volumes are those of an order to place, so that it is refused there: test_folder_claims.py"
)

PROMISES: tuple[ModuleType, ...] = (
    test_fences,
    test_generations,
    test_observing,
    test_places,
    test_prefetches,
    test_records,
    test_signs_of_life,
    test_spares,
    test_standbys,
    test_starts,
    test_stops,
)
"""The contract tests of this cluster, without test_repairs: devices alone are neither healed nor checked."""

ELSEWHERE: Mapping[str, str] = {
    "test_without_proof_the_fence_holds_when_its_time_has_passed": _NODES,
    "test_a_proof_ends_the_wait_for_the_fence": _NODES,
    "test_without_a_place_for_the_fence_only_proof_counts": _NODES,
    "test_a_folder_belongs_to_one_living_job": _CLAIMS,
    "test_a_folder_in_or_around_one_of_a_living_job_is_refused": _CLAIMS,
    "test_a_new_job_begins_above_the_fence_it_finds_in_its_folders": _VOLUME,
    "test_the_same_cursor_brings_the_same_facts_in_the_same_order": _DEVICES,
    "test_a_silent_slot_is_shown_as_last_heard_of": _NODES,
    "test_a_lost_node_is_told_and_shown": _NODES,
    "test_nodes_are_all_there_in_a_stable_order": _NODES,
    "test_pods_are_made_for_all_slots_or_for_none": _GANG,
    "test_nobody_gets_an_isolated_device_until_it_is_released": _DEVICES,
    "test_the_mark_of_a_device_has_the_newest_reason": _DEVICES,
    "test_nodes_and_devices_to_avoid_are_avoided": _DEVICES,
    "test_a_waiting_order_is_served_when_there_is_room": _QUEUE,
    "test_restarted_jobs_are_served_first_then_priority_then_the_order_of_asking": _QUEUE,
    "test_a_failing_check_says_where_and_whose_fault": _DEVICES,
    "test_what_is_recorded_is_there_once_however_often_and_late_it_comes": _VOLUME,
    "test_what_is_recorded_is_there_once_whichever_pods_live": _VOLUME,
    "test_what_a_device_shows_is_movement_while_everything_else_is_still": _DEVICES,
    "test_io_and_the_use_of_devices_are_told_of_each_slot_by_itself": _DEVICES,
    "test_a_pod_whose_node_is_lost_stands_by_no_more": _NODES,
    "test_a_pod_on_a_node_that_is_isolated_stands_by_no_more": _PENDING,
    "test_a_job_that_waits_for_places_comes_before_a_pod_that_stands_by": _QUEUE,
    "test_a_spare_is_checked_before_anything_breaks": _DEVICES,
    "test_a_spare_gives_way_to_a_restarted_job_that_has_no_other_place": _QUEUE,
    "test_a_new_job_waits_beside_a_spare": _QUEUE,
    "test_a_slot_that_does_not_answer_stays_pending": _NODES,
    "test_no_checkpoint_is_listed_nor_set_aside_where_no_agent_answers": _NODES,
    "test_a_slot_on_a_node_proven_lost_counts_as_stopped": _NODES,
}

_promises = {
    name: test
    for module in PROMISES
    for name, test in vars(module).items()
    if name.startswith("test_")
}
assert _promises.keys() >= ELSEWHERE.keys(), ELSEWHERE.keys() - _promises.keys()
globals().update({name: test for name, test in _promises.items() if name not in ELSEWHERE})


@pytest.fixture(scope="module")
async def machines(
    cluster: ClusterAccess, api: Api, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Machines]:
    """The five nodes of the contract, by the names that it uses."""
    machines = await Machines.start(cluster, tmp_path_factory.mktemp("machines") / "one")
    try:
        for number in range(NODES):
            await machines.add_node(f"n{number}", labels={OWN_NODES: namespace})
        yield machines
    finally:
        machines.stop()
        await api.delete_all("/api/v1/nodes", labelSelector=f"{OWN_NODES}={namespace}")


@pytest.fixture
async def lab(  # everything is real, also the rights of a worker
    cluster: ClusterAccess,
    api: Api,
    namespace: str,
    machines: Machines,  # the nodes
    tmp_path: Path,
) -> AsyncIterator[KubernetesLab]:
    """A namespace for each test: the same job ID is new to each of them."""
    name = f"contract-{secrets.token_hex(4)}"
    annotations = {"scheduler.alpha.kubernetes.io/node-selector": f"{OWN_NODES}={namespace}"}
    await api.create("/api/v1/namespaces", {"metadata": {"name": name, "annotations": annotations}})
    await until_pods_can_be_created(api, name)
    async with rights.of_workers(cluster, api, name, tmp_path / "kubeconfig") as kubeconfig:
        lab = await KubernetesLab.open(kubeconfig, name, tmp_path / "storage")
        try:
            yield lab
        finally:
            await lab.backend.close()
            await api.delete_all(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds="1")


@pytest.fixture
def job(lab: KubernetesLab) -> Run:
    """A job of two slots."""
    return Run(lab, slots=(0, 1))
