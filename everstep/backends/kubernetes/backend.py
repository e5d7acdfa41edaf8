"""A Kubernetes cluster: bare pods with an agent in each, and a ConfigMap for each job as its books.

Nothing that matters is in the memory of a worker, nor anywhere but in the API server.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kubernetes.aio.config import ConfigException

from everstep.agent import build, wire
from everstep.agent_client import ranks
from everstep.agent_client.news import JobNews
from everstep.agent_client.watch import Agents
from everstep.backends.agents import observing
from everstep.backends.agents.backend import AgentBackend
from everstep.backends.agents.folders import JobFolders
from everstep.backends.agents.job_end import JobEnd
from everstep.backends.agents.ports import AgentCluster, AgentSettings
from everstep.backends.agents.transactions import owned_record
from everstep.backends.kubernetes import gangs, manifest, names
from everstep.backends.kubernetes.api import KubernetesApi
from everstep.backends.kubernetes.books import (
    BooksJustRead,
    ConfigMapBooks,
    ensure_identity,
    isolated_nodes,
    set_isolated,
)
from everstep.backends.kubernetes.events import ensure_events, event
from everstep.backends.kubernetes.folders import FOLDERS
from everstep.backends.kubernetes.looking import node_view
from everstep.backends.kubernetes.placing import PodPlacer
from everstep.backends.kubernetes.pods import KubernetesPods
from everstep.backends.kubernetes.reaching import allowing, reached
from everstep.backends.kubernetes.releasing import FolderReleaser
from everstep.backends.kubernetes.settings import KubernetesSettings
from everstep.backends.kubernetes.watch import ClusterWatch, job_of
from everstep.backends.rules.ownership import FolderClaim, refuse_strange
from everstep.chronicle.chronicle import Entry
from everstep.core.errors import BackendUnavailable, CommandRejected
from everstep.core.world import (
    FenceOrder,
    FenceState,
    HealState,
    JobRef,
    Leftover,
    NodeView,
    Observation,
    PlaceOrder,
    PlaceState,
)
from everstep.faults.telling import with_meaning

_OPEN_S = 30.0


class KubernetesBackend(AgentBackend):
    """One worker's view of a cluster. Made by `open`."""

    def __init__(self, api: KubernetesApi, settings: KubernetesSettings, identity: str) -> None:
        self.news = JobNews()
        self._api = api
        self._settings = settings
        self._newest_time = 0.0
        namespace = settings.namespace
        self.watch = ClusterWatch(
            api, namespace, identity, add_news=self.news.add, messages=settings.messages
        )
        self.books = ConfigMapBooks(
            api,
            namespace,
            identity,
            service_of=self.watch.service,
            faults=self.watch.faults,
        )
        self.pods = KubernetesPods(api, namespace, self.watch)
        self.agents = Agents(
            link=self.pods.link,
            is_gone=self.pods.is_gone,
            clock=self._now,
            changed=self._agent_changed,
            is_cut_off=self.pods.is_cut_off,
        )
        self._groups = gangs.PodGroups(api=api, namespace=namespace, books=identity)
        self._placer: PodPlacer | None = None

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
            identity = await reached(ensure_identity(api, settings.namespace))
            self = cls(api, settings, identity)
            await self._begin()
        except BaseException:
            await api.close()
            raise
        return self

    async def _begin(self) -> None:
        one = {"limit": "1"}
        # What is not granted ends here in the server's own words; the watch would try for ever.
        await reached(self._api.get(f"{self._path}/pods", one))
        await reached(self._api.get("/api/v1/nodes", one))
        pod_settings = manifest.PodSettings(
            books=self.books.identity,
            agent=await self._ensure_agent(),
            orphan_s=self._settings.orphan_s,
            log_mb=self._settings.log_mb,
            namespace=self._settings.namespace,
            resources=self._resources,
            has_pod_groups=self._settings.uses_pod_groups and await gangs.are_served(self._api),
            topology=self._settings.topology,
        )
        self._placer = PodPlacer(
            api=self._api,
            namespace=self._settings.namespace,
            books=self.books,
            watch=self.watch,
            pods=self.pods,
            agents=self.agents,
            settings=pod_settings,
            groups=self._groups,
            gang_s=self._settings.gang_s,
            not_ready_s=self._settings.not_ready_s,
        )
        try:
            async with asyncio.timeout(_OPEN_S):
                await self.watch.start()
        except TimeoutError:
            await self.watch.close()
            raise BackendUnavailable("the API server sends no list of pods and nodes") from None

    async def _ensure_agent(self) -> str:
        """The ConfigMap with the agent of this version; its name."""
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
            path = Path(folder) / manifest.AGENT_FILE
            content = (await asyncio.to_thread(build.build, path, is_small=True)).read_bytes()
        name = names.agent(content)
        metadata = {"name": name, "labels": {names.MANAGED_BY: names.EVERSTEP}}
        binary = {manifest.AGENT_FILE: b64encode(content).decode()}
        body = {"metadata": metadata, "immutable": True, "binaryData": binary}
        await allowing(self._api.create(f"{self._path}/configmaps", body), 409)
        return name

    @property
    def _resources(self) -> Mapping[str, str]:
        return {**manifest.RESOURCES, **self._settings.resources}

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._settings.namespace}"

    @property
    def placer(self) -> PodPlacer:
        assert self._placer is not None, "a backend is made by `open`"
        return self._placer

    def _now(self) -> float:
        """Nodes and workers of a cluster keep the same time; a step back of ours is waited out."""
        self._newest_time = max(self._newest_time, time.time())
        return self._newest_time

    def _agent_changed(self, uid: str) -> None:
        pod = self.watch.pod(uid)
        self.news.add("" if pod is None else job_of(pod))

    # -- what all clusters of agents do alike ----------------------------------------------------

    @property
    def agent_cluster(self) -> AgentCluster:
        rank_settings = ranks.RankSettings(
            cluster=self.books.identity,
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
            books=self.books,
            pods=self.pods,
            agents=self.agents,
            settings=settings,
            now=self._now,
        )

    async def folders_of(self, job_id: str) -> JobFolders:  # noqa: ARG002  # the same for all
        return FOLDERS

    async def claims_of(self, job_id: str, folders: Mapping[str, str]) -> Sequence[FolderClaim]:
        """None: the volumes are those of a phase's `pod_template`."""
        (await self.folders_of(job_id)).named(folders)
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
            refuse_strange(job, self.books.identity)
            namespace, books = self._settings.namespace, self.books.identity
            owner = await reached(self.books.read(job.id))
            events = (event(job, e, owner, namespace=namespace, books=books) for e in restarts)
            await reached(ensure_events(self._api, namespace, events))
        await super().ensure_recorded(job, entries)

    # -- seeing ----------------------------------------------------------------------------------

    async def clock(self) -> float:
        await self.identity_there()  # a cluster out of reach has no time
        return self._now()

    async def identity_there(self) -> None:
        await reached(self._api.get(f"{self._path}/configmaps/everstep-books"))

    async def look(self, job: JobRef, cursor: str) -> Observation:
        start = await self.placer.sync(job.id)
        books = BooksJustRead(books=self.books, start=start)
        return await observing.observe(replace(self.agent_cluster, books=books), job, cursor)

    async def nodes(self) -> tuple[NodeView, ...]:
        isolated = await reached(isolated_nodes(self._api, self._settings.namespace))
        jobs: dict[str, set[str]] = {}
        for pod in self.watch.pods.objects.values():
            jobs.setdefault(pod["spec"].get("nodeName", ""), set()).add(job_of(pod))
        return tuple(
            node_view(node, isolated, jobs, self._resources) for node in self.watch.all_nodes()
        )

    async def leftovers(self) -> tuple[Leftover, ...]:
        documents = await reached(self.books.jobs())
        # A job that was placed has pods or a Secret, until `ensure_gone` is done with it.
        records = (d.record for d in documents if d.removable or d.record.placed is not None)
        return tuple(
            Leftover(job=JobRef(id=record.id, run=record.newest_run), server=record.server)
            for record in records
        )

    # -- doing -----------------------------------------------------------------------------------

    async def take_over(
        self,
        job: JobRef,
        generation: int,
        folders: Mapping[str, str],  # noqa: ARG002  # their fences are outdated by the first new pod
    ) -> int:
        """A job of this namespace whose record was deleted: the API server removed its pods with it."""
        if job.books not in ("", self.books.identity):
            what = "began in another cluster or namespace, and Kubernetes clusters adopt none of those yet"
            raise CommandRejected(f"{job.id} {what}")
        return generation

    async def ensure_healed(
        self, job: JobRef, *, generation: int, node: str, device: int
    ) -> HealState:
        """A device repairs itself where its maker's software does that: its observers report the end."""
        await self.books.transact(job.id, lambda session: owned_record(session, job, generation))
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
            state, again_at = await self.placer.ensure_placed(order)
        if again_at is not None:
            self.news.add_later(order.job.id, again_at - self._now())
        return state

    async def ensure_standby(self, order: PlaceOrder) -> PlaceState:
        with self.news.reading(order.job.id):
            state, again_at = await self.placer.ensure_standby(order)
        if again_at is not None:
            self.news.add_later(order.job.id, again_at - self._now())
        return state

    async def ensure_fenced(self, order: FenceOrder) -> FenceState:
        state = await super().ensure_fenced(order)
        if state.done:
            await self.placer.sync(order.job.id)  # removes the pods that it no longer waits for
        return state

    async def ensure_isolated(self, node: str, *, reason: str) -> None:
        """A device is isolated with its node: a pod requests a number of devices, not some of them."""
        name = node.partition("/")[0]
        await reached(set_isolated(self._api, self._settings.namespace, name, reason))

    async def ensure_released(self, node: str) -> None:
        name = node.partition("/")[0]
        await reached(set_isolated(self._api, self._settings.namespace, name, None))
        self.news.add("")

    async def remove_pods(self, job_id: str) -> Sequence[str]:
        stored = await self.placer.sync(job_id)
        if left := stored.document.removable:
            self.news.add_later(job_id, 0.2)
            return [entry.name for entry in left]
        if self.placer.settings.has_pod_groups:
            await self._groups.remove(job_id)
        secret = f"{self._path}/secrets/{names.secret(job_id)}"
        await allowing(self._api.delete(secret), 404)
        self.pods.credentials.pop(job_id, None)
        return ()

    async def release_folders(self, end: JobEnd) -> str:
        releaser = FolderReleaser(
            api=self._api,
            pods=f"{self._path}/pods",
            books=self.books,
            settings=self.placer.settings,
        )
        wait = await releaser.release(end.command)
        if wait:
            self.news.add_later(end.job, 1.0)
        return wait

    async def close(self) -> None:
        await self.agents.close()
        await self.watch.close()
        await self._api.close()
