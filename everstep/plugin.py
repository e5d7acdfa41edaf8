"""Everstep in a worker of one's own: its workflows on their queue, one cluster on the queue of that.

    client = await Client.connect(address, data_converter=data_converter())
    async with opened(client) as plugin:
        workers = [Worker(client, task_queue=queue, plugins=[plugin]) for queue in plugin.queues]

Replayers of its histories, and clients that serve no queue of it, take an `EverstepPlugin()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion, WorkflowIDConflictPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.service import RPCError
from temporalio.worker import Interceptor, WorkerConfig, WorkerDeploymentConfig

from activities import unfinished
from activities.cluster_activities import ClusterActivities
from activities.fleet_totals import TemporalCounters
from activities.janitor_activities import JanitorActivities
from activities.local_activities import LocalActivities
from activities.publishing import Publishing, SpanExporter
from activities.quarantine_client import TemporalQuarantine
from activities.unfinished import TaskFiles
from everstep import devserver
from everstep.backends.base import Backend
from everstep.backends.settings import ObserverMessages
from everstep.client.connection import server_name
from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import WORKERS, made_home
from everstep.converter import DATA_CONVERTER, ClosingConverter, data_converter
from everstep.core import names
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.escaping import for_terminal
from everstep.dialects.mindcluster import device_info, public_faults
from everstep.encryption.heartbeats import ClosedHeartbeats
from everstep.sandbox import sandbox
from everstep.telemetry.configuration import MetricsConfiguration, configuration
from everstep.telemetry.log_labels import LogLabels
from everstep.version import __version__
from everstep.worker_settings import WorkerSettings
from workflows import options
from workflows.fleet_totals import FleetTotals
from workflows.janitor import Janitor
from workflows.node_quarantine import NodeQuarantine
from workflows.recovery import Recovery
from workflows.training_job import TrainingJob

__all__ = [
    "DATA_CONVERTER",
    "WORKFLOWS",
    "EverstepPlugin",
    "WorkerSettings",
    "data_converter",
    "opened",
]

LOG = logging.getLogger(__name__)

WORKFLOWS = (TrainingJob, Recovery, NodeQuarantine, Janitor, FleetTotals)
GRACE = timedelta(seconds=1)
MESSAGES = (
    ObserverMessages(label="=".join(public_faults.LABEL), read=public_faults.observer_report),
    ObserverMessages(
        label="=".join(device_info.LABEL),
        read=device_info.observer_report,
        namespace=device_info.NAMESPACE,
    ),
)
TELEMETRY_HINT = "`pip install 'everstep[telemetry]'` brings what metrics need"
OUR_OWN = {None, DataConverter.default, pydantic_data_converter, DATA_CONVERTER}
"""Converters in whose place that of Everstep may come: it reads what they write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCluster:
    """A cluster that this process serves: its backend, and the activities over it."""

    name: str
    backend: Backend
    activities: ClusterActivities
    all_activities: Sequence[Callable[..., Any]]
    concurrency: int
    """Most activities of the cluster at once."""
    task_files: TaskFiles | None = None
    """Keeps a file for each activity that runs, for the worker after a killed one; None: none is kept."""


