"""How the fake cluster is built and how long things take there, in virtual seconds."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.spec import Accelerator

EPOCH = 1_767_225_600.0
"""2026-01-01T00:00:00Z: when every fake cluster begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSettings:
    """Nodes are named n0, n1 and so on. Only `idle_s` is real time."""

    nodes: int = 5
    devices: int = 8
    slots: int = 1  # pods without devices that fit on one node
    accelerator: Accelerator = "simulated"
    pod_s: float = 2.0  # from the placement of a pod until it is ready
    precheck_s: float = 1.0
    heal_s: float = 10.0
    warden_s: float = 1.0  # until processes that can read a newer fence stop by themselves
    fence_s: float = 30.0  # until those that cannot read it have stopped by themselves
    fence_margin_s: float = 5.0
    keeps_effects: bool = True  # a month of 10,000 nodes has tens of millions of them
    idle_s: float = 60.0  # a job that did not call for so long no longer holds the clock
