"""A job on a real control plane: placed, started, recovered and gone, whichever worker does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

from everstep.backends.kubernetes.api import Json, KubernetesApi
from everstep.core.world import PodState
from everstep.protocol import wire
from tests.backends.lab import left_on, uids_of
from tests.backends.resuming import commands_to, resumed
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import objects_of, until
from tests.testbed.api import Api
from tests.testbed.machines import Machines


async def test_a_job_of_two_pods_trains_to_its_end_and_leaves_only_its_books(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="ends", env={"STEPS": "20"})
    await job.launch()
    assert await objects_of(api, namespace, "ends") == {
        "pods/ends-0-g1",
        "pods/ends-1-g1",
        "podgroups/ends-g1",
        "secrets/everstep-agent-ends",
        "configmaps/everstep-job-ends",
    }
    ended = await job.see(
        lambda news: len(news.pods) == 2 and all(pod.state == PodState.EXITED for pod in news.pods)
    )
    assert {pod.run.step for pod in ended.pods} == {20}
    await job.gone()
    assert await objects_of(api, namespace, "ends") == {"configmaps/everstep-job-ends"}


async def test_a_rank_that_crashes_is_restarted_in_the_pods_that_there_are(
    lab: KubernetesLab,
) -> None:
    job = KubernetesRun(lab, id="crashes", env=NEVER_ENDS)
    await job.launch()
    before = uids_of(await job.step(15))
    lab.end_rank("crashes", 1, code=3)
    assert (await job.fact("process.exit")).slot == 1
    await job.again("restart-1")
    after = await job.step(30)
    assert uids_of(after) == before
    await job.gone()


async def test_a_restart_sends_one_request_between_the_end_of_the_old_ranks_and_the_new(
    lab: KubernetesLab,
) -> None:
    job = KubernetesRun(lab, id="one-request", env=NEVER_ENDS)
    await job.launch()
    await job.step(15)
    await job.new_generation("restart-1")
    await job.stop()
    commands = commands_to(lab.backend.agent_cluster.agents)
    result = await resumed(job)
    assert (result.end, result.resume is not None) == ("done", True)
    assert commands == [wire.FENCE]
    await job.gone()


async def test_another_worker_goes_on_in_the_middle_of_a_recovery(lab: KubernetesLab) -> None:
    job = KubernetesRun(lab, id="handed-over", env=NEVER_ENDS)
    await job.launch()
    before = uids_of(await job.step(15))
    await job.new_generation("restart-1")
    await job.stop()
    await lab.another_worker()
    job.cursor = ""
    await job.again("restart-1")
    assert job.generation == 2
    assert uids_of(await job.step(30)) == before
    await lab.another_worker()
    await job.gone()


async def test_the_pod_of_a_node_that_lost_power_is_replaced_elsewhere_and_the_others_stay(
    lab: KubernetesLab, api: Api, machines: Machines
) -> None:
    job = KubernetesRun(lab, id="node-lost", env=NEVER_ENDS)
    await job.launch()
    before = await job.step(15)
    node = next(pod.node for pod in before.pods if pod.slot == 1)
    await machines.fault("node-crash", node=node)
    await api.delete(f"/api/v1/nodes/{node}")  # an operator or the cloud states that it is gone
    await job.fact("node.down")
    await job.new_generation("restart-1")
    await job.stop()
    placed = await job.place(recreate=(1,), avoid=(node,))
    assert placed.pods[1].node != node
    await job.fence()
    saved = await lab.backend.checkpoints(job.ref)
    await job.start(next(checkpoint for checkpoint in saved if checkpoint.good))
    after = await job.step(30)
    assert uids_of(after, [0]) == uids_of(before, [0])
    assert uids_of(after, [1]) != uids_of(before, [1])
    await job.gone()


async def test_what_a_job_terminated_by_force_left_is_found_and_removed_by_another_worker(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="terminated", env=NEVER_ENDS)
    await job.launch()
    await lab.another_worker()
    (left,) = (one for one in await left_on(lab) if one.id == "terminated")
    await job.until_done(lambda: lab.backend.ensure_gone(left))
    assert await objects_of(api, namespace, "terminated") == {"configmaps/everstep-job-terminated"}
    assert left not in await left_on(lab)


@dataclass
class Rounds:
    """How often requests to the API server began while none was under way: so many follow one another.

    Those about PodGroups are beside the others, which do not wait for one: they have no round of their own.
    """

    count: int = 0
    under_way: int = 0
    groups_answered: int = 0
    groups_answered_before_the_pod: int = -1

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        request = KubernetesApi._request

        async def counted(api: KubernetesApi, *words: Any, **options: Any) -> Json:
            method, path = words[:2]
            if "/podgroups" in path:
                answer = await request(api, *words, **options)
                self.groups_answered += 1
                return answer
            if method == "POST" and path.endswith("/pods"):
                self.groups_answered_before_the_pod = self.groups_answered
            self.count += not self.under_way
            self.under_way += 1
            try:
                return await request(api, *words, **options)
            finally:
                self.under_way -= 1

        monkeypatch.setattr(KubernetesApi, "_request", counted)


async def test_a_pod_is_replaced_after_few_requests_that_follow_one_another(
    lab: KubernetesLab, machines: Machines, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = KubernetesRun(lab, id="replaced", env=NEVER_ENDS)
    await job.launch()
    await job.step(15)
    await machines.fault("container-kill", namespace=namespace, pod="replaced-1-g1")
    await job.fact("pod.exited")
    await job.new_generation("restart-1")
    await job.stop()
    (rounds := Rounds()).watch(monkeypatch)
    order = job.place_order(recreate=(1,))
    assert not (await job.backend.ensure_placed(order)).placed
    # Record and isolated nodes; the wanted pods; the new pod, end of the old one and Secret; its uid.
    assert rounds.count == 4
    assert rounds.groups_answered_before_the_pod == 0
    await job.place(recreate=(1,))
    rounds.count = 0
    assert (await job.backend.ensure_placed(order)).placed
    assert rounds.count == 1
    monkeypatch.undo()
    await job.gone()


async def test_a_look_at_a_quiet_job_reads_its_record_once(
    lab: KubernetesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = KubernetesRun(lab, id="quiet", env={"STEPS": "1"})
    await job.launch()
    await job.see(lambda news: {pod.state for pod in news.pods} == {PodState.EXITED})
    await job.quiet()
    paths: list[str] = []
    get = KubernetesApi.get

    async def counted(
        api: KubernetesApi, path: str, query: Mapping[str, str] = MappingProxyType({})
    ) -> Json:
        paths.append(path)
        return await get(api, path, query)

    monkeypatch.setattr(KubernetesApi, "get", counted)
    await job.observe_now()
    assert [path.rpartition("/")[2] for path in paths] == ["everstep-job-quiet"]
    await job.gone()


async def test_a_pod_that_no_node_can_take_says_so_in_the_words_of_the_scheduler(
    lab: KubernetesLab,
) -> None:
    job = KubernetesRun(lab, id="too-large")
    await job.new_generation("launch")
    order = job.place_order()
    spec = dict(order.pod_template["spec"])
    large = {"name": "train", "resources": {"requests": {"cpu": "1000"}}}
    spec["containers"] = [{**spec["containers"][0], **large}]
    waits: list[str] = []

    async def is_reported() -> bool:
        state = await lab.backend.ensure_placed(
            job.place_order(pod_template={"spec": spec}, recreate=())
        )
        assert not state.placed
        waits.append(state.waiting_for)
        return "Insufficient cpu" in state.waiting_for

    await until(is_reported)
    await job.gone()
