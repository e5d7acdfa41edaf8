"""Where a worker makes pods: in the namespace of jobs that name none, and in those that documents may name.

A job has one of them for life: its pods, its Secret and its record are there. The worker's own one has to
answer. One of jobs that refuses is put aside, and served once it answers: its team may delete it at any time,
which must not stop the jobs of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from everstep.backends.agents.client.watch import Agents
from everstep.backends.kubernetes.agent_program import ensure_agent
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.books import ConfigMapBooks
from everstep.backends.kubernetes.identity import CLUSTER, ensure_identity
from everstep.backends.kubernetes.placing.placer import PodPlacer
from everstep.backends.kubernetes.placing.reconciler import PodReconciler
from everstep.backends.kubernetes.pods import KubernetesPods
from everstep.backends.kubernetes.reaching import reached
from everstep.backends.kubernetes.releasing import FolderReleaser
from everstep.backends.kubernetes.watch import ClusterWatch
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.world import JobRef

logger = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Seconds between two tries to serve a namespace that refuses."""
ONE = {"limit": "1"}
_ADVICE = (
    "`kubectl apply -k` of an overlay over deploy/job-namespace grants what a worker needs there, and"
    " `everstep doctor --cluster` names what is missing. If the namespace is gone for good, or that of other"
    " workers, take it out of EVERSTEP_KUBE_JOB_NAMESPACES"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNamespace:
    """What a worker has for the jobs of one namespace."""

    name: str
    books: ConfigMapBooks
    pods: KubernetesPods
    agents: Agents
    placer: PodPlacer
    reconciler: PodReconciler
    releaser: FolderReleaser

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.name}"


def namespace_of(job: JobRef, namespaces: Mapping[str, JobNamespace]) -> JobNamespace:
    """The job's; the first one is that of jobs that name none. Raises InvalidSpec for another one."""
    if not job.namespace:
        return next(iter(namespaces.values()))
    if job.namespace not in namespaces:
        allowed = ", ".join(namespaces)
        what = (
            f"is {job.namespace}, and the workers of this cluster make pods in {allowed}"
            " (EVERSTEP_KUBE_JOB_NAMESPACES)"
        )
        raise InvalidSpec([("spec.namespace", what)])
    return namespaces[job.namespace]


@dataclass(slots=True, kw_only=True)
class NamespaceService:
    """Which namespaces of jobs the worker serves. One that refuses is tried again until it answers."""

    api: KubernetesApi
    home: str  # the namespace of the workers
    identity: str
    agent: Json  # the ConfigMap with the agent's program
    watch: ClusterWatch
    refusals: dict[str, str] = field(default_factory=dict)
    """Why a namespace is not served, by its name."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def begin(self, job_namespaces: Iterable[str]) -> None:
        """Prepare these namespaces. Raises BackendUnavailable where that of the workers refuses."""
        for name in job_namespaces:
            try:
                await self._prepare(name)
            except BackendUnavailable as error:
                if name == self.home:
                    raise
                self._put_aside(name, error)

    def retry(self) -> None:
        """Try again to serve the namespaces that refuse, in the background until `close`."""
        self._tasks = [asyncio.create_task(self._serve(name)) for name in self.refusals]

    def ensure_served(self, name: str) -> None:
        """Raises BackendUnavailable, with the reason, for a namespace that is put aside."""
        if refusal := self.refusals.get(name):
            raise BackendUnavailable(refusal)

    async def answer_of(self, name: str, send: Callable[[], Awaitable[T]]) -> T | None:
        """The answer; None where the namespace is put aside, or its team removed the worker's role there."""
        if name in self.refusals:
            return None
        try:
            return await send()
        except Unreachable as error:
            raise BackendUnavailable(str(error)) from None
        except Refused as error:
            if error.status == 403 and name != self.home:
                return None  # the watch of its pods is refused too, which is logged
            raise BackendUnavailable(str(error)) from None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, name: str) -> None:
        while name in self.refusals:
            await asyncio.sleep(AGAIN_S)
            try:
                await self._prepare(name)
                await self.watch.follow_pods(name)
            except BackendUnavailable as error:
                self._put_aside(name, error)
            else:
                del self.refusals[name]
        logger.warning("namespace %s is served now", name)

    def _put_aside(self, name: str, error: BackendUnavailable) -> None:
        refusal = f"namespace {name} is not served, and its jobs wait: {error}"
        if self.refusals.get(name) != refusal:  # it is tried every few seconds
            logger.warning("%s. %s", refusal, _ADVICE)
        self.refusals[name] = refusal

    async def _prepare(self, namespace: str) -> None:
        """Have what pods of this namespace need, and the right to see them."""
        await reached(self.api.get(f"/api/v1/namespaces/{namespace}/pods", ONE))
        request = ensure_identity(self.api, namespace, self.identity, workers=self.home)
        owner = await reached(request)
        if owner != self.identity:
            what = f"ConfigMap {CLUSTER} names them: {owner}, not {self.identity}"
            raise BackendUnavailable(f"it is that of other workers: {what}")
        await ensure_agent(self.api, namespace, self.agent)
