"""The input of a workflow that any client may start by hand: read by its type, or refused in a sentence.

A type in the signature of `run` would fail the workflow's task instead, again and again
(docs/decisions/0006-unreadable-input-is-a-value.md).
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from everstep.converter import Unreadable
from everstep.core.bounds import NAME_MOST, quoted

T = TypeVar("T")


def typed(value: Any, kind: type[T]) -> T:
    """What came without its type, read again with it. Raises ValidationError."""
    converter = workflow.payload_converter()
    read: T = converter.from_payload(converter.to_payload(value), kind)
    return read


def read(raw: tuple[Any, ...], kind: type[T]) -> T | ApplicationError:
    """The only argument as a `kind`, or the failure with which the workflow has to end.

    Raises RuntimeError where our own code wrote the argument (the job of a Recovery, the run before this one)
    and this worker cannot read it: the task is tried again until a worker of the right version takes it.
    """
    try:
        return _parsed(raw, kind)
    except ValueError as error:
        problem = _sentence(error)
    info = workflow.info()
    if info.parent is not None or info.continued_run_id is not None:
        raise RuntimeError(f"what our own code wrote cannot be read here: {problem}")
    return ApplicationError(problem, type="InvalidSpec", non_retryable=True)


def required(value: T | ApplicationError) -> T:
    """The input. Raises the failure if there is one instead: from `run` alone does it end the workflow."""
    if isinstance(value, ApplicationError):
        raise value
    return value


def checked_cluster(name: str) -> str:
    """The name of a cluster. Raises the failure if no task queue can be named after it.

    The server would fail each task of the workflow that orders an activity there.
    """
    if name.strip() and name.isprintable() and len(name) <= NAME_MOST:
        return name
    problem = (
        f"input: {quoted(name)} is no name of a cluster: 1 to {NAME_MOST} printable characters"
    )
    raise ApplicationError(problem, type="InvalidSpec", non_retryable=True)


def _parsed(raw: tuple[Any, ...], kind: type[T]) -> T:
    """The only argument as a `kind`. Raises ValueError, of which ValidationError is one."""
    if len(raw) != 1:
        raise ValueError(f"exactly one argument is needed, not {len(raw)}")
    if isinstance(raw[0], Unreadable):
        raise ValueError(f"not readable JSON ({raw[0].why})")
    value = typed(raw[0], kind)
    # Null and bytes have converters of their own, which ignore the type.
    if not isinstance(value, kind):
        raise ValueError("neither null nor bytes can be read as JSON")
    return value


def _sentence(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return f"input: {error}"
    first = error.errors(include_url=False)[0]
    field = ".".join(["input", *map(str, first["loc"])])
    return f"{field}: {first['msg']}"
