"""The API server refuses to delete the record of a running job, by the policy of deploy/kubernetes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import yaml

from everstep.backends.kubernetes import names
from tests.backends.lab import uids_of
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.conftest import new_namespace
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import made, until
from tests.testbed.api import Api, ApiError, Json
from tests.testbed.operator import KUBERNETES

MANIFEST = KUBERNETES / "record-policy.yaml"
LABELS = {names.MANAGED_BY: names.EVERSTEP, names.IN_USE: "true"}
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def policy_and_binding(namespace: str) -> list[Json]:
    return list(yaml.safe_load_all(MANIFEST.read_text().replace("NAMESPACE", namespace)))


@pytest.fixture
async def keeps_records(api: Api, namespace: str) -> AsyncIterator[None]:
    """The API server goes by the policy, in this namespace alone."""
    policy, binding = policy_and_binding(namespace)
    record = await labelled_with_record(api, namespace)
    async with (
        made(api, f"{_ADMISSION}/validatingadmissionpolicies", policy),
        made(api, f"{_ADMISSION}/validatingadmissionpolicybindings", binding),
    ):
        await until_refused(api, record)
        yield

    async def is_deleted() -> bool:
        return await refusal(api, record) == ""

    await until(is_deleted)  # the API server goes by a policy for a moment longer


async def labelled_with_record(api: Api, namespace: str) -> str:
    """Have the namespace keep records; the path of one of a job that runs."""
    labels = {"everstep.dev/keeps-records": "true"}
    await api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    return await make_record(api, namespace)


async def make_record(api: Api, namespace: str) -> str:
    metadata = {"name": "record", "labels": LABELS, "annotations": {names.JOB: "runs"}}
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    await api.create(maps, {"metadata": metadata})
    return f"{maps}/record"


async def until_refused(api: Api, record: str) -> None:
    async def is_refused() -> bool:
        return await refusal(api, record, dryRun=["All"]) != ""

    await until(is_refused)


async def refusal(api: Api, path: str, **options: object) -> str:
    """What the API server answers to a deletion; empty: it is done."""
    try:
        await api.delete(path, **options)
    except ApiError as error:
        if error.status != 403:
            raise
        return str(error)
    return ""


@pytest.mark.usefixtures("keeps_records")
async def test_the_record_of_a_job_with_pods_is_not_deleted_by_hand(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """The job trains on in the pods that it has. Once it has ended, its record may go."""
    job = KubernetesRun(lab, id="kept", env=NEVER_ENDS)
    await job.launch()
    before = await job.step(5)
    record = f"/api/v1/namespaces/{namespace}/configmaps/{names.record('kept')}"
    for how in ("Background", "Foreground", "Orphan"):
        answer = await refusal(api, record, propagationPolicy=how)
        assert "job kept has pods, which would be removed with its record" in answer
        assert "everstep stop kept" in answer
    assert uids_of(await job.step(20), job.slots) == uids_of(before, job.slots)
    await job.again("restart-1")  # a worker changes the record as before
    await job.step(25)
    await job.gone()
    assert await refusal(api, record) == ""


@pytest.mark.usefixtures("keeps_records")
async def test_a_namespace_is_deleted_with_all_its_records(api: Api) -> None:
    """Its pods go too, so nothing is left that a record would have kept."""
    name = await new_namespace(api, "deleted")
    await until_refused(api, await labelled_with_record(api, name))
    await api.delete(f"/api/v1/namespaces/{name}")

    async def is_gone() -> bool:
        listed = (await api.get("/api/v1/namespaces"))["items"]
        return name not in {one["metadata"]["name"] for one in listed}

    await until(is_gone)


@pytest.mark.usefixtures("keeps_records")
async def test_in_other_namespaces_a_record_goes_as_before(api: Api) -> None:
    """Where the label is missing, so two groups of workers do not decide for each other's namespaces."""
    name = await new_namespace(api, "other")
    assert await refusal(api, await make_record(api, name)) == ""
