"""The worker as a process: reads the settings, connects to the server, serves until a signal.

What it serves is `everstep.plugin`. `main` reads the settings, `connect_and_serve` connects to the server,
`serve` opens the cluster and starts the metrics, `work` runs the two Temporal workers.
"""

from __future__ import annotations

import everstep.startup  # noqa: F401  # fewer collections from here on

# isort: split
import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.failures import is_worth_a_line
from everstep.client import connection
from everstep.client.exit_codes import Exit, Failed
from everstep.core.errors import InvalidSpec, PayloadClosed
from everstep.core.escaping import for_terminal
from everstep.plugin import TELEMETRY_HINT, EverstepPlugin, opened
from everstep.telemetry.configuration import configuration
from everstep.telemetry.fleet import Fleet
from everstep.telemetry.readiness import Readiness
from everstep.telemetry.worker_log import core_logging, log_to_stderr
from everstep.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from everstep.telemetry.metrics import Metrics  # OpenTelemetry, which not every worker has

POLL_S = 0.01
LOGGERS_OF_FAILURES = ("temporalio.activity", "temporalio.worker._workflow")
"""Of activities, and of workflow tasks."""
SECRETS = frozenset({"EVERSTEP_WEBHOOK_TOKEN", "EVERSTEP_WEBHOOK_SECRET"})
SECRETS_FOLDER = "EVERSTEP_SECRETS_DIR"


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


def workers(client: Client, plugin: EverstepPlugin) -> tuple[Worker, ...]:
    """One for workflows and their local activities, one for everything that touches the cluster."""
    return tuple(Worker(client, task_queue=queue, plugins=[plugin]) for queue in plugin.queues)


async def serve(settings: WorkerSettings, client: Client, metrics: Metrics | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 0 after an orderly end."""
    for name in LOGGERS_OF_FAILURES:
        logging.getLogger(name).addFilter(in_brief)
    async with opened(client, settings) as plugin:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        measuring = None
        if metrics is not None:
            measuring = asyncio.create_task(metrics.run(fleet(settings, client, plugin)))
        watching = None if metrics is None else partial(keep_readiness, client, metrics.readiness)
        try:
            await work(client, workers(client, plugin), stop, watching)
        finally:
            if measuring is not None:
                measuring.cancel()
    return 0


def fleet(settings: WorkerSettings, client: Client, plugin: EverstepPlugin) -> Fleet:
    """What the metrics show of the cluster."""
    listener, cluster = settings.listener, plugin.cluster
    assert cluster is not None, "it is opened"
    return Fleet(
        client=client,
        cluster=cluster.name,
        monitors=cluster.activities.glances,
        probe=cluster.backend.clock,
        webhook_unreachable_s=lambda: None if listener is None else listener.unreachable_s(),
    )


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
        await asyncio.sleep(POLL_S)


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
    if (closed := _closed(error)) is not None:
        error = ApplicationError(str(closed), type=type(closed).__name__)
        # Of a workflow task: the server lets more time pass after each.
        if not hasattr(record, "temporal_activity"):
            record.msg, record.args, record.exc_info = f"{record.getMessage()}: {closed}", (), None
            return True
    if isinstance(error, ApplicationError) and error.type:
        about = getattr(record, "temporal_activity", {})
        record.msg = f"{about.get('activity_type')} of {about.get('workflow_id')}: {error}"
        record.args, record.exc_info = (), None
        return is_worth_a_line(about.get("attempt", 1))
    return not isinstance(error, asyncio.CancelledError)


def _closed(error: BaseException | None) -> PayloadClosed | None:
    """The payload that no key here opens, if that is what is behind the error."""
    while error is not None and not isinstance(error, PayloadClosed):
        error = error.__cause__
    return error


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
