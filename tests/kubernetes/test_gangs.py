"""Pods of a job start together or not at all, by the PodGroups of the cluster or without them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from everstep.backends.kubernetes.api import KubernetesApi, Unreachable
from everstep.core.errors import BackendUnavailable
from everstep.core.world import PlaceState
from tests.backends.lab import nodes_of, uids_of
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.conftest import OWN_NODES
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import made, until
from tests.kubernetes.site import Site
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api, Json
from tests.testbed.machines import Machines

ALL = (0, 1, 2, 3)


def whole_nodes(lab: KubernetesLab) -> dict[str, Any]:
    """A template whose pods take a node each."""
    spec = lab.pod["pod_template"]["spec"]
    train = {**spec["containers"][0], "resources": {"requests": {"cpu": "8"}}}
    return {"spec": {**spec, "containers": [train]}}


async def pods_of(api: Api, namespace: str, job: str) -> list[Json]:
    path = f"/api/v1/namespaces/{namespace}/pods"
    pods: list[Json] = (await api.get(path, labelSelector=f"everstep.dev/job={job}"))["items"]
    return pods


async def bound(api: Api, namespace: str, job: str) -> list[str]:
    """The pods of a job that have a node."""
    pods = await pods_of(api, namespace, job)
    return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]


async def uids(api: Api, namespace: str, job: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in await pods_of(api, namespace, job)}


async def groups(api: Api, namespace: str, job: str) -> dict[str, int]:
    """The size of each PodGroup of a job, without those that are being deleted."""
    path = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/podgroups"
    items: list[Json] = (await api.get(path, labelSelector=f"everstep.dev/job={job}"))["items"]
    return {
        one["metadata"]["name"]: one["spec"]["schedulingPolicy"]["gang"]["minCount"]
        for one in items
        if "deletionTimestamp" not in one["metadata"]
    }


async def until_refused(job: KubernetesRun, **changes: Any) -> PlaceState:
    """The answer once the scheduler has refused the gang."""
    states: list[PlaceState] = []

    async def is_refused() -> bool:
        state = await job.backend.ensure_placed(job.place_order(**changes))
        states.append(state)
        return "nodes are available" in state.waiting_for

    await until(is_refused)
    return states[-1]


@asynccontextmanager
async def another_node(machines: Machines, namespace: str, name: str) -> AsyncIterator[str]:
    node = f"{namespace}-{name}"
    async with machines.nodes({node: {OWN_NODES: namespace}}):
        yield node


async def test_a_gang_of_four_waits_for_a_fourth_node_and_holds_none_meanwhile(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    job = KubernetesRun(lab, id="four", slots=ALL, env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.stop()
    state = await until_refused(job)
    assert (state.placed, state.places) == (False, None)
    assert "0/" in state.waiting_for
    assert await bound(api, namespace, "four") == []
    assert await groups(api, namespace, "four") == {"four-g1": 4}
    async with another_node(machines, namespace, "fourth"):
        placed = await job.place()
        assert len(nodes_of(placed)) == 4
        await job.fence()
        await job.start()
        before = await job.step(1)
        # A single pod is made anew: it waits for no other one and needs no group.
        await job.new_generation("restart")
        await job.stop()
        await job.place(recreate=(1,))
        await job.fence()
        await job.start()
        after = await job.step(5)
        staying = (0, 2, 3)
        assert uids_of(after, staying) == uids_of(before, staying)
        assert uids_of(after, [1]) != uids_of(before, [1])
        assert await groups(api, namespace, "four") == {}
        await job.gone()
        assert await groups(api, namespace, "four") == {}


async def test_a_gang_whose_group_exceeds_a_quota_creates_no_pods_until_there_is_one(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """Pods without their group could not be scheduled, and would take quota from a gang that can."""
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    hard = {"count/podgroups.scheduling.k8s.io": "0"}
    job = KubernetesRun(lab, id="groupless", slots=(0, 1), env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.stop()
    async with made(api, quotas, {"metadata": {"name": "none"}, "spec": {"hard": hard}}) as quota:

        async def is_counted() -> bool:
            return "hard" in (await api.get(quota)).get("status", {})

        await until(is_counted)
        for _ in range(2):
            state = await lab.backend.ensure_placed(job.place_order())
            assert "exceeded quota: none" in state.waiting_for
        assert await pods_of(api, namespace, "groupless") == []
    placed = await job.place()
    assert len(nodes_of(placed)) == 2
    await job.gone()


async def test_a_smaller_gang_takes_the_place_of_a_larger_one_and_grows_when_a_node_comes(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    job = KubernetesRun(lab, id="elastic", slots=ALL, env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.stop()
    await until_refused(job)
    refused = await uids(api, namespace, "elastic")
    three = {"slots": ALL[:3], "recreate": ALL[:3]}
    await job.place(**three)
    # The scheduler backs off from what it refused: in a group of their own new pods need not wait for that.
    assert await groups(api, namespace, "elastic") == {"elastic-g1-1": 3}
    assert not refused & await uids(api, namespace, "elastic")
    before = await bound(api, namespace, "elastic")
    assert len(before) == 3
    await job.new_generation("grow")
    await job.stop()
    await until_refused(job, recreate=(3,))
    assert await bound(api, namespace, "elastic") == before
    async with another_node(machines, namespace, "fourth"):
        await job.place(recreate=(3,))
        assert len(await bound(api, namespace, "elastic")) == 4
        await job.gone()


class Killed:
    """Requests of a worker that is killed at one of its writes: before it is sent, or before its answer."""

    def __init__(self, at: int, *, is_answered: bool) -> None:
        self.writes_left = at
        self.is_answered = is_answered

    async def __call__(self, api: KubernetesApi, method: str, *words: Any, **options: Any) -> Json:
        self.writes_left -= method != "GET"
        if self.writes_left > 0:
            return await REQUEST(api, method, *words, **options)
        if self.writes_left == 0 and self.is_answered:
            self.writes_left -= 1
            await REQUEST(api, method, *words, **options)
        raise Unreachable("this worker was killed")


REQUEST = KubernetesApi._request


@pytest.mark.long
@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_worker_killed_at_any_write_of_a_smaller_order_leaves_one_group(
    lab: KubernetesLab,
    api: Api,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_answered: bool,
) -> None:
    """With a scheduler, and PodGroups that stay until their pods end: the quick test of it has neither."""
    three = {"slots": ALL[:3], "recreate": ALL[:3]}
    for write in itertools.count(1):
        job = KubernetesRun(
            lab, id=f"{'answer' if is_answered else 'request'}-{write}", slots=ALL, env=NEVER_ENDS
        )
        await job.new_generation("launch")
        await job.stop()
        await until_refused(job)
        refused = await uids(api, namespace, job.id)
        killed = Killed(write, is_answered=is_answered)
        with monkeypatch.context() as patched:
            patched.setattr(
                KubernetesApi, "_request", lambda *a, killed=killed, **k: killed(*a, **k)
            )
            with contextlib.suppress(BackendUnavailable):
                await job.place(**three)
        await lab.another_worker()
        placed = await job.place(**three)
        assert len(nodes_of(placed)) == 3
        assert await groups(api, namespace, job.id) == {f"{job.id}-g1-1": 3}
        new = await uids(api, namespace, job.id)
        assert len(new) == 3
        assert not new & refused
        await job.gone()
        if killed.writes_left > 0:  # it had no further write
            break
    assert write > 5


async def one_after_the_other(
    api: Api, namespace: str, jobs: list[tuple[KubernetesRun, Json]]
) -> None:
    """Place all jobs at once; whichever has its places gives them to the next."""

    async def place(job: KubernetesRun, template: Json) -> KubernetesRun:
        await job.place(pod_template=template)
        assert len(await bound(api, namespace, job.id)) == len(job.slots)
        return job

    waiting = {asyncio.create_task(place(job, template)) for job, template in jobs}
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task.result().gone()


@asynccontextmanager
async def halves_of_a_pool(
    machines: Machines, namespace: str, pool: str
) -> AsyncIterator[list[str]]:
    """Four nodes; two of them are the first gang's and two the second's until `open_all`."""
    labels_of = {
        f"{namespace}-{pool}-{number}": {OWN_NODES: namespace, f"{pool}-{half}": "yes"}
        for number, half in enumerate("aabb")
    }
    async with machines.nodes(labels_of):
        yield list(labels_of)


async def open_all(api: Api, pool: str, nodes: list[str]) -> None:
    labels = {f"{pool}-a": "yes", f"{pool}-b": "yes"}
    for node in nodes:
        await api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})


@pytest.mark.parametrize("uses_pod_groups", [True, False])
async def test_gangs_that_fit_only_one_after_the_other_never_deadlock(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str, uses_pod_groups: bool
) -> None:
    """Three pods each, on four nodes of which each gang sees two at first: without groups each holds them."""
    lab.settings = replace(lab.settings, uses_pod_groups=uses_pod_groups, gang_s=600.0)
    await lab.another_worker()
    pool = f"pool-{uses_pod_groups}".lower()
    async with halves_of_a_pool(machines, namespace, pool) as nodes:
        jobs = {}
        for half in ("a", "b"):
            template = whole_nodes(lab)
            template["spec"]["nodeSelector"] = {f"{pool}-{half}": "yes"}
            job = KubernetesRun(lab, id=f"{pool}-{half}", slots=(0, 1, 2), env=NEVER_ENDS)
            jobs[half] = (job, template)
            await job.new_generation("launch")
            await until_refused(job, pod_template=template)
            held = 0 if uses_pod_groups else 2

            async def holds_its_half(name: str = job.id, count: int = held) -> bool:
                return len(await bound(api, namespace, name)) == count

            await until(holds_its_half)  # a node may still be about to become ready
        await open_all(api, pool, nodes)
        if not uses_pod_groups:
            lab.settings = replace(lab.settings, gang_s=3.0)
            await lab.another_worker()
        await one_after_the_other(api, namespace, list(jobs.values()))


async def test_without_groups_pods_that_hold_places_for_nothing_give_them_back(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    lab.settings = replace(lab.settings, uses_pod_groups=False, gang_s=2.0)
    await lab.another_worker()
    job = KubernetesRun(lab, id="holds", slots=ALL)
    await job.new_generation("launch")
    waits: set[str] = set()
    held: list[int] = []

    async def are_given_back() -> bool:
        state = await lab.backend.ensure_placed(job.place_order())
        waits.add(state.waiting_for)
        held.append(len(await bound(api, namespace, "holds")))
        return 3 in held and held[-1] == 0

    await until(are_given_back)
    assert any("given back" in wait for wait in waits), waits
    assert not (await job.observe_now()).facts, "the job did that itself"
    await job.gone()


async def test_a_job_whose_place_never_comes_ends_with_the_words_of_the_scheduler(
    site: Site, worker: WorkerProcess
) -> None:
    assert worker.pid
    site.submit("never", more={"nodes": 4, "limits": {"queue_s": 6}})
    await until(lambda: site.status("never")["waiting_for"])
    await until(lambda: site.status("never")["state"] in {"failed", "completed"})
    why = site.everstep("why", "never")
    assert "found no place for 4 slots" in why
    assert "nodes are available" in why


@pytest.mark.long
async def test_an_elastic_job_goes_on_with_three_nodes_and_grows_again(
    site: Site, worker: WorkerProcess, api: Api, machines: Machines, namespace: str
) -> None:
    assert worker.pid
    node = f"{namespace}-lost"
    await machines.add_node(node, labels={OWN_NODES: namespace})
    more = {"nodes": {"min": 3, "wanted": 4}, "limits": {"spare_s": 2}}
    site.submit("shrinks", more=more, STEPS="100000", STEP_S="0.05")

    def living() -> int:
        status = site.status("shrinks")
        pods = [pod for pod in status["pods"] if pod["state"] == "running"]
        return len(pods) if status["state"] == "running" else 0

    await until(lambda: living() == 4)
    await machines.fault("node-crash", node=node)
    await api.delete(f"/api/v1/nodes/{node}")
    await until(lambda: living() == 3)
    async with another_node(machines, namespace, "new"):
        await until(lambda: living() == 4)
        levels = [
            one["level"] for one in json.loads(site.everstep("restarts", "shrinks", "--json"))
        ]
        assert levels[-2:] == ["elastic", "elastic"]
        site.everstep("stop", "shrinks")
        await until(lambda: site.status("shrinks")["state"] == "stopped")
