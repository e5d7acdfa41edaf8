"""A job from `everstep submit` to its end, its ranks in pods of a real control plane."""

from __future__ import annotations

import json
from typing import Any

from everstep.chronicle import record_rows
from tests.kubernetes.conftest import worker_process
from tests.kubernetes.objects import objects_of, until
from tests.kubernetes.site import Site
from tests.support.devserver import DevServer
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.machines import Machines


async def test_a_submitted_job_survives_a_crash_and_a_killed_worker_and_leaves_no_pod(
    site: Site, worker: WorkerProcess, api: Api, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    site.submit("survives", STEPS="150", STEP_S="0.05", CRASH_AT_STEP="1:40:3")
    await until((site.storage / "survives" / "checkpoints" / "step-80.json").exists)
    there = {one["metadata"]["name"] for one in (await api.get(pods))["items"]}
    assert there == {"survives-0-g1", "survives-1-g1"}  # restarted in place
    worker.kill9()
    await worker.start()
    await until(lambda: site.status("survives")["state"] == "completed")
    status = site.status("survives")
    assert status["restarts"] == 1
    assert (site.storage / "survives" / "checkpoints" / "step-150.json").exists()

    async def no_pod_is_left() -> bool:
        return not (await api.get(pods))["items"]

    await until(no_pod_is_left)
    [run_log] = (site.storage / "survives").glob("*/run.log")
    assert run_log.read_text().count("restart 1: started") == 1


async def test_a_job_that_is_terminated_by_force_leaves_its_record_alone(
    site: Site, worker: WorkerProcess, server: DevServer, api: Api, namespace: str
) -> None:
    site.submit("forced", STEPS="1000000", STEP_S="0.1")
    await until((site.storage / "forced" / "checkpoints" / "step-10.json").exists)
    whole = await objects_of(api, namespace, "forced")
    kinds = {one.partition("/")[0] for one in whole}
    assert kinds == {"configmaps", "podgroups", "pods", "secrets"}
    client = await server.connect(site.env["TEMPORAL_NAMESPACE"])
    await client.get_workflow_handle("forced").terminate(reason="by hand")

    async def only_the_record_is_left() -> bool:
        left = await objects_of(api, namespace, "forced")
        return left == {"configmaps/everstep-job-forced"}

    await until(only_the_record_is_left)


async def test_two_workers_at_once_make_each_recovery_once_and_one_goes_on_alone(
    site: Site,
    worker: WorkerProcess,
    worker_kubeconfig: str,
    machines: Machines,
    namespace: str,
) -> None:
    second = worker_process(site, worker_kubeconfig, namespace, home="second")
    await second.start()
    saved = site.storage / "shared" / "checkpoints"
    kill = {"namespace": namespace, "container": "train"}
    try:
        site.submit("shared", STEPS="300", STEP_S="0.1")
        await until((saved / "step-20.json").exists)
        await machines.fault("container-kill", pod="shared-1-g1", **kill)
        await until(lambda: len(restarts(site, "shared")) == 1)
        await until((saved / "step-100.json").exists)  # progress: the next one is a first one again
        await machines.fault("container-kill", pod="shared-0-g1", **kill)
        await until(lambda: site.status("shared")["generation"] > 2 or is_recovering(site))
        worker.kill9()  # whichever of the two is about to do the next step
        await until(lambda: site.status("shared")["state"] == "completed")
    finally:
        second.kill9()
    levels = [(one["level"], record_rows.result(one)) for one in restarts(site, "shared")]
    assert levels == [("pod", "success")] * 2
    assert (saved / "step-300.json").exists()
    [run_log] = (site.storage / "shared").glob("*/run.log")
    assert [run_log.read_text().count(f"restart {n}: started") for n in (1, 2, 3)] == [1, 1, 0]


def is_recovering(site: Site) -> bool:
    return bool(site.status("shared")["state"] == "recovering")


def restarts(site: Site, job: str) -> list[dict[str, Any]]:
    """Those that succeeded."""
    records: list[dict[str, Any]] = json.loads(site.everstep("restarts", job, "--json"))
    return [one for one in records if record_rows.result(one) == "success"]


async def test_an_image_that_cannot_be_pulled_is_named_by_the_job(
    site: Site, worker: WorkerProcess
) -> None:
    assert worker.pid
    image = "absent.example.test/trainer:1"
    site.submit("absent", more={"image": image})
    await until(lambda: image in (site.status("absent")["waiting_for"] or ""))
    assert "ImagePull" in site.status("absent")["waiting_for"]
    site.everstep("stop", "absent")
