"""Faults that MindCluster's device plugin writes: a ConfigMap of each node, with all that is there now.

A fault that is no longer in it is over. Public faults are left out: they have messages of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from everstep.core.facts import LASTS_UNTIL_HEALED, Detail, Fact, ObserverReport

NAMESPACE = "kube-system"
LABEL = ("mx-consumer-cim", "true")
"""Of the ConfigMaps that MindCluster's own components read; not all of them are about devices."""
KEY = "DeviceInfoCfg"
PREFIX = "mindx-dl-deviceinfo-"
"""How their names begin; the name of the node follows."""

_FAULTS = "-Fault"  # huawei.com/Ascend910-Fault
_MILLISECONDS_FROM = 10**11
_TIME_MOST = 9_999_999_999_999


def _bounded(time: int) -> int:
    """The time, or 0 where it is none."""
    return time if 0 <= time <= _TIME_MOST else 0


Time = Annotated[int, AfterValidator(_bounded)]
Values = TypeVar("Values")


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Values) -> Values | dict[str, Any]:
        """Go writes null for a map or a list that has nothing in it."""
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None}


class CodeTime(_Part):
    """When one code came, and its level."""

    at: Time = Field(default=0, alias="fault_time")
    level: str = Field(default="", alias="fault_level")


class DeviceFault(_Part):
    """One device, or one node, with all its codes."""

    kind: Literal["CardUnhealthy", "CardNetworkUnhealthy", "NodeUnhealthy", "PublicFault"] = Field(
        alias="fault_type"
    )
    device: Annotated[str, Field(max_length=253)] = Field(default="", alias="npu_name")
    codes: Annotated[str, Field(max_length=10_000)] = Field(default="", alias="fault_code")
    handling: str = Field(default="", alias="fault_handling")
    level: str = Field(default="", alias="fault_level")
    times: dict[str, CodeTime | None] = Field(
        default_factory=dict, alias="fault_time_and_level_map"
    )


class _Devices(_Part):
    lists: dict[str, str] = Field(default_factory=dict, alias="DeviceList")
    updated: Time = Field(default=0, alias="UpdateTime")


class _DeviceInfo(_Part):
    devices: _Devices = Field(alias="DeviceInfo")


_ENTRIES = TypeAdapter(list[Any] | None)


def observer_report(config_map: Mapping[str, Any]) -> ObserverReport:
    """The facts of a ConfigMap of a cluster; none of one that is not about devices.

    An entry that cannot be read is dropped. The others hold.
    """
    name = str(config_map["metadata"]["name"])
    text = (config_map.get("data") or {}).get(KEY)
    if text is None or not name.startswith(PREFIX):
        return ObserverReport()
    try:
        devices = _DeviceInfo.model_validate_json(text).devices
    except ValidationError as error:
        return ObserverReport(dropped=(_sentence(error),))
    node = name.removeprefix(PREFIX)
    facts: list[Fact] = []
    dropped: list[str] = []
    for place, entry in _entries(devices):
        if isinstance(entry, ValidationError):
            dropped.append(_sentence(entry, *place))
            continue
        try:
            fault = DeviceFault.model_validate(entry)
        except ValidationError as error:
            dropped.append(_sentence(error, *place))
        else:
            facts += _facts(node, fault, devices.updated)
    return ObserverReport(tuple(facts), tuple(dropped), lists_all_of=node)


def _entries(devices: _Devices) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Each entry of each list of faults with its place; an error for a list that cannot be read."""
    for key, text in devices.lists.items():
        if not key.endswith(_FAULTS):
            continue
        place = ("DeviceList", key)
        try:
            entries = _ENTRIES.validate_json(text or "null") or []
        except ValidationError as error:
            yield place, error
        else:
            yield from (((*place, n), entry) for n, entry in enumerate(entries))


def _sentence(error: ValidationError, *place: str | int) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors()[0]
    where = ".".join(map(str, (*place, *first["loc"])))
    return f"{KEY} {where}: {first['msg']}"


def _facts(node: str, fault: DeviceFault, updated: int) -> Iterator[Fact]:
    if fault.kind == "PublicFault":
        return
    digits = fault.device.rpartition("-")[2]
    device = int(digits) if digits.isdecimal() and fault.kind != "NodeUnhealthy" else None
    codes = [code.strip() for code in fault.codes.split(",") if code.strip()]
    for code in codes or [""]:
        time = fault.times.get(code) or CodeTime()
        level = time.level or fault.handling or fault.level
        details: dict[str, Detail] = {LASTS_UNTIL_HEALED: True}
        if level:
            details["level"] = level
        yield Fact(
            id="/".join(filter(None, ("device-info", node, fault.device, code, str(time.at)))),
            kind="device.fault",
            at=_seconds(time.at or updated),
            node=node,
            device=device,
            code=code or None,
            message=f"{fault.kind} on {fault.device or node}, its device plugin reports",
            details=details,
        )


def _seconds(time: int) -> float:
    """Versions of MindCluster write seconds or milliseconds."""
    return time / 1000 if time >= _MILLISECONDS_FROM else float(time)
