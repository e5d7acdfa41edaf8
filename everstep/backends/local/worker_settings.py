"""What a worker's environment says of the cluster that this machine is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import NoDecode

from everstep.agent.observing import hardware
from everstep.backends.agents.commands import environment
from everstep.backends.base import Backend
from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.settings import LocalSettings
from everstep.backends.settings import BackendSettings, ObserverMessages, PositiveSeconds
from everstep.core.spec import Accelerator
from everstep.protocol.wire import LOG_MB, ORPHAN_S, THRESHOLDS, Thresholds


class LocalWorkerSettings(BackendSettings):
    """Settings of a worker of a local cluster. Without any for devices, those of the machine are used."""

    scales_time: ClassVar[bool] = True

    nodes: int = Field(default=1, ge=1)
    devices: int | None = Field(default=None, ge=0)  # of each node; else as many as are found
    accelerator: Literal["auto", "none", "nvidia", "ascend", "simulated"] = "auto"
    orphan_s: PositiveSeconds = ORPHAN_S  # an agent that no worker polls for so long ends itself
    log_mb: float = Field(default=LOG_MB, ge=16, le=1_000_000)  # what of a rank's log stays
    pid_namespace: bool = True  # each pod has one of its own, where the kernel allows it
    precheck: Thresholds = THRESHOLDS  # what a place needs before a command runs there
    # What ranks find of this environment: PATH,NCCL_* or all.
    pass_env: Annotated[tuple[str, ...], NoDecode, BeforeValidator(environment.names)] = Field(
        default=environment.FOR_RANKS, validate_default=False
    )

    @field_validator("precheck")
    @classmethod
    def _can_be_measured(cls, thresholds: Thresholds) -> Thresholds:
        numbers = [value for value in thresholds if isinstance(value, int | float)]
        if not all(math.isfinite(value) and value >= 0 for value in numbers):
            raise ValueError("a finite number that is not negative is needed")
        return thresholds

    def of_cluster(self, home: Path, server: str) -> LocalSettings:
        here = hardware.devices(self.accelerator, self.devices)
        return LocalSettings(
            home=home,
            jobs=home / "jobs",
            server=server,
            nodes=self.nodes,
            devices=here.count,
            accelerator=cast("Accelerator", here.kind),
            orphan_s=self.orphan_s,
            log_mb=self.log_mb,
            has_namespace=self.pid_namespace,
            pass_env=self.pass_env,
            thresholds=self.precheck,
        )

    async def open(
        self,
        *,
        make_home: Callable[[], Path],
        server: str,
        messages: Sequence[ObserverMessages] = (),  # noqa: ARG002  # one machine has no objects that observers write
    ) -> Backend:
        return await LocalBackend.open(self.of_cluster(make_home(), server))
