"""A restart is an Event on the object that owns the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.backends.kubernetes.events import event
from everstep.chronicle.chronicle import Entry
from everstep.core.world import JobRef
from tests.backends.verbs import NEVER_ENDS, entries
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.testbed.api import Api, Json


async def events_of(api: Api, namespace: str, job: str) -> list[Json]:
    """Those on the ConfigMap that holds the job's record."""
    selector = f"involvedObject.kind=ConfigMap,involvedObject.name=everstep-job-{job}"
    path = f"/api/v1/namespaces/{namespace}/events"
    items: list[Json] = (await api.get(path, fieldSelector=selector))["items"]
    return items


def restarts(job: KubernetesRun, results: Mapping[str, str]) -> tuple[Entry, ...]:
    """Lines about restarts: `results` has what became of each by its sentence."""
    lines = entries(job, *range(1, len(results) + 1))
    return tuple(
        replace(line, restart=sentence, result=result)
        for line, (sentence, result) in zip(lines, results.items(), strict=True)
    )


async def test_a_restart_is_one_event_however_often_it_is_published(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="told", env=NEVER_ENDS)
    await job.launch()
    results = {
        "restart 1 of main: crash on n1 -> in_place: started, from step 40": "success",
        "restart 2 of main: node on n2 -> pod: downgrade": "downgrade",
    }
    lines = restarts(job, results)
    await lab.backend.ensure_recorded(job.ref, lines[:1])
    await lab.another_worker()  # which was told of neither, as the first one was killed
    await lab.backend.ensure_recorded(job.ref, lines)
    await lab.backend.ensure_recorded(job.ref, lines)
    record = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/everstep-job-told")
    by_message = {one["message"]: one for one in await events_of(api, namespace, "told")}
    assert by_message.keys() == results.keys()
    assert [by_message[sentence]["type"] for sentence in results] == ["Normal", "Warning"]
    for one in by_message.values():
        assert one["count"] == 1
        assert one["involvedObject"]["uid"] == record["metadata"]["uid"]
    await job.gone()


async def test_a_line_that_is_no_restart_is_no_event(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="quiet", env=NEVER_ENDS)
    await job.launch()
    await lab.backend.ensure_recorded(job.ref, entries(job, 1))
    assert await events_of(api, namespace, "quiet") == []
    await job.gone()


@pytest.mark.parametrize("result", ["success", "failed", "downgrade"])
def test_an_event_is_a_warning_unless_its_restart_succeeded_however_its_cause_is_called(
    result: str,
) -> None:
    line = replace(
        Entry(phase="main", model_dir=None, began=0.0, at=1.0, run=0, text=""),
        restart=f"restart 1 of a -> b: started: crash -> in_place: {'x' * 300}"[:300],
        result=result,
    )
    owner: Any = SimpleNamespace(uid="1")
    made = event(JobRef(id="a", run="r"), line, owner, namespace="jobs", books="b")
    assert made["type"] == ("Normal" if result == "success" else "Warning")
