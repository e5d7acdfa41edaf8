"""A trainer configuration, as far as it is read here: who restarts it, on how many systems, where it saves.

Everything else in it is the trainer's own business: kept, and not judged.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from everstep.dialects.native.values import NODES, Path

RESTARTS = 1_000_000

Section = dict[str, Any]


class Part(BaseModel):
    """What all parts have in common: keys that are not read are kept."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)


class AutoRestart(Part):
    model_config = ConfigDict(extra="forbid")

    max_num_restarts: Annotated[int, Field(ge=0, le=RESTARTS)]
    min_num_csx: Annotated[int, Field(ge=1, le=NODES)] = 1


class ClusterConfig(Part):
    num_csx: Annotated[int, Field(ge=1, le=NODES)] | None = None


class Systems(Part):
    cluster_config: ClusterConfig | None = None


class Saving(Part):
    steps: Annotated[int, Field(ge=0)] | None = None
    checkpoint_root: Path | None = None


class Init(Part):
    model_dir: Path | None = None
    backend: Systems | None = None
    checkpoint: Saving | None = None
    autorestart: AutoRestart | None = None
    loop: Any = None

    @property
    def num_csx(self) -> int:
        """On how many systems it wants to run."""
        cluster = self.backend.cluster_config if self.backend else None
        return (cluster.num_csx if cluster else None) or 1

    @property
    def saves(self) -> bool:
        return self.save_every > 0

    @property
    def save_every(self) -> int:
        return (self.checkpoint.steps if self.checkpoint else None) or 0

    @property
    def counts_anew(self) -> bool:
        """Whether it says how many steps a run makes, and not at which one training is over."""
        return isinstance(self.loop, dict) and self.loop.get("num_steps") is not None

    @property
    def last_step(self) -> int | None:
        """At which its training is over, as far as it says."""
        said = self.loop if isinstance(self.loop, dict) else {}
        known = (said.get(key) for key in ("max_steps", "num_steps"))
        return next((n for n in known if type(n) is int), None)


class Trainer(Part):
    init: Init
    fit: Section | None = None
    validation: Section | None = Field(default=None, alias="validate")
    validate_all: Section | None = None
