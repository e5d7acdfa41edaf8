"""Objects of a job that a person deletes: the job goes on, or the refusal names what is gone."""

from __future__ import annotations

import json

import pytest

from everstep.core.errors import WrongCluster
from tests.backends.lab import uids_of
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.machines import Machines


async def resumed(job: KubernetesRun, key: str, *, recreate: tuple[int, ...]) -> None:
    """A restart that makes new pods for these slots."""
    await job.new_generation(key)
    await job.stop(slots=tuple(set(job.slots) - set(recreate)))
    await job.place(recreate=recreate)
    await job.fence()
    saved = await job.backend.checkpoints(job.ref)
    await job.start(next(checkpoint for checkpoint in saved if checkpoint.good))


async def test_a_deleted_pod_is_replaced_at_once_while_its_agent_still_answers(
    site: Site, worker: WorkerProcess, api: Api, namespace: str
) -> None:
    """Its ranks ignore the kubelet's request to end, so its agent lives for all of its grace time."""
    assert worker.pid
    site.submit("by-hand", STEPS="120", STEP_S="0.05", IGNORES_SIGTERM="yes")
    await until((site.storage / "by-hand" / "checkpoints" / "step-40.json").exists)
    before = uids_by_slot(site, "by-hand")
    await api.delete(f"/api/v1/namespaces/{namespace}/pods/by-hand-1-g1")
    await until(lambda: site.status("by-hand")["state"] in {"completed", "failed"})
    status, after = site.status("by-hand"), uids_by_slot(site, "by-hand")
    assert status["state"] == "completed"
    [record] = json.loads(site.everstep("restarts", "by-hand", "--json"))
    assert (record["fault"]["kind"], record["level"]) == ("pod.deleted", "pod")
    assert after[0] == before[0]
    assert after[1] != before[1]


def uids_by_slot(site: Site, job: str) -> dict[int, str]:
    return {pod["slot"]: pod["uid"] for pod in site.status(job)["pods"]}


async def test_without_its_secret_a_job_goes_on_with_the_pods_it_has(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    """The worker that talks with its agents writes the Secret again: new pods have to trust old ones."""
    job = KubernetesRun(lab, id="secret", env=NEVER_ENDS)
    await job.launch()
    before = await job.step(15)
    secret = f"/api/v1/namespaces/{namespace}/secrets/everstep-agent-secret"
    data = (await api.get(secret))["data"]
    await api.delete(secret)
    await machines.fault(
        "container-kill", namespace=namespace, pod="secret-1-g1", container="train"
    )
    await job.fact("agent.gone")
    await resumed(job, "restart-1", recreate=(1,))
    assert uids_of(await job.step(30), [0]) == uids_of(before, [0])
    assert (await api.get(secret))["data"] == data
    await job.gone()


async def test_without_its_secret_and_its_worker_a_job_goes_on_in_new_pods(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="no-secret", env=NEVER_ENDS)
    await job.launch()
    await job.step(15)
    await api.delete(f"/api/v1/namespaces/{namespace}/secrets/everstep-agent-no-secret")
    await lab.another_worker()
    job.cursor = ""
    state = await lab.backend.ensure_generation(job.ref, "restart-1")
    assert state == 2
    await resumed(job, "restart-1", recreate=job.slots)
    await job.step(30)
    await job.gone()


@pytest.mark.short_fence
async def test_without_its_record_a_job_is_refused_by_its_name_until_it_is_adopted(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """The API server removes what the ConfigMap owned: the pods and the Secret."""
    job = KubernetesRun(lab, id="record", env=NEVER_ENDS)
    job.books = await lab.backend.identity()
    await job.launch()
    await job.again("restart-1")
    await job.step(15)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await api.delete(f"/api/v1/namespaces/{namespace}/configmaps/everstep-job-record")

    async def no_pod_is_left() -> bool:
        return not (await api.get(pods, labelSelector="everstep.dev/job=record"))["items"]

    await until(no_pod_is_left)
    with pytest.raises(
        WrongCluster, match=r"ConfigMap everstep-job-record .* everstep adopt record"
    ):
        await lab.backend.ensure_generation(job.ref, "restart-2", above=2)
    assert await lab.backend.ensure_adopted(job.ref, generation=2) == job.books
    job.generation = await lab.backend.ensure_generation(job.ref, "restart-2", above=2)
    assert job.generation == 3
    await job.stop()
    await job.place()
    await job.fence()
    saved = await job.backend.checkpoints(job.ref)
    await job.start(next(checkpoint for checkpoint in saved if checkpoint.good))
    await job.step(20)
    await job.gone()
