"""The worker, and the composition root: the only module that imports settings, client, backend and workers.

`main` reads the settings, `connect_and_serve` connects to the server, `serve` opens the backend and starts
the janitor and the metrics, `work` runs the two Temporal workers until a signal.
"""

from __future__ import annotations

import everstep.startup  # noqa: F401  # fewer collections from here on

# isort: split
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.cluster_activities import ClusterActivities
from activities.counters import TemporalCounters
from activities.failures import is_worth_a_line
from activities.janitor_activities import JanitorActivities
from activities.local_activities import LocalActivities
from activities.message_templates import template
from activities.publishing import Publishing, SpanExporter
from activities.quarantine_client import TemporalQuarantine
from activities.webhook import Webhook, exposes_token, problem, secret_bytes
from everstep import backends, devserver
from everstep.backends import settings_class
from everstep.backends.base import Backend
from everstep.backends.settings import BackendSettings, ObserverMessages
from everstep.client import connection
from everstep.client.exits import Exit, Failed
from everstep.client.state import made_home
from everstep.core import names
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.escaping import for_terminal
from everstep.dialects.dialect import has_pods_by_name
from everstep.dialects.mindcluster import device_info, public_faults
from everstep.sandbox import sandbox
from everstep.telemetry.configuration import MetricsConfiguration, configuration
from everstep.telemetry.fleet import Fleet
from everstep.telemetry.labels import LogLabels
from everstep.telemetry.logs import LogFormat, core_logging, log_to_stderr
from everstep.telemetry.readiness import Readiness
from everstep.version import __version__
from workflows import options
from workflows.fleet_totals import FleetTotals
from workflows.janitor import Janitor
from workflows.node_quarantine import NodeQuarantine
from workflows.recovery import Recovery
from workflows.training_job import TrainingJob

if TYPE_CHECKING:
    from everstep.telemetry.metrics import Metrics  # OpenTelemetry, which not every worker has

WORKFLOWS = (TrainingJob, Recovery, NodeQuarantine, Janitor, FleetTotals)
LOOK_S = 0.01
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
SECRETS = frozenset({"EVERSTEP_WEBHOOK_TOKEN", "EVERSTEP_WEBHOOK_SECRET"})
SECRETS_FOLDER = "EVERSTEP_SECRETS_DIR"


