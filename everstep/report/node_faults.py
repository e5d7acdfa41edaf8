"""The faults that a report counts against the node on which they occurred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.core.levels import FaultClass

OF_THE_NODE = frozenset({FaultClass.NODE, FaultClass.DEVICE, FaultClass.DEVICE_FATAL})
OF_ISOLATED_NODES = frozenset({FaultClass.PRECHECK})
"""A check before the start isolates the node only where it found faulty hardware."""


def is_of_node(record: Mapping[str, Any]) -> bool:
    """Whether the node of this restart broke. A crash, a hang or a bad number is the script's own."""
    cls = record["fault"]["class"]
    return cls in OF_THE_NODE or (cls in OF_ISOLATED_NODES and record["isolated"] is True)
