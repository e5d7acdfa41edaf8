"""Durations as users write them: 30m, 12h, 7d, 2w."""

from __future__ import annotations

import re

from everstep.client.exit_codes import Exit, Failed

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(option: str, text: str, *, hint: str = "") -> float:
    """Seconds; `Failed` with a sentence that names the option."""
    matched = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if matched is None:
        raise Failed(Exit.USAGE, f"{option} {text}: give a number and a unit, 12h, 7d or 2w{hint}")
    return int(matched[1]) * UNITS[matched[2]]
