"""The way to the server: a client from the variables and profiles that the `temporal` CLI reads.

What may go wrong on the way to the server is turned into an exit code and a sentence here, once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote

from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from everstep import devserver, processes
from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import home
from everstep.client.serving import holding
from everstep.converter import data_converter
from everstep.core.errors import KeysUnusable

LOG = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")

CONNECT_TIMEOUT = timedelta(seconds=3)
AT_ONCE = 20
ANSWER_S = 10.0  # one that takes connections may still be frozen

USUAL = "localhost:7233"
"""The default of the `temporal` CLI too."""

BROKEN_CONNECTION = "transport error"
"""What the client reports of a connection that broke in the middle of a request."""

NO_SERVER = "no Temporal server answers at {address}; {hint}"


class NoServer(Failed):
    """No server answers."""


async def of_each(some: Iterable[S], call: Callable[[S], Awaitable[T]]) -> list[T]:
    """The result of each call, `AT_ONCE` calls at a time to spare the server."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: S) -> T:
        async with gate:
            return await call(item)

    return await asyncio.gather(*map(one, some))


async def client(address: str | None = None, *, runtime: Runtime | None = None) -> Client:
    """A client of the server at this address, else of the one that the settings name.

    Raises `Failed` if none answers. `runtime` records metrics and logs of the SDK; the default one neither.
    """
    settings = _settings() if address is None else {"target_host": address}
    try:
        converter = data_converter()
    except KeysUnusable as error:
        raise Failed(Exit.USAGE, str(error)) from None
    try:
        async with asyncio.timeout(ANSWER_S):
            return await Client.connect(
                **settings,
                data_converter=converter,
                connect_timeout=CONNECT_TIMEOUT,
                runtime=runtime or _silent_runtime(),
            )
    except (RuntimeError, ValueError, TimeoutError):
        raise _no_server(settings["target_host"]) from None


@cache
def _silent_runtime() -> Runtime:
    """The runtime of commands: the SDK would log its attempts to reach a server between their lines."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


def server_name(there: Client) -> str:
    """A name of this server and namespace: the books of a cluster store it with each job."""
    return f"{there.service_client.config.target_host}/{there.namespace}"


def is_named() -> bool:
    """Whether the variables or a profile say where the server is."""
    try:
        return "target_host" in ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, OSError):
        return True  # they say something, if nothing that can be read


def address() -> str:
    """Where the server is looked for."""
    return str(_settings()["target_host"])


def _settings() -> dict[str, Any]:
    try:
        configured: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
    except (RuntimeError, ValueError, OSError) as error:
        problem = f"the TEMPORAL_* variables or the profile cannot be read: {_line(error)}"
        raise Failed(Exit.USAGE, problem) from None
    return {"target_host": _usual_address(), "namespace": "default", **configured}


def _usual_address() -> str:
    """The address if none is configured: that of this machine's server while it runs."""
    place = holding.current(home())
    return USUAL if place is None else place.address


@contextmanager
def rpc_errors_as_failed(there: Client) -> Iterator[None]:
    """Turn errors of this server into `Failed` inside the block."""
    try:
        yield
    except RPCError as error:
        raise _as_failed(error, there) from None


def _as_failed(error: RPCError, there: Client) -> Failed:
    match error.status:
        case RPCStatusCode.UNAVAILABLE | RPCStatusCode.DEADLINE_EXCEEDED | RPCStatusCode.CANCELLED:
            return _no_server(there.service_client.config.target_host)
        case RPCStatusCode.UNKNOWN if error.message == BROKEN_CONNECTION:
            return _no_server(there.service_client.config.target_host)
        case RPCStatusCode.NOT_FOUND if not is_absent(error):
            return Failed(
                Exit.UNREACHABLE,
                f"the server has no namespace {there.namespace}; set TEMPORAL_NAMESPACE, or "
                "make it with `temporal operator namespace create`",
            )
        case RPCStatusCode.NOT_FOUND:
            return Failed(Exit.NOT_FOUND, f"the server reports: {_line(error)}")
        case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
            return Failed(
                Exit.UNREACHABLE,
                f"the server does not let us in ({_line(error)}); check TEMPORAL_API_KEY and the "
                "TEMPORAL_TLS_* variables",
            )
        case _:
            return Failed(Exit.UNREACHABLE, f"the server refuses: {_line(error)}")


def is_absent(error: RPCError) -> bool:
    """Whether the server has no such workflow, or none that is open."""
    of_namespace = error.message.startswith("Namespace")
    return error.status is RPCStatusCode.NOT_FOUND and not of_namespace


async def unless_denied(rows: Awaitable[T], otherwise: T, *, note: str) -> T:
    """The rows. If we have no right to them, what is known otherwise, and a warning."""
    try:
        return await rows
    except RPCError as error:
        if error.status is not RPCStatusCode.PERMISSION_DENIED:
            raise
        LOG.warning("%s: the server denies it (%s)", note, _line(error))
        return otherwise


class UnlessAbsent:
    """A block that ends without error if the server has no such workflow, or none that is open."""

    def __enter__(self) -> None:
        """Nothing is prepared."""

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> bool:
        return isinstance(error, RPCError) and is_absent(error)


TOO_LARGE = ("Blob data size exceeds limit", "message larger than max")
"""Parts of a server's message about a payload, and about a whole request."""


def is_too_large(error: RPCError) -> bool:
    """Whether the server refuses what we sent for its size."""
    return any(text in error.message for text in TOO_LARGE)


def _no_server(address: str) -> NoServer:
    return NoServer(Exit.UNREACHABLE, NO_SERVER.format(address=address, hint=_hint(address)))


def _hint(address: str) -> str:
    directory = home()
    if full := full_disk(address):
        return full
    if _is_run_here(address):
        return f"a process of this machine runs it: {directory / devserver.LOG} may say why"
    if (directory / devserver.DATABASE).exists():
        return f"`everstep dev` serves what is in {directory}, with all its jobs, or set TEMPORAL_ADDRESS"
    return "start one with `everstep dev`, or set TEMPORAL_ADDRESS"


def full_disk(address: str) -> str:
    """What to do about the full disk of this machine's server; empty for another one or another disk."""
    if not _is_run_here(address) or not processes.is_full(home()):
        return ""
    return f"{processes.FULL.format(home())}, where it stores its jobs: make room there"


def _is_run_here(address: str) -> bool:
    """Whether a process of this machine runs the server at this address, as far as it wrote that down."""
    place = holding.current(home())
    return place is not None and place.address == address


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


# -- the web UI ---------------------------------------------------------------------------------


def ui_link(namespace: str, workflow_id: str) -> str | None:
    """Where the Temporal UI shows this workflow, if its address is known."""
    address = os.environ.get("EVERSTEP_UI") or os.environ.get("TEMPORAL_UI_ADDRESS") or _usual_ui()
    if not address:
        return None
    base = address if "://" in address else f"http://{address}"
    return f"{base.rstrip('/')}/namespaces/{namespace}/workflows/{quote(workflow_id, safe='')}"


def _usual_ui() -> str | None:
    place = None if is_named() else holding.current(home())
    return None if place is None else place.ui
