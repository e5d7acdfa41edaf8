"""The words for how bad a fault is: ours, and what MindCluster's levels come to in them.

A severity says what has to be done: `warning` nothing, `minor` and `major` a reset, after which the
command runs again, `critical` somewhere else, for it does not heal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SEVERITIES = ("warning", "minor", "major", "critical")

SEVERITY_WORDS: Mapping[str, str] = {"hint": "warning", **{word: word for word in SEVERITIES}}
"""What reporters say, in small letters, and what it is here."""


def heals_by(severity: str) -> bool:
    """Whether a reset heals a fault of this severity, unless its code says otherwise."""
    return severity != "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A level in our words. Sub-healthy: the device is unwell, but what runs there goes on."""

    severity: str
    heals: bool
    is_sub_healthy: bool = False


_NOTHING = Grade(severity="warning", heals=True)
_AGAIN = Grade(severity="minor", heals=True)
_RESET = Grade(severity="major", heals=True)
_BROKEN = Grade(severity="critical", heals=False)
# A healthy job is not harmed by a device that may become worse. The document says whether it moves;
# a device that is to be left at the next occasion (pre-separate) is not given to others until then.
_UNWELL = Grade(severity="warning", heals=True, is_sub_healthy=True)
_TO_BE_LEFT = Grade(severity="major", heals=False, is_sub_healthy=True)

LEVELS: Mapping[str, Grade] = {
    "NotHandleFault": _NOTHING,
    "SubHealthFault": _UNWELL,
    "RestartRequest": _AGAIN,
    "RestartBusiness": _AGAIN,
    "FreeRestartNPU": _RESET,
    "RestartNPU": _RESET,
    "PreSeparateNPU": _TO_BE_LEFT,
    "SeparateNPU": _BROKEN,
    "ManuallySeparateNPU": _BROKEN,
    # The same for servers and for the buses between chips.
    "PreSeparateFault": _TO_BE_LEFT,
    "SeparateFault": _BROKEN,
}
"""MindCluster's levels. NVIDIA and ModelArts have no levels of their own, only actions."""
