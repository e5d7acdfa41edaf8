"""The command `setup`: what jobs need on a Temporal server, made once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Any

import typer
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep import devserver
from everstep.cli.durations import parse_duration
from everstep.cli.output import AsJson, Page, show
from everstep.cli.server import with_server
from everstep.client.exit_codes import Exit, Failed

POLL_S = 0.2
KNOWN_WITHIN_S = 60.0
"""Seconds that all parts of a server may take until they use a new namespace or attribute."""

TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
}


def setup(
    retention: Annotated[
        str, typer.Option(metavar="AGE", help="How long a new namespace keeps ended jobs: 30d.")
    ] = "30d",
    as_json: AsJson = False,
) -> None:
    """Create the namespace and the search attributes that jobs need, where they are missing.

    Safe to repeat. What is there stays as it is.
    """
    period = timedelta(seconds=parse_duration("--retention", retention, hint=""))
    show(with_server(lambda client: _set_up(client, period)), _page, as_json=as_json)


async def _set_up(client: Client, retention: timedelta) -> dict[str, Any]:
    has_registered = await _ensure_namespace(client, retention)
    try:
        async with asyncio.timeout(KNOWN_WITHIN_S):
            added = await _ensure_attributes(client)
    except TimeoutError:
        what = f"namespace {client.namespace} is not ready after {KNOWN_WITHIN_S:.0f} s"
        raise Failed(Exit.UNREACHABLE, f"{what}; run it again") from None
    return {"namespace": client.namespace, "registered": has_registered, "added": added}


async def _ensure_namespace(client: Client, retention: timedelta) -> bool:
    """Whether it had to be registered."""
    service, name = client.workflow_service, client.namespace
    period = Duration()
    period.FromTimedelta(retention)
    request = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=period)
    with _Unless(RPCStatusCode.NOT_FOUND):
        await service.describe_namespace(DescribeNamespaceRequest(namespace=name))
        return False
    with _Unless(RPCStatusCode.ALREADY_EXISTS):  # another one was first
        await service.register_namespace(request)
    return True


class _Unless:
    """A block that ends without error where the server answers with one of these."""

    def __init__(self, *statuses: RPCStatusCode) -> None:
        self._statuses = statuses

    def __enter__(self) -> None:
        """Nothing is prepared."""

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> bool:
        return isinstance(error, RPCError) and error.status in self._statuses


async def _ensure_attributes(client: Client) -> list[str]:
    """The names of those that had to be added; returns when the server lists all of them."""
    added: list[str] = []
    while True:
        with _Unless(RPCStatusCode.NOT_FOUND, RPCStatusCode.ALREADY_EXISTS):
            missing = await devserver.missing_attributes(client)
            if not missing:
                return added
            types = devserver.search_attributes()
            types_to_add = {name: TYPES[types[name]] for name in missing if name not in added}
            if types_to_add:
                request = AddSearchAttributesRequest(
                    namespace=client.namespace, search_attributes=types_to_add
                )
                await client.operator_service.add_search_attributes(request)
                added += types_to_add
        await asyncio.sleep(POLL_S)


def _page(value: dict[str, Any]) -> Page:
    name = value["namespace"]
    yield f"namespace {name} {'is registered' if value['registered'] else 'was there'}"
    added = ", ".join(value["added"])
    yield f"search attributes added: {added}" if added else "every search attribute was there"
