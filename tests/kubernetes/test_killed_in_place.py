"""A worker that dies at any request while it places pods; another one goes on.

Each write to the API server in turn is the last one of a worker: once before it is sent, once after it was
carried out. No other moment of a placement leaves anything behind. A worker begins again each
time, which makes it long.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tests.backends.lab import uids_of
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.kubernetes.test_gangs import groups
from tests.testbed.api import Api

pytestmark = pytest.mark.long

Side = Literal["before", "after"]
BOTH: tuple[Side, ...] = ("before", "after")


class Killed(Exception):
    """The worker does not live any more."""


@dataclass
class LastWrite:
    """Ends the worker of a lab at its nth write from now on."""

    lab: KubernetesLab
    number: int
    side: Side
    count: int = 0
    is_dead: bool = False
    pods: list[str] = field(default_factory=list)  # that were created

    def arm(self) -> None:
        api = self.lab.backend._api
        send = api._request

        async def request(method: str, path: str, *rest: Any, **options: Any) -> Any:
            if self.is_dead:
                raise Killed
            is_last = method != "GET" and self._is_last()
            if is_last and self.side == "before":
                self.is_dead = True
                raise Killed
            try:
                reply = await send(method, path, *rest, **options)
                if method == "POST" and path.endswith("/pods"):
                    self.pods.append(reply["metadata"]["uid"])
            finally:  # also where the API server refused it: what there is already is not made again
                if is_last:
                    self.is_dead = True
                    raise Killed
            return reply

        api._request = request  # type: ignore[method-assign]  # of this worker

    def _is_last(self) -> bool:
        self.count += 1
        return self.count == self.number


async def place_in_spite_of_it(job: KubernetesRun, last: LastWrite, **changes: Any) -> list[str]:
    """Place with a worker that dies and with the one that comes after it; the pods that both created."""
    last.arm()
    with contextlib.suppress(Killed):
        await job.place(**changes)
    assert isinstance(job.lab, KubernetesLab)
    await job.lab.another_worker()
    heir = LastWrite(job.lab, 0, "after")
    heir.arm()
    await job.place(**changes)
    return [*last.pods, *heir.pods]


async def secrets(api: Api, namespace: str, job: str) -> list[str]:
    response = await api.get(
        f"/api/v1/namespaces/{namespace}/secrets", labelSelector=f"everstep.dev/job={job}"
    )
    return [one["metadata"]["uid"] for one in response["items"]]


async def uids(api: Api, namespace: str, job: str) -> dict[str, str]:
    response = await api.get(
        f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"everstep.dev/job={job}"
    )
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in response["items"]}


async def until_pods(api: Api, namespace: str, job: str, *names: str) -> dict[str, str]:
    """The uids of the job's pods, once it has these and no others."""

    async def are_all() -> bool:
        return sorted(await uids(api, namespace, job)) == sorted(names)

    await until(are_all)
    return await uids(api, namespace, job)


@pytest.mark.parametrize("side", BOTH)
async def test_a_launch_makes_each_pod_once_wherever_the_worker_dies(
    lab: KubernetesLab, api: Api, namespace: str, side: Side
) -> None:
    for number in itertools.count(1):
        job = KubernetesRun(lab, id=f"{side}-{number}", env=NEVER_ENDS)
        await job.new_generation("launch")
        await job.stop()
        last = LastWrite(lab, number, side)
        created = await place_in_spite_of_it(job, last)
        pods = await uids(api, namespace, job.id)
        assert sorted(pods) == [f"{job.id}-{slot}-g1" for slot in job.slots]
        if side == "before" or not last.is_dead:
            assert sorted(created) == sorted(pods.values())
        assert set(pods.values()).issuperset(created)  # none was created twice
        assert len(await secrets(api, namespace, job.id)) == 1
        assert await groups(api, namespace, job.id) == {f"{job.id}-g1": 2}
        if number == 1:
            await job.fence()
            await job.start()
            await job.step(1)
        await job.gone()
        assert await uids(api, namespace, job.id) == {}
        if not last.is_dead:
            break
    assert number > len(("record", "group", "secret", "pod", "pod", "uids"))


@pytest.mark.parametrize("side", BOTH)
async def test_a_recovery_makes_one_new_pod_wherever_the_worker_dies(
    lab: KubernetesLab, api: Api, namespace: str, side: Side
) -> None:
    job = KubernetesRun(lab, id=f"again-{side}", env=NEVER_ENDS)
    await job.launch()
    before = await job.step(1)
    [secret] = await secrets(api, namespace, job.id)
    for number in itertools.count(1):
        generation = await job.new_generation(f"restart {number}")
        await job.stop()
        last = LastWrite(lab, number, side)
        created = await place_in_spite_of_it(job, last, recreate=(1,))
        pods = await until_pods(
            api, namespace, job.id, f"{job.id}-0-g1", f"{job.id}-1-g{generation}"
        )
        assert set(pods.values()).issuperset(created)
        assert await secrets(api, namespace, job.id) == [secret]
        assert await groups(api, namespace, job.id) == {}  # a single pod waits for no other one
        if not last.is_dead:
            break
    assert number > len(("record", "removal", "group", "pod", "uid"))
    await job.fence()
    await job.start()
    assert uids_of(await job.step(1), [0]) == uids_of(before, [0])
    await job.gone()
