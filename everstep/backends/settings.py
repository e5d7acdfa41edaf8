"""The settings of a backend, as a worker's environment gives them."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from everstep.backends.base import Backend
from everstep.core.errors import InvalidSpec
from everstep.core.facts import ObserverReport

PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverMessages:
    """How a cluster finds the objects in which external observers report faults, and reads one."""

    label: str  # a selector of Kubernetes
    namespace: str | None = None  # None: that of the worker's pods
    read: Callable[[Mapping[str, Any]], ObserverReport]


class BackendSettings(BaseSettings):
    """Read from `EVERSTEP_*` variables. Each backend adds its own fields."""

    model_config = SettingsConfigDict(env_prefix="EVERSTEP_", env_nested_delimiter="__")

    scales_time: ClassVar[bool] = False
    """Whether EVERSTEP_TIME_SCALE has an effect: only clusters for rehearsals have a scale of time."""

    def __init__(self, **values: Any) -> None:
        """Raises InvalidSpec for a variable that is to be JSON and is not, ValidationError for others."""
        try:
            super().__init__(**values)
        except SettingsError as error:
            field = str(error).split('"')[1]  # pydantic's sentence has its name in quotes
            name = f"EVERSTEP_{field}".upper()
            what = f"is {os.environ.get(name)!r}, which is not JSON"
            raise InvalidSpec([(name, what)]) from None

    @abstractmethod
    async def open(
        self,
        *,
        make_home: Callable[[], Path],
        server: str,
        messages: Sequence[ObserverMessages] = (),
    ) -> Backend:
        """Open the backend for a worker of this Temporal server.

        `make_home` makes the state directory, for backends that have things there. Raises InvalidSpec or
        BackendUnavailable.
        """
