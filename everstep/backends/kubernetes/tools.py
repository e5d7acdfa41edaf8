"""A Kubernetes cluster for its operators, with the rights of the kubeconfig at hand: no worker is needed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kubernetes.aio.config import ConfigException
from pydantic import ValidationError

from everstep.backends.kubernetes import (
    cluster_checks,
    document_rules,
    dry_run,
    manifest,
    node_views,
    pruning,
)
from everstep.backends.kubernetes.api import KubernetesApi
from everstep.backends.kubernetes.identity import stored_namespaces
from everstep.backends.kubernetes.pod_logs import PodLogs
from everstep.backends.kubernetes.reaching import reached
from everstep.backends.kubernetes.worker_settings import KubernetesWorkerSettings
from everstep.backends.tools import (
    ClusterCheck,
    JobRecordLeft,
    LogLine,
    LogReader,
    RankLog,
    Tools,
    WorkflowEndOf,
)
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.spec import JobSpec
from everstep.core.world import NodeView


def _settings() -> KubernetesWorkerSettings:
    """What the environment says. Raises InvalidSpec for what makes no sense there."""
    try:
        return KubernetesWorkerSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"EVERSTEP_{'__'.join(map(str, first['loc']))}".upper()
        raise InvalidSpec([(name, f"is {first['input']!r}: {first['msg']}")]) from None


class KubernetesTools(Tools):
    """Tools for the namespaces of jobs that the settings name, else for those that the workers stored."""

    def __init__(self) -> None:
        self._settings = _settings()
        self._job_namespaces: Sequence[str] = ()  # once they were looked for
        self._logs: PodLogs | None = None

    async def nodes(self) -> tuple[NodeView, ...]:
        async with await self._api() as api:
            home, namespaces = self._settings.kube_namespace, await self._namespaces(api)
            return await reached(node_views.nodes(api, home, namespaces, self._plugins))

    async def check_cluster(self) -> list[ClusterCheck]:
        async with await self._api() as api:
            namespaces = cluster_checks.Namespaces(
                of_workers=self._settings.kube_namespace, of_jobs=await self._namespaces(api)
            )
            return await cluster_checks.of_cluster(api, namespaces)

    def broken_rules(self, spec: JobSpec) -> list[tuple[str, str]]:
        default = self._settings.kube_default_namespace or self._settings.kube_namespace
        return document_rules.broken_rules(spec, self._pod_settings(default))

    def notes(self, spec: JobSpec) -> list[tuple[str, str]]:
        return document_rules.notes(spec)

    async def refusals(self, spec: JobSpec) -> list[tuple[str, str]]:
        async with await self._api() as api:
            default, *_ = await self._namespaces(api)
            return await reached(dry_run.refusals(api, self._pod_settings(default), spec))

    async def prune_records(
        self, end_of: WorkflowEndOf, *, before: float, is_dry_run: bool
    ) -> list[JobRecordLeft]:
        async with await self._api() as api:
            return await reached(
                pruning.prune(
                    api,
                    await self._namespaces(api),
                    end_of,
                    before=min(before, time.time() - pruning.LATE_S),
                    is_dry_run=is_dry_run,
                )
            )

    async def prune_agents(self, *, before: float, is_dry_run: bool) -> list[str]:
        async with await self._api() as api:
            prune = pruning.prune_agents(
                api, await self._namespaces(api), before=before, is_dry_run=is_dry_run
            )
            return await reached(prune)

    async def logs(self, job: str) -> list[RankLog]:
        if self._logs is None:
            api = await self._api()
            self._logs = PodLogs(api, await self._namespaces(api))
        return await reached(self._logs.of_job(job))

    def no_logs(self, beginning: str) -> str:
        where = f"namespace {' and '.join(self._job_namespaces)}"
        return f"{beginning} in {where}; a log goes with its pod unless the cluster collects it"

    def read(self, log: RankLog) -> LogReader:
        assert self._logs is not None, "a log comes from `logs`"
        return self._logs.reader(log)

    async def read_end(self, log: RankLog, count: int) -> tuple[list[LogLine], LogReader]:
        assert self._logs is not None, "a log comes from `logs`"
        reader = self._logs.reader(log, newest=count)
        return [line async for line in reader.lines()], reader

    async def _namespaces(self, api: KubernetesApi) -> Sequence[str]:
        """The namespaces of jobs, first that of jobs that name none."""
        home, default = self._settings.kube_namespace, self._settings.kube_default_namespace
        further = self._settings.kube_job_namespaces
        if default or further:
            self._job_namespaces = tuple(dict.fromkeys((default or home, *further)))
        elif not self._job_namespaces:
            self._job_namespaces = await stored_namespaces(api, home)
        return self._job_namespaces

    @property
    def _plugins(self) -> Mapping[str, str]:
        return {**manifest.RESOURCES, **self._settings.kube_resources}

    def _pod_settings(self, namespace: str) -> manifest.PodSettings:
        return manifest.PodSettings(
            books="dry-run",
            agent="everstep-agent-dry-run",
            namespace=namespace,
            resources=self._plugins,
            topology=self._settings.kube_topology,
            priority_classes=self._settings.kube_priority_classes,
        )

    async def close(self) -> None:
        if self._logs is not None:
            await self._logs.close()
            self._logs = None

    async def _api(self) -> KubernetesApi:
        path, context = self._settings.kubeconfig, self._settings.kube_context
        try:
            return await KubernetesApi.of_operator(path, context=context)
        except (ConfigException, OSError) as error:
            raise BackendUnavailable(f"no way to the API server: {error}") from None
