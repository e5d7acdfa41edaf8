"""The priority of a document as the PriorityClass of its pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from everstep.core.errors import InvalidSpec
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import made, shell_pod, until
from tests.testbed.api import Api, ApiError

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
async def urgent(api: Api, namespace: str) -> AsyncIterator[str]:
    name = f"urgent-{namespace}"
    pods = f"/api/v1/namespaces/{namespace}/pods"

    async def is_known() -> bool:
        """The API server admits pods by a copy of the classes, which may be behind."""
        try:
            pod = shell_pod("dry", priorityClassName=name)
            await api.create(pods, pod, dryRun="All")
        except ApiError as error:
            if error.status != 403:
                raise
            return False
        return True

    async with made(api, CLASSES, {"metadata": {"name": name}, "value": 1000}):
        await until(is_known)
        yield name


async def test_pods_have_the_class_that_the_settings_name_for_the_priority(
    lab: KubernetesLab, api: Api, namespace: str, urgent: str
) -> None:
    lab.settings = replace(lab.settings, priority_classes={10: urgent})
    await lab.another_worker()
    for job_id, priority, expected in (("calm", 9, 0), ("pressing", 10, 1000)):
        job = KubernetesRun(lab, id=job_id, slots=(0,), env=NEVER_ENDS)
        await job.new_generation("first")
        await job.place(priority=priority)
        pod = await api.get(f"/api/v1/namespaces/{namespace}/pods/{job_id}-0-g1")
        assert pod["spec"]["priority"] == expected
        await job.gone()


async def test_a_class_that_the_cluster_does_not_have_is_named(lab: KubernetesLab) -> None:
    lab.settings = replace(lab.settings, priority_classes={0: "absent"})
    await lab.another_worker()
    job = KubernetesRun(lab, id="classless", slots=(0,), env=NEVER_ENDS)
    await job.new_generation("first")
    with pytest.raises(InvalidSpec, match="no PriorityClass with name absent was found"):
        await job.place()
    await job.gone()