class WorkerSettings(BaseSettings):
    """The settings of a worker: `EVERSTEP_*` variables. `TEMPORAL_*` variables name server and namespace."""

    model_config = SettingsConfigDict(env_prefix="EVERSTEP_", env_nested_delimiter="__")

    backend: str = "local"
    cluster: str = "local"
    time_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # divides long limits
    janitor: bool = True  # start the cluster's janitor if it does not run
    concurrency: int = Field(default=500, ge=1)  # most activities of the cluster at once
    log_format: LogFormat = "text"  # of standard error
    metrics_address: str | None = None  # HOST:PORT of a page for Prometheus
    webhook_url: str | None = None  # gets what happens to jobs
    webhook_token: SecretStr = SecretStr("")
    webhook_secret: SecretStr = SecretStr("")  # signs each message
    webhook_template: str = ""  # of the body: a name, or a file

    @field_validator("webhook_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url and (why := problem(url)):
            raise ValueError(why)
        return url or None

    @field_validator("webhook_token")
    @classmethod
    def _is_a_token(cls, token: SecretStr, others: ValidationInfo) -> SecretStr:
        url = others.data.get("webhook_url")
        if token.get_secret_value() and url and exposes_token(url):
            raise ValueError(
                "over plain http anybody on the way can read it; give EVERSTEP_WEBHOOK_URL an "
                "https address, or send no token"
            )
        if not all(c.isascii() and c.isprintable() for c in token.get_secret_value()):
            raise ValueError("a token is printable ASCII")
        return token

    @field_validator("webhook_secret")
    @classmethod
    def _is_a_secret(cls, secret: SecretStr) -> SecretStr:
        if secret.get_secret_value():
            secret_bytes(secret.get_secret_value())
        return secret

    @field_validator("webhook_template")
    @classmethod
    def _is_a_template(cls, name: str) -> str:
        if name:
            template(name)
        return name

    @property
    def scale(self) -> float:
        """The scale of time that applies: only clusters for rehearsals have one."""
        return self.time_scale if settings_class(self.backend).scales_time else 1.0

    @cached_property
    def listener(self) -> Webhook | None:
        if self.webhook_url is None:
            return None
        secret = self.webhook_secret.get_secret_value()
        return Webhook(
            url=self.webhook_url,
            token=self.webhook_token.get_secret_value(),
            secret=secret_bytes(secret) if secret else b"",
            template=template(self.webhook_template) if self.webhook_template else None,
        )

    def has_pods(self, cluster: str) -> bool:
        """Whether a cluster makes pods. Only of its own cluster the worker knows it by the backend."""
        if cluster == self.cluster:
            return backends.has_pods(self.backend)
        return has_pods_by_name(cluster)

    def for_backend(self) -> BackendSettings:
        """The settings of the backend. Raises InvalidSpec if there is no backend of this name."""
        return settings_class(self.backend)()


def settings() -> WorkerSettings:
    """The settings of the environment. Exits with one line that names a variable which makes no sense."""
    folder = os.environ.get(SECRETS_FOLDER) or None
    if folder is not None and not Path(folder).is_dir():
        print(f"{SECRETS_FOLDER} is {folder!r}: there is no such folder", file=sys.stderr)
        sys.exit(Exit.USAGE)
    try:
        found = WorkerSettings(_secrets_dir=folder)
        found.for_backend()
        return found
    except InvalidSpec as error:
        print(for_terminal(str(error)), file=sys.stderr)
        sys.exit(Exit.USAGE)
    except ValidationError as error:
        first = error.errors()[0]
        name = f"EVERSTEP_{'__'.join(map(str, first['loc']))}".upper()
        shown = "not shown" if name in SECRETS else repr(first["input"])
        print(f"{name} is {shown}: {first['msg']}", file=sys.stderr)
        sys.exit(Exit.USAGE)


JANITOR_EVERY_S = 30.0
"""So often a worker looks for the janitor: one that was ended by hand is back after that time."""


async def keep_janitor(client: Client, cluster: str, *, every_s: float = JANITOR_EVERY_S) -> None:
    """Start the cluster's janitor again and again where it does not run.

    Where another workflow has its ID, one line says so, once.
    """
    printed = ""
    while True:
        with contextlib.suppress(RPCError):  # the server is away: what works for it waits too
            problem = await ensure_janitor(client, cluster)
            if problem and problem != printed:
                print(for_terminal(problem), file=sys.stderr, flush=True)
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


def cluster_activities(
    client: Client, backend: Backend, settings: WorkerSettings
) -> ClusterActivities:
    quarantine = TemporalQuarantine(
        client=client, patience=options.QUARANTINE_PATIENCE, time_scale=settings.scale
    )
    return ClusterActivities(backend=backend, quarantine=quarantine)


def workers(
    client: Client,
    backend: Backend,
    settings: WorkerSettings,
    cluster: ClusterActivities | None = None,
    *,
    grace: timedelta = GRACE,
) -> tuple[Worker, Worker]:
    """One for workflows and their local activities, one for everything that touches the cluster.

    `grace`: how long activities that run may go on when the workers end.
    """
    cluster = cluster or cluster_activities(client, backend, settings)
    telemetry = configuration(settings.metrics_address)
    counters = TemporalCounters(client=client, cluster=settings.cluster)
    publishing = Publishing(
        backend=backend,
        listener=settings.listener,
        counters=counters if telemetry.is_on else None,
        span_exporter=span_exporter(telemetry),
    )
    janitor = JanitorActivities(
        backend=backend, client=client, server=connection.server_name(client)
    )
    local: Sequence[Any] = LocalActivities(
        time_scale=settings.scale, has_pods=settings.has_pods
    ).all()
    common: dict[str, Any] = {
        "max_heartbeat_throttle_interval": options.HEARTBEAT_THROTTLE,
        "default_heartbeat_throttle_interval": options.HEARTBEAT_THROTTLE,
        "graceful_shutdown_timeout": grace,
        "interceptors": [LogLabels()],
        "build_id": f"everstep-{__version__}",  # else the SDK reads and hashes every loaded module
    }
    return (
        Worker(
            client,
            task_queue=names.TASK_QUEUE,
            workflows=WORKFLOWS,
            activities=local,
            activity_executor=ThreadPoolExecutor(max_workers=4),
            workflow_runner=sandbox(),
            sticky_queue_schedule_to_start_timeout=options.STICKY_TIMEOUT,
            **common,
        ),
        Worker(
            client,
            task_queue=names.cluster_queue(settings.cluster),
            activities=[*cluster.all(), *publishing.all(), *janitor.all()],
            max_concurrent_activities=settings.concurrency,
            **common,
        ),
    )


async def serve(settings: WorkerSettings, client: Client, metrics: Metrics | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 0 after an orderly end."""
    logging.getLogger("temporalio.activity").addFilter(in_brief)
    if missing := await devserver.missing_attributes(client):
        print(
            f"namespace {client.namespace} lacks the search attributes {', '.join(missing)}; create "
            "them with `temporal operator search-attribute create --name NAME --type TYPE`",
            file=sys.stderr,
        )
        return Exit.USAGE
    try:
        backend = await settings.for_backend().open(
            make_home=made_home, server=connection.server_name(client), messages=MESSAGES
        )
    except InvalidSpec as error:
        print(for_terminal(str(error)), file=sys.stderr)
        return Exit.USAGE
    except BackendUnavailable as error:
        message = f"the cluster cannot be opened: {error}; `everstep doctor` looks at it"
        print(for_terminal(message), file=sys.stderr)
        return Exit.UNREACHABLE
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    background: list[asyncio.Task[None]] = []
    if settings.janitor:
        await ensure_janitor(client, settings.cluster)
        background.append(asyncio.create_task(keep_janitor(client, settings.cluster)))
    cluster = cluster_activities(client, backend, settings)
    if metrics is not None:
        listener = settings.listener
        fleet = Fleet(
            client=client,
            cluster=settings.cluster,
            monitors=cluster.glances,
            probe=backend.clock,
            webhook_unreachable_s=lambda: None if listener is None else listener.unreachable_s(),
        )
        background.append(asyncio.create_task(metrics.run(fleet)))
    watching = None if metrics is None else partial(keep_readiness, client, metrics.readiness)
    try:
        await work(client, workers(client, backend, settings, cluster), stop, watching)
    finally:
        for task in background:
            task.cancel()
        await backend.close()
    return 0


PROBE_S = 5.0
"""Between two looks whether the server answers, and the time that it has for that."""


async def keep_readiness(client: Client, readiness: Readiness) -> None:
    """Note again and again whether the server answers."""
    while True:
        try:
            async with asyncio.timeout(PROBE_S):
                await client.service_client.check_health()
            readiness.problem = ""
        except (RPCError, TimeoutError) as error:
            why = str(error) or f"no answer within {PROBE_S:g} s"
            readiness.problem = f"the Temporal server does not answer: {why}"
        await asyncio.sleep(PROBE_S)


async def work(
    client: Client,
    workers: Sequence[Worker],
    stop: asyncio.Event,
    when_polling: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Run the workers until `stop` is set or one of them fails, and `when_polling` beside them."""
    runs = [asyncio.create_task(each.run()) for each in workers]
    stopping = asyncio.create_task(stop.wait())
    beside: list[asyncio.Task[None]] = []
    try:
        await until_polling(client, workers, runs)
        print("everstep worker ready", flush=True)
        beside += [] if when_polling is None else [asyncio.create_task(when_polling())]
        await asyncio.wait({stopping, *runs}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(each.shutdown() for each in workers), *runs)
    finally:
        for task in (stopping, *runs, *beside):
            task.cancel()
        await asyncio.wait({stopping, *runs, *beside})


async def until_polling(
    client: Client, workers: Sequence[Worker], runs: Sequence[asyncio.Task[None]]
) -> None:
    """Wait until every worker polls. Raises at once if a worker fails or the server goes away before that.

    A worker that polls waits for a server that goes away; one that starts would try for half a minute.
    """
    while not all(each.is_running for each in workers):
        for failed in (run for run in runs if run.done()):
            failed.result()
        await client.service_client.check_health()
        await asyncio.sleep(LOOK_S)


async def connect_and_serve(settings: WorkerSettings) -> int:
    """Connect to the server, and serve. An error on the way is one line and an exit code."""
    try:
        metrics = metrics_of(settings)
        try:
            client = await connection.client(runtime=runtime(settings, metrics))
            with connection.rpc_errors_as_failed(client):
                return await serve(settings, client, metrics)
        finally:
            if metrics is not None:
                metrics.close()
    except Failed as error:
        print(for_terminal(str(error)), file=sys.stderr)
        return error.code


def runtime(settings: WorkerSettings, metrics: Metrics | None) -> Runtime:
    """The runtime of the metrics, else one that measures nothing. The SDK's core logs in our format."""
    if metrics is not None:
        return metrics.runtime
    return Runtime(telemetry=TelemetryConfig(logging=core_logging(settings.log_format)))


def span_exporter(telemetry: MetricsConfiguration) -> SpanExporter | None:
    """The exporter of traces; None if they are off. Raises `Failed` if a package is missing."""
    if telemetry.traces_protocol is None:
        return None
    try:
        from everstep.telemetry.traces import OtlpSpans
    except ImportError as error:
        raise Failed(Exit.USAGE, f"{error.name} is not installed; {TELEMETRY_HINT}") from None
    return OtlpSpans.over(telemetry.traces_protocol)


def metrics_of(settings: WorkerSettings) -> Metrics | None:
    """The metrics; None if they are off. Raises `Failed` if a package is missing, or the address is taken."""
    try:
        telemetry = configuration(settings.metrics_address)
        if not telemetry.is_on:
            return None
        from everstep.telemetry.metrics import metrics
    except ValueError as error:
        raise Failed(Exit.USAGE, str(error)) from None
    except ImportError as error:
        raise Failed(Exit.USAGE, f"{error.name} is not installed; {TELEMETRY_HINT}") from None
    try:
        return metrics(telemetry, core_logging(settings.log_format))
    except OSError as error:
        problem = f"EVERSTEP_METRICS_ADDRESS {settings.metrics_address} cannot be served: {error.strerror}"
        raise Failed(Exit.USAGE, problem) from None


def in_brief(record: logging.LogRecord) -> bool:
    """A filter of the log: drop activities that were cancelled, and log a failure with a name as one line.

    Only an unforeseen exception keeps its traceback.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ApplicationError) and error.type:
        about = getattr(record, "temporal_activity", {})
        record.msg = f"{about.get('activity_type')} of {about.get('workflow_id')}: {error}"
        record.args, record.exc_info = (), None
        return is_worth_a_line(about.get("attempt", 1))
    return not isinstance(error, asyncio.CancelledError)


def main() -> None:
    log_to_stderr()
    worker_settings = settings()
    log_to_stderr(worker_settings.log_format)
    if worker_settings.log_format == "json":  # there the context of a message has keys of its own
        activity.logger.activity_info_on_message = False
        workflow.logger.workflow_info_on_message = False
    gc.freeze()  # modules stay for ever: each collection would look through them again
    code = asyncio.run(connect_and_serve(worker_settings))
    # Let the runtime's threads go before the interpreter does, or it may crash on its way out.
    gc.collect()
    time.sleep(0.3)
    sys.exit(code)


if __name__ == "__main__":
    main()
