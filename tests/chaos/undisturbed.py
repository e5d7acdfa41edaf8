"""The weights of the synthetic example at each step, computed in this process without any I/O."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Self

from tests.support.machine import EXAMPLES

RATE = 0.02  # the default of the script


@cache
def example() -> ModuleType:
    """`train.py` of the example."""
    spec = importlib.util.spec_from_file_location("train", EXAMPLES / "synthetic" / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train"] = (
        module  # dataclasses look their module up; the trainer imports it by this name
    )
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """A digest for each step, the first one first, and what `final.json` holds."""

    digests: Sequence[str]
    final: Mapping[str, object]

    @classmethod
    def up_to(cls, last: int) -> Self:
        train = example()
        model, digests = train.fresh(), []
        for step in range(1, last + 1):
            parts = {
                shard: train.shard_sum(model.weights, step, shard) for shard in range(train.SHARDS)
            }
            *gradient, _ = train.in_order(parts)
            model = train.stepped(model, gradient, RATE)
            digests.append(digest(train, model))
        weights = train.digest([value.hex() for value in model.weights])
        return cls(digests=digests, final={"step": model.step, "weights_sha256": weights})


def digest(train: ModuleType, model: object) -> str:
    """As the trainer makes it."""
    values = (*model.weights, *model.momentum)  # type: ignore[attr-defined]  # of a module loaded by its path
    return str(train.digest([value.hex() for value in values]))[:16]
