"""A Kubernetes cluster: bare pods with an agent in each, and a ConfigMap for each job as its books.

Nothing that matters is in the memory of a worker, nor anywhere but in the API server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from kubernetes.aio.config import ConfigException

from everstep.backends.agents import observing
from everstep.backends.agents.backend import AgentBackend
from everstep.backends.agents.client.watch import Agents
from everstep.backends.agents.commands import ranks
from everstep.backends.agents.folders import JobFolders
from everstep.backends.agents.job_end import JobEnd
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.news import ALL_JOBS, JobNews
from everstep.backends.agents.ports import (
    AgentCluster,
    AgentSettings,
    JobBooks,
    owned_record,
    record_of,
)
from everstep.backends.base import NO_FOLDERS
from everstep.backends.kubernetes import agent_program, gangs, manifest, names, network
from everstep.backends.kubernetes.api import Json, KubernetesApi
from everstep.backends.kubernetes.books import (
    BooksOfOneCall,
    ConfigMapBooks,
    JobDocument,
    PodEntry,
    Reports,
    isolations,
    set_isolated,
)
from everstep.backends.kubernetes.events import ensure_events, event
from everstep.backends.kubernetes.folders import FOLDERS
from everstep.backends.kubernetes.identity import (
    CLUSTER,
    MADE_AGAIN,
    ensure_identity,
    ensure_namespaces_stored,
    open_books,
    stored_identity,
)
from everstep.backends.kubernetes.namespaces import (
    ONE,
    JobNamespace,
    NamespaceService,
    namespace_of,
)
from everstep.backends.kubernetes.node_views import node_view
from everstep.backends.kubernetes.placing.placer import PodPlacer
from everstep.backends.kubernetes.placing.queues import JobQueues
from everstep.backends.kubernetes.placing.reconciler import PodReconciler
from everstep.backends.kubernetes.placing.withdrawals import Withdrawals
from everstep.backends.kubernetes.pod_facts import created_at, held_by
from everstep.backends.kubernetes.pods import KubernetesPods
from everstep.backends.kubernetes.reaching import accepted, all_at_once, allowing, reached
from everstep.backends.kubernetes.releasing import FolderReleaser
from everstep.backends.kubernetes.room import may_take
from everstep.backends.kubernetes.settings import KubernetesSettings
from everstep.backends.kubernetes.watch import ClusterWatch, job_of
from everstep.backends.rules.ownership import FolderClaim, refuse_strange
from everstep.chronicle.chronicle import Entry
from everstep.core.errors import BackendUnavailable, CommandRejected
from everstep.core.facts import Fact
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import (
    GoneState,
    HealState,
    JobRef,
    Leftover,
    NodeView,
    Observation,
    PlaceOrder,
    PlaceState,
)
from everstep.faults.meanings import with_meaning
from everstep.protocol import wire

logger = logging.getLogger(__name__)

_OPEN_S = 30.0
_HANDSHAKES = 32
"""Handshakes with agents at once. Each takes this process a millisecond, on a busy machine ten: they are done
within the second that an agent has for one."""


class KubernetesBackend(AgentBackend):
    """One worker's view of a cluster. Made by `open`."""

    def __init__(self, api: KubernetesApi, settings: KubernetesSettings, identity: str) -> None:
        self.news = JobNews()
        self._api = api
        self._settings = settings
        self._identity = identity
        self._newest_time = 0.0
        self.watch = ClusterWatch(
            api,
            settings.all_job_namespaces,
            identity,
            home=settings.namespace,
            add_news=self.news.add,
            pod_gone=self._pod_gone,
            messages=settings.messages,
        )
        self._namespaces: dict[str, JobNamespace] = {}
        self._handshakes = asyncio.Semaphore(_HANDSHAKES)

    @classmethod
    async def open(cls, settings: KubernetesSettings) -> KubernetesBackend:
        """Raises BackendUnavailable where the cluster does not answer or grants too little."""
        try:
            if settings.kubeconfig is None:
                api = KubernetesApi.in_cluster()
            else:
                api = await KubernetesApi.from_kubeconfig(
                    settings.kubeconfig, context=settings.context
                )
        except (ConfigException, OSError) as error:
            raise BackendUnavailable(f"no way to the API server: {error}") from None
        try:
            opening = open_books(api, settings.namespace, settings.all_job_namespaces)
            identity = await reached(opening)
            self = cls(api, settings, identity)
            await self._begin()
        except BaseException:
            await api.close()
            raise
        return self

    async def _begin(self) -> None:
        # What is not granted ends here in the server's own words; the watch would try for ever.
        await reached(self._api.get("/api/v1/nodes", ONE))
        agent = await agent_program.config_map()
        has_pod_groups = self._settings.uses_pod_groups and await gangs.are_served(self._api)
        for name in self._settings.all_job_namespaces:
            pod_settings = manifest.PodSettings(
                books=self._identity,
                agent=agent["metadata"]["name"],
                orphan_s=self._settings.orphan_s,
                log_mb=self._settings.log_mb,
                namespace=name,
                workers_in=self._settings.workers_in,
                resources=self._resources,
                has_pod_groups=has_pod_groups,
                topology=self._settings.topology,
                priority_classes=self._settings.priority_classes,
            )
            self._namespaces[name] = self._job_namespace(name, pod_settings, agent)
        self._service = NamespaceService(
            api=self._api,
            home=self._settings.namespace,
            identity=self._identity,
            agent=agent,
            watch=self.watch,
        )
        await self._service.begin(self._settings.all_job_namespaces)
        await reached(
            ensure_namespaces_stored(
                self._api, self._settings.namespace, self._settings.all_job_namespaces
            )
        )
        try:
            async with asyncio.timeout(_OPEN_S):
                await self.watch.start(without_pods_of=self._service.refusals)
        except TimeoutError:
            await self.watch.close()
            raise BackendUnavailable("the API server sends no list of pods and nodes") from None
        self._service.retry()

    def _job_namespace(
        self, name: str, pod_settings: manifest.PodSettings, agent: Json
    ) -> JobNamespace:
        pods = KubernetesPods(self._api, name, self.watch, self._handshakes)
        agents = self._agents_in(pods)

        def end_of(entry: PodEntry, record: JobRecord) -> Fact | None:
            return reconciler.end_of(entry, record)

        books = ConfigMapBooks(
            self._api,
            name,
            self._identity,
            reports=Reports(
                service_of=self.watch.service,
                is_deleted=self.watch.is_deleted,
                dead_sidecars=self.watch.dead_sidecars,
                faults=self.watch.faults,
                end_of=end_of,
            ),
        )
        reconciler = PodReconciler(
            api=self._api,
            namespace=name,
            books=books,
            watch=self.watch,
            pods=pods,
            agents=agents,
            not_ready_s=self._settings.not_ready_s,
        )
        placer = PodPlacer(
            api=self._api,
            namespace=name,
            home=self._settings.namespace,
            books=books,
            watch=self.watch,
            pods=pods,
            agents=agents,
            settings=pod_settings,
            agent=agent,
            groups=gangs.PodGroups(api=self._api, namespace=name, books=self._identity),
            withdrawals=Withdrawals(
                books=books, watch=self.watch, agents=agents, gang_s=self._settings.gang_s
            ),
            reconciler=reconciler,
            queues=JobQueues(api=self._api, namespace=name, watch=self.watch, pods=pods),
        )
        return JobNamespace(
            name=name,
            books=books,
            pods=pods,
            agents=agents,
            placer=placer,
            reconciler=reconciler,
            releaser=FolderReleaser(
                api=self._api, namespace=name, books=books, settings=pod_settings, agent=agent
            ),
        )

    def _agents_in(self, pods: KubernetesPods) -> Agents:
        return Agents(
            link=pods.link,
            is_gone=pods.is_gone,
            clock=self._now,
            changed=self._agent_changed,
            is_cut_off=pods.is_cut_off,
        )

    def _pod_gone(self, pod: Json) -> None:
        """Give up what is kept for this pod: the worker that ended it may be another one."""
        for namespace in self._namespaces.values():
            namespace.agents.forget_later(pod["metadata"]["uid"])
            if not self.watch.has_pods(job_of(pod)):
                namespace.pods.forget(job_of(pod))

    @property
    def _resources(self) -> Mapping[str, str]:
        return {**manifest.RESOURCES, **self._settings.resources}

    @property
    def _default(self) -> JobNamespace:
        """The namespace of jobs that name none."""
        return next(iter(self._namespaces.values()))

    def _of(self, job: JobRef) -> JobNamespace:
        """The job's namespace. Raises BackendUnavailable while it is not served."""
        namespace = namespace_of(job, self._namespaces)
        self._service.ensure_served(namespace.name)
        return namespace

    def _now(self) -> float:
        """Nodes and workers of a cluster keep the same time; a step back of ours is waited out."""
        self._newest_time = max(self._newest_time, time.time())
        return self._newest_time

    def _agent_changed(self, uid: str) -> None:
        pod = self.watch.pod(uid)
        self.news.add(ALL_JOBS if pod is None else job_of(pod))

    # -- what all clusters of agents do alike ----------------------------------------------------

    @property
    def agent_cluster(self) -> AgentCluster:
        return self._cluster_in(self._default)

    def cluster_of(self, job: JobRef) -> AgentCluster:
        """The two ports of the cluster for one call about this job."""
        return self._cluster_in(self._of(job))

    def _cluster_in(self, namespace: JobNamespace) -> AgentCluster:
        rank_settings = ranks.RankSettings(
            cluster=self._identity,
            fence_s=self._settings.fence_s,
            environ=self._settings.environ,
            pass_env=(),  # another machine's; a rank has the environment of its image
        )
        settings = AgentSettings(
            ranks=rank_settings,
            fence_margin_s=self._settings.fence_margin_s,
            thresholds=self._settings.thresholds,
        )
        return AgentCluster(
            books=BooksOfOneCall(books=namespace.books),
            pods=namespace.pods,
            agents=namespace.agents,
            settings=settings,
            now=self._now,
        )

    @property
    def books(self) -> ConfigMapBooks:
        """The books of jobs that name no namespace."""
        return self._default.books

    @property
    def placer(self) -> PodPlacer:
        return self._default.placer

    async def folders_of(self, job_id: str) -> JobFolders:  # noqa: ARG002  # the same for all
        return FOLDERS

    async def claims_of(self, job_id: str, folders: Mapping[str, str]) -> Sequence[FolderClaim]:
        """None here: the volumes are in the order to place, so `ensure_placed` claims. Raises InvalidSpec."""
        (await self.folders_of(job_id)).field_of_each(folders)  # refuses a relative path
        return ()

    @property
    def server(self) -> str:
        return self._settings.server

    async def write_journal(self, job: JobRef, command: wire.JournalCommand) -> None:
        raise BackendUnavailable(
            f"no pod of {job.id} lives, and {command['model_dir']} is in its pods"
        )

    async def ensure_recorded(self, job: JobRef, entries: tuple[Entry, ...]) -> None:
        if restarts := [entry for entry in entries if entry.restart]:
            refuse_strange(job, self._identity)
            namespace = self._of(job)
            owner = await reached(namespace.books.read(job.id))
            events = (
                event(job, entry, owner, namespace=namespace.name, books=self._identity)
                for entry in restarts
            )
            await reached(ensure_events(self._api, namespace.name, job.id, events))
        await super().ensure_recorded(job, entries)

    # -- seeing ----------------------------------------------------------------------------------

    async def clock(self) -> float:
        await self._ensure_identity_stored()  # a cluster out of reach has no time
        return self._now()

    async def _ensure_identity_stored(self) -> None:
        home = self._settings.namespace
        stored = await reached(stored_identity(self._api, home))
        if stored is None:
            logger.warning(MADE_AGAIN, CLUSTER)
            stored = await reached(ensure_identity(self._api, home, self._identity, workers=home))
        if stored != self._identity:
            what = f"ConfigMap {CLUSTER} names other books now: {stored}, not {self._identity}"
            raise BackendUnavailable(f"{what}; restart this worker")

    async def observe_now(self, job: JobRef, cursor: str) -> Observation:
        namespace = self._of(job)
        start = await namespace.reconciler.sync(job.id)
        books = BooksOfOneCall(books=namespace.books, start=start)
        return await observing.observe(replace(self.cluster_of(job), books=books), job, cursor)

    async def nodes(self, job: JobRef | None = None) -> tuple[NodeView, ...]:
        isolated = await reached(isolations(self._api, self._settings.namespace))
        jobs: dict[str, set[str]] = {}
        for pod in self.watch.all_pods():
            jobs.setdefault(pod["spec"].get("nodeName", ""), set()).add(job_of(pod))
        pods = () if job is None else self.watch.of_job(job.id, self._of(job).name)
        views = (
            (node, node_view(node, isolated, jobs, self._resources, self._codes_on(node)))
            for node in self.watch.all_nodes()
        )
        if not pods:  # nothing shows which nodes the job may use
            return tuple(view for _, view in views)
        newest = max(pods, key=created_at)
        return tuple(
            view if may_take(node, newest) else replace(view, slots_free=0) for node, view in views
        )

    def _codes_on(self, node: Json) -> Mapping[int, tuple[str, ...]] | None:
        return self.watch.codes_on(node["metadata"]["name"])

    async def leftovers(self) -> tuple[Leftover, ...]:
        left: list[Leftover] = []
        for namespace in self._namespaces.values():
            documents = await self._service.answer_of(namespace.name, namespace.books.jobs)
            # A namespace that refuses holds up no removal in others.
            for document in documents or ():
                # A worker that stood still may create pods after the end of their job.
                if document.has_objects or self.watch.has_pods(document.record.id):
                    job = self._newest_run(document, namespace)
                    left.append(Leftover(job=job, server=document.record.server))
        return tuple(left)

    # -- doing -----------------------------------------------------------------------------------

    async def ensure_generation(
        self, job: JobRef, key: str, *, folders: Mapping[str, str] = NO_FOLDERS, above: int = 0
    ) -> int:
        job_namespace = self._of(job)
        other_namespaces = [one for one in self._namespaces.values() if one is not job_namespace]
        if other_namespaces and not await self._has_begun(job, job_namespace):
            have_ended = await all_at_once(
                self._end_earlier_run(job.id, namespace) for namespace in other_namespaces
            )
            if not all(have_ended):
                await job_namespace.books.change(
                    job.id, lambda books: _note_unknown_pods(books, job, above)
                )
        return await super().ensure_generation(job, key, folders=folders, above=above)

    async def _has_begun(self, job: JobRef, namespace: JobNamespace) -> bool:
        """Whether this run has a generation: then earlier ones in other namespaces were looked for."""
        stored = await reached(namespace.books.read(job.id))
        return job.run in stored.document.record.generations

    async def _end_earlier_run(self, job_id: str, namespace: JobNamespace) -> bool:
        """End what a run of this ID left that was ended by force, in a namespace that was its own.

        False: the namespace refuses, and something may be left there. The first fence of the new run then
        holds by its time alone: one team's namespace is to hold up no job of others.
        """
        read = partial(namespace.books.read, job_id)
        if (stored := await self._service.answer_of(namespace.name, read)) is None:
            return False
        if not (stored.document.has_objects or self.watch.of_job(job_id, namespace.name)):
            return True
        state = await self.ensure_gone(self._newest_run(stored.document, namespace))
        if not state.done or self.watch.of_job(job_id, namespace.name):
            what = state.waiting_for or "its pods to go"
            where = f"an earlier run of {job_id} in namespace {namespace.name}"
            raise BackendUnavailable(f"{where} has to end first: waits for {what}")
        return True

    def _newest_run(self, document: JobDocument, namespace: JobNamespace) -> JobRef:
        """The newest run of the job in that namespace, as its orders name it."""
        record = document.record
        name = "" if namespace is self._default else namespace.name
        return JobRef(id=record.id, run=record.newest_run, namespace=name)

    async def take_over(
        self,
        job: JobRef,
        generation: int,
        folders: Mapping[str, str],  # noqa: ARG002  # their fences are outdated by the first new pod
    ) -> int:
        """Adopt a job whose record was deleted here: the API server removed its pods with the record."""
        if job.books not in ("", self._identity):
            what = "began in another cluster or namespace, and Kubernetes clusters adopt none of those yet"
            raise CommandRejected(f"{job.id} {what}")
        return generation

    async def ensure_healed(
        self, job: JobRef, *, generation: int, node: str, device: int
    ) -> HealState:
        """A device repairs itself where its maker's software does that: its observers report the end."""
        books = self._of(job).books
        await books.transact(job.id, lambda session: owned_record(session, job, generation))
        faults = [
            with_meaning(fact)
            for fact in self.watch.faults()
            if (fact.node, fact.device) == (node, device)
        ]
        for fault in faults:
            if fault.details.get("heals") is False:
                return HealState(state="failed", message=f"{fault.code} does not heal")
        return HealState(state="healing" if faults else "healed")

    async def ensure_placed(self, order: PlaceOrder) -> PlaceState:
        with self.news.reading(order.job.id):
            state, again_at = await self._of(order.job).placer.ensure_placed(order)
        if again_at is not None:
            self.news.add_later(order.job.id, again_at - self._now())
        return state

    async def ensure_standby(self, order: PlaceOrder) -> PlaceState:
        with self.news.reading(order.job.id):
            state, again_at = await self._of(order.job).placer.ensure_standby(order)
        if again_at is not None:
            self.news.add_later(order.job.id, again_at - self._now())
        return state

    async def ensure_isolated(self, node: str, *, reason: str) -> None:
        await accepted(set_isolated(self._api, self._settings.namespace, node, reason))

    async def ensure_released(self, node: str) -> None:
        await reached(set_isolated(self._api, self._settings.namespace, node, None))
        self.news.add(ALL_JOBS)

    async def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:
        if job.namespace and job.namespace not in self._namespaces:
            return GoneState(done=True)  # it was refused, and nothing was made of it
        state = await super().ensure_gone(job, grace_s=grace_s)
        if state.done:
            await self._of(job).books.release(job.id)
        return state

    async def remove_pods(self, job: JobRef) -> Sequence[WaitCause]:
        namespace = self._of(job)
        stored = await namespace.reconciler.sync(job.id)
        if left := stored.document.removable:
            self.news.add_later(job.id, 0.2)
            waits = (self._left_of(entry) for entry in left)
            return sorted(waits, key=lambda wait: wait.kind is not WaitKind.HELD_POD_GONE)
        if namespace.placer.settings.has_pod_groups:
            await namespace.placer.groups.remove(job.id)
        await allowing(self._api.delete(f"{namespace.path}/secrets/{names.secret(job.id)}"), 404)
        policies = network.policies_path(namespace.name)
        await allowing(self._api.delete(f"{policies}/{names.policy(job.id)}"), 404)
        namespace.pods.forget(job.id)
        return ()

    def _left_of(self, entry: PodEntry) -> WaitCause:
        """The wait for a pod that is not gone yet; it names the finalizer of others that holds it up."""
        pod = self.watch.pod(entry.uid)
        holder = "" if pod is None or not self._has_ended(entry) else held_by(pod)
        if holder:
            return WaitKind.HELD_POD_GONE.of(entry.name, holder)
        return WaitKind.POD_GONE.of(entry.name)

    def _has_ended(self, entry: PodEntry) -> bool:
        return not entry.node or entry.uid in self.watch.ended

    async def release_folders(self, job: JobRef, end: JobEnd) -> WaitCause | None:
        wait = await self._of(job).releaser.release(end.command)
        if wait:
            self.news.add_later(end.job, 1.0)
        return wait

    async def close(self) -> None:
        await self._service.close()
        for namespace in self._namespaces.values():
            await namespace.agents.close()
        await self.watch.close()
        await self._api.close()


def _note_unknown_pods(books: JobBooks, job: JobRef, above: int) -> None:
    record = record_of(books, job, above)  # of other books, or deleted: it is refused as before
    books.record = replace(record, may_have_unknown_pods=True)
