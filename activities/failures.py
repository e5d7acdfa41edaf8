"""Our errors as Temporal's: the only place where one becomes the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from everstep.core.errors import (
    BackendUnavailable,
    ClusterRefused,
    CommandRejected,
    FolderTaken,
    InvalidSpec,
    StaleGeneration,
    WrongCluster,
)

WRONG_CLUSTER = "WrongCluster"
"""Tried again: another worker may be the right one. The sentence is for operators."""


def is_worth_a_line(attempt: int) -> bool:
    """Whether this attempt is the 1st, 2nd, 4th, 8th ...: retries may go on for days."""
    return attempt & (attempt - 1) == 0


@contextmanager
def translated() -> Iterator[None]:
    """Inside, our errors leave as failures whose type says whether trying again can help."""
    try:
        yield
    except InvalidSpec as error:
        fields = [{"field": field, "message": message} for field, message in error.problems]
        raise ApplicationError(str(error), fields, type="InvalidSpec", non_retryable=True) from None
    except FolderTaken as error:
        raise ApplicationError(str(error), type="InvalidSpec", non_retryable=True) from None
    except (StaleGeneration, CommandRejected, ClusterRefused) as error:
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
    except WrongCluster as error:
        raise ApplicationError(str(error), type=WRONG_CLUSTER) from None
    except BackendUnavailable as error:
        raise ApplicationError(str(error), type="BackendUnavailable") from None
