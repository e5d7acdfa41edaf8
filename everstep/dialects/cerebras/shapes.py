"""A trainer configuration, as far as it is read here: who restarts it, on how many systems, where it saves.

Everything else in it is the trainer's own business: kept, and not judged.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from everstep.dialects.native.values import NODES, Path

Section = dict[str, Any]


class Part(BaseModel):
    """What all parts have in common: keys that are not read are kept."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)


class AutoRestart(Part):
    model_config = ConfigDict(extra="forbid")

    max_num_restarts: Annotated[int, Field(ge=0)]
    min_num_csx: Annotated[int, Field(ge=1, le=NODES)] = 1


class ClusterConfig(Part):
    num_csx: Annotated[int, Field(ge=1, le=NODES)] | None = None


class Systems(Part):
    backend_type: Any = None
    cluster_config: ClusterConfig | None = None


class Saving(Part):
    steps: Annotated[int, Field(ge=0)] | None = None
    checkpoint_root: Path | None = None
    checkpoint_name: Annotated[str, Field(min_length=1, max_length=255)] | None = None

    @property
    def pattern(self) -> str | None:
        """A pattern of its checkpoints' names, if it sets one; a second save of a name adds a time."""
        parts = re.split(r"\{step[^{}]*\}", self.checkpoint_name or "")
        if len(parts) != 2 or "{" in "".join(parts):
            return None
        head, rest = parts
        tail, dot, ending = rest.rpartition(".") if "." in rest else (rest, "", "")
        stem = f"{re.escape(head)}(?P<step>\\d+){re.escape(tail)}"
        return rf"^{stem}(?:_(?P<again>[\d_-]+))?{re.escape(dot + ending)}$"


class Init(Part):
    model_dir: Path | None = None
    backend: Systems | None = None
    checkpoint: Saving | None = None
    autorestart: AutoRestart | None = None
    loop: Any = None

    @property
    def num_csx(self) -> int:
        """The number of systems it wants."""
        cluster = self.backend.cluster_config if self.backend else None
        return (cluster.num_csx if cluster else None) or 1

    @property
    def is_on_csx(self) -> bool:
        """Whether it runs on systems, so that their number counts."""
        backend_type = self.backend.backend_type if self.backend else None
        return not isinstance(backend_type, str) or backend_type.upper() == "CSX"

    @property
    def least_csx(self) -> int:
        """The least number of systems it goes on with."""
        least = self.autorestart.min_num_csx if self.autorestart else self.num_csx
        # On systems a larger least is refused by document.py.
        return least if self.is_on_csx else min(least, self.num_csx)

    @property
    def saves(self) -> bool:
        return self.save_every > 0

    @property
    def save_every(self) -> int:
        return (self.checkpoint.steps if self.checkpoint else None) or 0

    @property
    def relative_loop_key(self) -> str | None:
        """The key that limits each run instead of the whole training, if it has one."""
        loop = self.loop if isinstance(self.loop, dict) else {}
        return next((key for key in ("num_steps", "num_epochs") if loop.get(key) is not None), None)

    @property
    def last_step(self) -> int | None:
        """The last step of the training, if it sets one."""
        loop = self.loop if isinstance(self.loop, dict) else {}
        limits = (loop.get(key) for key in ("max_steps", "num_steps"))
        return next((n for n in limits if type(n) is int), None)


class Trainer(Part):
    init: Init
    fit: Section | None = None
    validation: Section | None = Field(default=None, alias="validate")
    validate_all: Section | None = None
