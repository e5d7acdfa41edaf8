"""Pods that never come to be: replaced at once where they failed, named with the reason where they wait."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import STORAGE, KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api, ApiError


def with_first_container(lab: KubernetesLab, script: str) -> dict[str, Any]:
    """The lab's template with a container that has to end well before the one of the agent."""
    spec = lab.pod["pod_template"]["spec"]
    mounts = [{"name": "storage", "mountPath": STORAGE}]
    first = {
        "name": "prepare",
        "image": "machine",
        "command": ["sh", "-c", script],
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {"spec": {**spec, "initContainers": [first]}}


async def test_a_pod_that_fails_before_its_agent_answered_is_replaced_at_once(
    lab: KubernetesLab,
) -> None:
    job = KubernetesRun(lab, id="fails-once", env=NEVER_ENDS)
    template = with_first_container(lab, f"mkdir {STORAGE}/first || exit 0; exit 7")
    await job.new_generation("launch")
    await job.stop()
    await job.until_done(
        lambda: lab.backend.ensure_placed(job.place_order(pod_template=template)), within_s=60.0
    )
    await job.fence()
    await job.start()
    await job.step(5)
    assert (lab.folder / "first").exists()
    assert not job.facts
    await job.gone()


async def test_pods_that_always_fail_are_named_with_the_reason_and_made_ever_later(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="fails", slots=(0,))
    template = with_first_container(lab, "exit 7")
    await job.new_generation("launch")
    order = job.place_order(pod_template=template)
    uids: set[str] = set()
    waits: set[str] = set()

    async def has_failed_thrice() -> bool:
        state = await lab.backend.ensure_placed(order)
        assert not state.placed
        waits.add(state.waiting_for)
        path = f"/api/v1/namespaces/{namespace}/pods"
        pods = (await api.get(path, labelSelector="everstep.dev/job=fails"))["items"]
        uids.update(pod["metadata"]["uid"] for pod in pods)
        return any("failed 3 times" in wait for wait in waits)

    began = await lab.backend.clock()
    await until(has_failed_thrice)
    assert any(wait.endswith("prepare exit code 7") for wait in waits), waits
    assert len(uids) >= 3
    assert await lab.backend.clock() - began > 1.0, "the third one had to wait"
    await job.gone()


async def test_a_failed_pod_leaves_its_last_words_and_is_kept_until_its_successor_is_due(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="kept", slots=(0,))
    template = with_first_container(lab, "echo no token >&2; exit 7")
    await job.new_generation("launch")
    order = job.place_order(pod_template=template)
    path = f"/api/v1/namespaces/{namespace}/pods/kept-0-g1"

    async def is_kept() -> bool:
        state = await lab.backend.ensure_placed(order)
        if state.start_failures < 3:
            return False
        assert state.waiting_for.endswith("prepare exit code 7, no token")
        with contextlib.suppress(ApiError):  # between two pods
            pod = await api.get(path)
            is_deleted = "deletionTimestamp" in pod["metadata"]
            return bool(pod["status"]["phase"] == "Failed" and not is_deleted)
        return False

    await until(is_kept)
    await job.gone()


async def test_a_job_whose_pods_always_fail_ends_with_their_last_words(
    site: Site, worker: WorkerProcess, worker_kubeconfig: str, namespace: str
) -> None:
    assert worker.pid
    site.env |= {
        "EVERSTEP_KUBECONFIG": worker_kubeconfig,
        "EVERSTEP_KUBE_NAMESPACE": namespace,
    }
    mounts = [{"name": "storage", "mountPath": STORAGE}]
    prepare = {
        "name": "prepare",
        "image": "machine",
        "command": ["sh", "-c", "echo no token >&2; exit 7"],
        "volumeMounts": mounts,
    }
    site.submit("never", pod={"initContainers": [prepare]}, train={}, STEPS="10")
    await until(lambda: site.status("never")["state"] == "failed")
    reason = site.status("never")["reason"]
    assert "failed 4 times before its agent answered" in reason
    assert "prepare exit code 7, no token" in reason
    assert "no token" in site.everstep("events", "never")
    assert "no token" in site.everstep("why", "never")
    assert "no token" in site.everstep("logs", "never", code=3)


async def test_a_container_that_fails_beside_the_ranks_is_in_the_status(
    site: Site, worker: WorkerProcess, worker_kubeconfig: str, namespace: str
) -> None:
    """The ranks go on without what it does: no rank ends with it."""
    assert worker.pid
    site.env |= {
        "EVERSTEP_KUBECONFIG": worker_kubeconfig,
        "EVERSTEP_KUBE_NAMESPACE": namespace,
    }
    logger = {"name": "logger", "image": "machine", "command": ["sh", "-c", "sleep 1; exit 3"]}
    site.submit("beside", sidecars=[logger], STEPS="100000")

    def has_warning() -> bool:
        return [row["kind"] for row in site.status("beside")["warnings"]] == ["sidecar"]

    await until(has_warning)
    status = site.status("beside")
    assert status["state"] == "running"
    message = status["warnings"][0]["message"]
    assert "beside the ranks of slot" in message
    assert "logger (exit code 3)" in message
    assert message in " ".join(site.everstep("status", "beside").split())
    assert "logger (exit code 3)" in site.everstep("events", "beside")
    site.everstep("stop", "beside", "--grace-s", "0")
    await until(lambda: site.status("beside")["state"] == "stopped")


async def test_a_pod_that_a_controller_deletes_each_time_counts_as_a_failed_start(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="unwanted", slots=(0,))
    template = with_first_container(lab, "exec sleep 1000")
    await job.new_generation("launch")
    order = job.place_order(pod_template=template)
    path = f"/api/v1/namespaces/{namespace}/pods/unwanted-0-g1"
    waits: set[str] = set()

    async def has_failed_twice() -> bool:
        state = await lab.backend.ensure_placed(order)
        with contextlib.suppress(ApiError):
            await api.delete(path, gracePeriodSeconds=1)
        waits.add(state.waiting_for)
        return state.start_failures >= 2

    await until(has_failed_twice)
    assert any("it was deleted" in wait for wait in waits), waits
    await job.gone()


async def test_an_image_that_cannot_be_pulled_is_named_within_ten_seconds(
    lab: KubernetesLab,
) -> None:
    job = KubernetesRun(lab, id="no-image", slots=(0,))
    await job.new_generation("launch")
    order = job.place_order(image="absent.example.test/trainer:1")
    began = await lab.backend.clock()

    async def is_named() -> bool:
        return "Image" in (await lab.backend.ensure_placed(order)).waiting_for

    await until(is_named)
    assert await lab.backend.clock() - began < 10.0
    await job.gone()