class EverstepPlugin(SimplePlugin):
    """Has clients, workers and replayers read, run and replay what Everstep wrote.

    A worker gets what its queue is for: workflows with their local activities on `everstep`, the activities
    of the cluster on the queue of that. On any other queue it stays as it is.
    """

    def __init__(
        self,
        cluster: ServedCluster | None = None,
        *,
        local: LocalActivities | None = None,
        grace: timedelta = GRACE,
        deployment: WorkerDeploymentConfig | None = None,
    ) -> None:
        """`grace`: how long activities that run may go on when a worker ends.

        `deployment`: its version, and whether the server routes by it; by default it does not.
        """
        interceptors: list[Interceptor] = [LogLabels(), ClosedHeartbeats()]
        super().__init__(
            "everstep.EverstepPlugin",
            data_converter=_converter,
            interceptors=interceptors,
            workflows=WORKFLOWS,
            activities=(local or LocalActivities()).all(),
            workflow_runner=sandbox(),
        )
        self.cluster = cluster
        self._grace = grace
        self._deployment = deployment_of("", __version__) if deployment is None else deployment
        if cluster is not None and cluster.task_files is not None:
            interceptors = [*interceptors, cluster.task_files]
        self._of_cluster = SimplePlugin(
            "everstep.cluster",
            interceptors=interceptors,
            activities=[] if cluster is None else cluster.all_activities,
        )

    @property
    def queues(self) -> tuple[str, ...]:
        """The task queues that need a worker each."""
        queues = (names.TASK_QUEUE,)
        return queues if self.cluster is None else (*queues, names.cluster_queue(self.cluster.name))

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """The worker's configuration, with what is run on its queue."""
        queue = config["task_queue"]
        if queue not in self.queues:
            return config
        config["max_heartbeat_throttle_interval"] = options.HEARTBEAT_THROTTLE
        config["default_heartbeat_throttle_interval"] = options.HEARTBEAT_THROTTLE
        config["graceful_shutdown_timeout"] = self._grace
        # Without a version the SDK reads and hashes every loaded module. A worker of one's own may have one.
        if config.get("build_id") is None and config.get("deployment_config") is None:
            config["deployment_config"] = self._deployment
        if queue != names.TASK_QUEUE and self.cluster is not None:
            config["max_concurrent_activities"] = self.cluster.concurrency
            if (files := self.cluster.task_files) is not None and config.get("identity") is None:
                config["identity"] = unfinished.identity(config["client"].identity, files.folder)
            return self._of_cluster.configure_worker(config)
        config["sticky_queue_schedule_to_start_timeout"] = options.STICKY_TIMEOUT
        if config.get("activity_executor") is None:  # local activities are plain functions
            config["activity_executor"] = ThreadPoolExecutor(max_workers=4)
        return super().configure_worker(config)


def _converter(existing: DataConverter | None) -> DataConverter:
    """Our converter. Raises ValueError for a client that has another one, as with a codec."""
    if existing not in OUR_OWN and not isinstance(existing, ClosingConverter):
        problem = "the client has a data converter of its own, which Everstep cannot read"
        raise ValueError(f"{problem}; give Everstep a connection of its own")
    return data_converter()


@asynccontextmanager
async def opened(
    client: Client, settings: WorkerSettings | None = None
) -> AsyncIterator[EverstepPlugin]:
    """The plugin with the cluster that the settings name, by default those of `EVERSTEP_*` variables.

    Inside the block the cluster's janitor is kept running. Raises `Failed` if the client has another
    converter, the namespace lacks search attributes, or the cluster cannot be opened.
    """
    settings = WorkerSettings() if settings is None else settings
    if client.data_converter != data_converter():
        hint = "connect with data_converter=everstep.plugin.data_converter()"
        raise Failed(Exit.USAGE, f"the client has another data converter than Everstep; {hint}")
    if missing := await devserver.missing_attributes(client):
        raise Failed(
            Exit.USAGE,
            f"namespace {client.namespace} lacks the search attributes {', '.join(missing)}; create "
            "them with `temporal operator search-attribute create --name NAME --type TYPE`",
        )
    home = cache(made_home)
    try:
        backend = await settings.for_backend().open(
            make_home=home, server=server_name(client), messages=MESSAGES
        )
    except InvalidSpec as error:
        raise Failed(Exit.USAGE, str(error)) from None
    except BackendUnavailable as error:
        problem = f"the cluster cannot be opened: {error}; `everstep doctor` looks at it"
        raise Failed(Exit.UNREACHABLE, problem) from None
    background_tasks: list[asyncio.Task[None]] = []
    try:
        with contextlib.ExitStack() as stack:
            folder = _folder_of_worker(stack, home, server_name(client))
            task_files = None if folder is None else TaskFiles(folder)
            plugin = plugin_of(client, backend, settings, task_files=task_files)
            if folder is not None:
                left = unfinished.keep_giving_back(client, folder.parent)
                background_tasks.append(asyncio.create_task(left))
            if settings.janitor:
                await ensure_janitor(client, settings.cluster)
                background_tasks.append(asyncio.create_task(keep_janitor(client, settings.cluster)))
            yield plugin
    finally:
        for task in background_tasks:
            task.cancel()
        await backend.close()


