"""The utilisation of a pod's devices, and whether it changed since the sample before.

Simulated devices read it from a file at each look, so that a test or a person may change it:
`{"devices": {"0": {"utilisation": 37}, "1": {"utilisation": "vary"}}}`, where `vary` is a number that is
never twice the same. The devices that the file names stand for the pod. If it names none, they count as busy
whenever the processes do I/O; use of the processor does not count, as a hung process may spin. Real devices
are read through the vendor's tool, unless the file names them. If the file cannot be read, or the tool is
missing, the utilisation is unknown.

The file may also hold the inputs of MindCluster's rule for a hung NPU, for devices of any kind:
`{"utilisation": 0, "memory_mb": 30000, "packets": 123456}`. What people are shown of devices is read from it
too, with `memory_total_mb`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everstep.agent.observing.device_tool import Tool
from everstep.agent.observing.stillness import Band
from everstep.agent.storage import files
from everstep.protocol import bounds, wire

VARIES = "vary"


def simulated(path: str | None) -> Mapping[str, Any] | None:
    """The metrics in the file, by device index. Empty if there is no file, None if it cannot be read."""
    if path is None:
        return {}
    try:
        entries = files.read_json(Path(path))["devices"]
        return {
            i: _shown_value(one["utilisation"])
            for i, one in entries.items()
            if "utilisation" in one
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _shown_value(value: Any) -> float | str | None:
    """What a device shows of its use; None for what is neither a number nor the word for change."""
    if value == VARIES:
        return VARIES
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) <= bounds.NUMBER_MOST else None


class HangSigns(NamedTuple):
    """What one device shows besides its processes; None: not in the file."""

    ai_core_percent: float | None
    memory_mb: float | None
    packets: float | None  # sent and received since the device began to count


def hang_signs(path: str | None) -> Mapping[str, HangSigns]:
    """The signs of each device with its memory or traffic, by index; of no file none."""
    try:
        devices = {} if path is None else files.read_json(Path(path))["devices"]
        return {
            index: HangSigns(*(_number(device.get(key)) for key in _SIGNS))
            for index, device in devices.items()
            if device.keys() & {*_SIGNS[1:]}
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


_SIGNS = ("utilisation", "memory_mb", "packets")


def _number(value: Any) -> float | None:
    number = _shown_value(value)
    return number if isinstance(number, (int, float)) else None


def shown_use(indices: Iterable[int], path: str | None, tool: Tool | None) -> list[wire.DeviceUse]:
    """The use and memory of those devices that the file or the tool shows."""
    try:
        entries = {} if path is None else files.read_json(Path(path))["devices"]
        in_file = {index: entries.get(str(index)) for index in indices}
        uses = [_shown_use(index, entry or {}, tool) for index, entry in in_file.items()]
    except FileNotFoundError:
        uses = [_shown_use(index, {}, tool) for index in indices]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [use for use in uses if use["percent"] is not None or use["memory_mb"] is not None]


def _shown_use(index: int, entry: Mapping[str, Any], tool: Tool | None) -> wire.DeviceUse:
    """What the file has of a device comes before what the tool printed."""
    percent, used, total = (
        _number(entry.get(key)) for key in ("utilisation", "memory_mb", "memory_total_mb")
    )
    if tool is not None:
        percent = tool.percents.get(index) if percent is None else percent
        memory = tool.memory.get(index)
        if memory is not None and used is None:
            used, total = memory
    return {"index": index, "percent": percent, "memory_mb": used, "memory_total_mb": total}


def utilisation(readings: Mapping[str, Any] | None, indices: Iterable[int]) -> Mapping[int, Any]:
    """What each of these devices shows; one that shows nothing is left out."""
    return (
        {index: readings[str(index)] for index in indices if str(index) in readings}
        if readings
        else {}
    )


def have_moved(before: Mapping[int, Any], now: Mapping[int, Any]) -> bool:
    """Whether any of them shows something else than it did, or never shows the same."""
    return any(
        value == VARIES or (index in before and before[index] != value)
        for index, value in now.items()
    )


class Use:
    """The use of the devices of one run, sample by sample."""

    def __init__(self, indices: Iterable[int], tool: Tool | None) -> None:
        self._bands = {index: Band() for index in indices}
        self._tool = tool
        self._runs = tool.runs if tool is not None else 0

    def run_tool(self, *, every_s: float) -> None:
        """Run the tool again, if there is one and it is due."""
        if self._tool is not None:
            self._tool.sample(self._bands, every_s=every_s)

    def has_news(self, view: Mapping[int, Any] | None) -> bool:
        """Whether there is a sample to take: a tool answers seldomer than we look."""
        if self._tool is None or view is None or len(view) == len(self._bands):
            return True
        if self._tool.runs == self._runs:
            return False
        self._runs = self._tool.runs
        return True

    def changed(self, view: Mapping[int, Any] | None, *, works: bool | None) -> bool | None:
        """Whether the use of any device changed; None if that is unknown of some and no other one changed.

        `view`: what the metrics file shows, by device; None: it cannot be read. `works`: whether the
        processes did I/O since the sample before, which counts where neither file nor tool shows a device.
        """
        if view is None or not self._bands:
            return None
        if self._tool is None:
            changes = [self._add(index, value) for index, value in view.items()] or [works]
        else:
            values = {**self._tool.percents, **view}
            changes = [self._add(index, values.get(index)) for index in self._bands]
        if True in changes:
            return True
        return None if None in changes else False

    def _add(self, index: int, value: Any) -> bool | None:
        """Add a sample of one device; return whether its use changed."""
        band = self._bands[index]
        if value == VARIES:
            band.forget()
            return True
        return None if value is None else band.add(value)
