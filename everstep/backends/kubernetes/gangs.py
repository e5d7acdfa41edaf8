"""Pods of one order start together or not at all: a PodGroup where the cluster has them, else by time-out.

A group holds the pods that one generation created: those that were kept run already, so that a single
replacement needs none. Kueue and Volcano form groups of their own, by what the template says.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.manifest import Gang
from everstep.backends.kubernetes.pod_facts import created_at, is_owned
from everstep.backends.kubernetes.reaching import (
    allowing,
    both,
    may_be_taken_later,
    reached,
    refusal_wait,
)
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.waits import WaitCause, WaitKind

API = "/apis/scheduling.k8s.io/v1beta1"
_KIND = "podgroups"
_SCHEDULED = "PodGroupInitiallyScheduled"


async def are_served(api: KubernetesApi) -> bool:
    """Whether the API server has PodGroups. Raises BackendUnavailable where it does not answer."""
    try:
        reply = await api.get(API)
    except Unreachable as error:
        raise BackendUnavailable(str(error)) from None
    except Refused as error:
        if error.status in {403, 404}:  # a cluster of an earlier version, or one that shows nothing
            return False
        raise BackendUnavailable(str(error)) from None
    return any(one["name"] == _KIND for one in reply.get("resources", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """What holds a PodGroup up: neither where it is scheduled, or where there is to be none."""

    refusal: WaitCause | None = None  # why the API server takes none now
    problem: WaitCause | None = None  # why the group that there is cannot be scheduled yet


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroups:
    """The PodGroups of jobs in one namespace."""

    api: KubernetesApi
    namespace: str
    books: str

    @property
    def _path(self) -> str:
        return f"{API}/namespaces/{self.namespace}/{_KIND}"

    async def ensure(
        self, job: str, gang: Gang, *, owner: Mapping[str, str], priority_class: str = ""
    ) -> GroupState:
        """Have a group of this size; older ones of the job go.

        Pods that were created before their group wait for it, and a smaller order makes it smaller. The
        scheduler takes only a group of the priority that its pods have.
        """
        groups = {group["metadata"]["name"]: group for group in await self._of(job)}
        _, state = await both(
            self.remove(job, keep=gang.name, groups=groups.values()),
            self._have(
                job, gang, groups.get(gang.name), owner=owner, priority_class=priority_class
            ),
        )
        return state

    async def _have(
        self,
        job: str,
        gang: Gang,
        group: Json | None,
        *,
        owner: Mapping[str, str],
        priority_class: str,
    ) -> GroupState:
        """Create the group, or give it this size."""
        if group is None and gang.needs_group:
            metadata = {
                "name": gang.name,
                "labels": names.labels(self.books, job),
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "controller": True, **owner}
                ],
            }
            body = {"metadata": metadata, **_size(gang)}
            if priority_class:
                body["spec"]["priorityClassName"] = priority_class
            return GroupState(refusal=await self._create(job, body))
        if group is None:
            return GroupState()
        if not is_owned(group, owner["uid"]):
            return GroupState(refusal=_in_the_way(job, gang.name))
        if _size_of(group) != gang.size:
            await reached(self.api.patch(f"{self._path}/{gang.name}", _size(gang)))
        return GroupState(problem=_problem(group))

    async def _create(self, job: str, body: Json) -> WaitCause | None:
        """Why the API server takes no group now. Raises InvalidSpec where it never takes this one."""
        try:
            await self.api.create(self._path, body)
        except Unreachable as error:
            raise BackendUnavailable(str(error)) from None
        except Refused as error:
            if error.status == 409:
                name, groups = body["metadata"]["name"], await self._of(job)
                is_of_job = any(group["metadata"]["name"] == name for group in groups)
                return None if is_of_job else _in_the_way(job, name)  # another worker was first
            if may_be_taken_later(error):
                return refusal_wait(error)
            if error.status == 403:
                what = f"the API server refuses the pods' group: {error}"
                raise InvalidSpec([("spec.pod_template", what)]) from None
            raise BackendUnavailable(str(error)) from None
        return None

    async def remove(
        self, job: str, *, keep: str = "", groups: Iterable[Json] | None = None
    ) -> None:
        """Delete the groups of the job but one. A group with pods stays until they end."""
        for group in await self._of(job) if groups is None else groups:
            name = group["metadata"]["name"]
            if name != keep and "deletionTimestamp" not in group["metadata"]:
                await allowing(self.api.delete(f"{self._path}/{name}"), 404)

    async def _of(self, job: str) -> Sequence[Json]:
        label = f"{names.selector(self.books)},{names.JOB}={names.job_label(job)}"
        reply = await reached(self.api.get(self._path, {"labelSelector": label}))
        items: Sequence[Json] = reply["items"]
        return items


def _in_the_way(job: str, name: str) -> WaitCause:
    what = f"PodGroup {name} is not of job {job}, and in the way of its own"
    return WaitKind.REFUSED.of(what)


def _size(gang: Gang) -> Json:
    return {"spec": {"schedulingPolicy": {"gang": {"minCount": gang.size}}}}


def _size_of(group: Json) -> int:
    size: int = group["spec"]["schedulingPolicy"]["gang"]["minCount"]
    return size


def _problem(group: Json) -> WaitCause | None:
    """Why the group is not scheduled, in the words of the scheduler. None: it is, or nothing is known."""
    conditions = group.get("status", {}).get("conditions", ())
    scheduled: Json = next((one for one in conditions if one["type"] == _SCHEDULED), {})
    if scheduled.get("status") != "False":
        return None
    words = scheduled.get("message") or scheduled.get("reason") or "not scheduled"
    return WaitKind.GROUP.of(words)


def with_own_problems_first(problems: Iterable[WaitCause]) -> list[WaitCause]:
    """What pods lack, before what they wait for only because others of their gang lack something.

    Volcano names such a wait in a field (`FITS`). The scheduler of Kubernetes repeats the group's message
    in that of each pod that would fit, or the beginning of it: what it tried for the group comes later.
    """
    problems = list(problems)
    groups = [problem.about[-1] for problem in problems if problem.kind is WaitKind.GROUP]

    def is_of_gang(problem: WaitCause) -> bool:
        words = problem.about[-1] if problem.about else ""
        begin = words.partition(":")[0]
        is_of_group = any(group in words or (begin and group.startswith(begin)) for group in groups)
        return problem.kind is WaitKind.FITS or is_of_group

    return sorted(problems, key=is_of_gang)


# -- Where there are no groups ----------------------------------------------------------------------


def stuck_at(pods: Sequence[Json], *, patience_s: float) -> float | None:
    """When pods that have a node give it back, as others of their gang have none; None: nothing is held.

    Another job may wait for just these places.
    """
    if not any(pod["spec"].get("nodeName") for pod in pods):
        return None
    return min(map(created_at, pods)) + patience_s


def again_at(now: float, *, patience_s: float) -> float:
    """When pods that gave their places back are created again: two jobs must not take turns for ever."""
    return now + random.uniform(0.0, patience_s)
