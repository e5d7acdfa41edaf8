"""What a failure on the server says: its text is encrypted where workers have keys."""

from __future__ import annotations

from collections.abc import Iterable

from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client

from everstep.core.errors import PayloadClosed


async def message(client: Client, failure: Failure) -> str:
    """The message of the failure; where no key here opens it, the sentence about that."""
    if not failure.HasField("encoded_attributes"):
        return failure.message
    readable = Failure()
    readable.CopyFrom(failure)  # it is decoded in place
    try:
        return str(getattr(await client.data_converter.decode_failure(readable), "message", ""))
    except PayloadClosed as error:
        return str(error)


async def readable(
    client: Client, pending: Iterable[PendingActivityInfo]
) -> list[PendingActivityInfo]:
    """The activities with the messages of their last failures decoded."""
    decoded = []
    for each in pending:
        copy = PendingActivityInfo()
        copy.CopyFrom(each)
        if copy.HasField("last_failure"):
            copy.last_failure.message = await message(client, each.last_failure)
        decoded.append(copy)
    return decoded