def _folder_of_worker(
    stack: contextlib.ExitStack, home: Callable[[], Path], server: str
) -> Path | None:
    """The folder for what this worker has under way; None where that cannot be: it is for speed alone."""
    try:
        workers = unfinished.of_server(home() / WORKERS, server)
        return stack.enter_context(unfinished.folder_of_worker(workers))
    except (Failed, OSError) as error:
        LOG.info("what this worker has under way is kept nowhere: %s", error)
        return None


def plugin_of(
    client: Client,
    backend: Backend,
    settings: WorkerSettings,
    *,
    grace: timedelta = GRACE,
    task_files: TaskFiles | None = None,
) -> EverstepPlugin:
    """The plugin over an open backend."""
    telemetry = configuration(settings.metrics_address)
    quarantine = TemporalQuarantine(
        client=client, patience=options.QUARANTINE_PATIENCE, time_scale=settings.scale
    )
    activities = ClusterActivities(backend=backend, quarantine=quarantine)
    counters = TemporalCounters(client=client, cluster=settings.cluster)
    publishing = Publishing(
        backend=backend,
        listener=settings.listener,
        counters=counters if telemetry.is_on else None,
        span_exporter=span_exporter(telemetry),
    )
    janitor = JanitorActivities(backend=backend, client=client, server=server_name(client))
    cluster = ServedCluster(
        name=settings.cluster,
        backend=backend,
        activities=activities,
        all_activities=[*activities.all(), *publishing.all(), *janitor.all()],
        concurrency=settings.concurrency,
        task_files=task_files,
    )
    local = LocalActivities(time_scale=settings.scale, has_pods=settings.has_pods)
    deployment = deployment_of(settings.deployment, settings.build_id)
    return EverstepPlugin(cluster, local=local, grace=grace, deployment=deployment)


def deployment_of(name: str, build_id: str) -> WorkerDeploymentConfig:
    """The version of a worker. With a name the server routes by versions, and a run stays with its own."""
    version = WorkerDeploymentVersion(deployment_name=name or "everstep", build_id=build_id)
    if not name:
        return WorkerDeploymentConfig(version=version, use_worker_versioning=False)
    return WorkerDeploymentConfig(
        version=version,
        use_worker_versioning=True,
        default_versioning_behavior=options.PINNED,
    )


def span_exporter(telemetry: MetricsConfiguration) -> SpanExporter | None:
    """The exporter of traces; None if they are off. Raises `Failed` if a package is missing."""
    if telemetry.traces_protocol is None:
        return None
    try:
        from everstep.telemetry.traces import OtlpSpans
    except ImportError as error:
        raise Failed(Exit.USAGE, f"{error.name} is not installed; {TELEMETRY_HINT}") from None
    return OtlpSpans.over(telemetry.traces_protocol)


JANITOR_EVERY_S = 30.0
"""Seconds between two looks of a worker for the janitor: one ended by hand is back after that time."""


async def keep_janitor(client: Client, cluster: str, *, every_s: float = JANITOR_EVERY_S) -> None:
    """Start the cluster's janitor again and again where it does not run.

    Where another workflow has its ID, a warning says so, once.
    """
    printed = ""
    while True:
        with contextlib.suppress(RPCError):  # the server is away: what works for it waits too
            problem = await ensure_janitor(client, cluster)
            if problem and problem != printed:
                LOG.warning(for_terminal(problem))
            printed = problem
        await asyncio.sleep(every_s)


async def ensure_janitor(client: Client, cluster: str) -> str:
    """Start the cluster's janitor unless it runs; a sentence where another workflow has its ID."""
    janitor = await client.start_workflow(
        names.JANITOR,
        cluster,
        id=names.janitor_id(cluster),
        task_queue=names.TASK_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        task_timeout=options.TASK_TIMEOUT,
        static_summary=f"removes what dead jobs left on cluster {cluster}",
    )
    kind = (await janitor.describe()).workflow_type
    if kind == names.JANITOR:
        return ""
    return (
        f"{janitor.id} is a {kind}, not the janitor of cluster {cluster}: what dead jobs left stays there; "
        f"`temporal workflow terminate --workflow-id {janitor.id}` lets the janitor begin"
    )
