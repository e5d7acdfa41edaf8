"""Heartbeats that no key here opens: their activity is tried again, by a worker that may have the key.

The SDK ends an activity for good if it cannot decode the heartbeat of an earlier attempt. So the converter
gives it a value in place of that, and this interceptor ends the attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from everstep.core.errors import PayloadClosed


@dataclass(frozen=True, slots=True)
class ClosedDetails:
    """Details of a heartbeat, with the reason why they are closed."""

    why: str


class ClosedHeartbeats(Interceptor):
    """Ends an attempt, to be tried again, whose earlier heartbeat or whose argument is closed."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # the SDK's name
        return _Refusing(next)


class _Refusing(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002  # the SDK's name
        for value in (*activity.info().heartbeat_details, *input.args):
            if isinstance(value, ClosedDetails):
                raise ApplicationError(value.why, type=PayloadClosed.__name__)
        return await super().execute_activity(input)
