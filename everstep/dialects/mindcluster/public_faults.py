"""Public faults: what external observers report, in MindCluster's message or the ConfigMap around it.

Each device of each node that a fault concerns becomes a report for a job; what is not on its nodes does not
concern it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from everstep.core.errors import InvalidSpec
from everstep.core.facts import LASTS_UNTIL_HEALED, Fact, ObserverReport
from everstep.dialects.native.values import Matches
from everstep.documents.problems import Problem, judged, path, problem, refusal
from everstep.documents.text import read_text

KEY = "PublicFault"
"""The key of the message in a ConfigMap's data."""
LABEL = ("mc-consumer-publicfault", "true")
"""Of the ConfigMaps that hold one."""

CODE = r"[0-9]{9}"
Name = Annotated[str, Field(min_length=1, max_length=253)]
Milliseconds = Annotated[int, Field(ge=0, le=9_999_999_999_999)]


class _Part(BaseModel):
    """Keys that are not read are kept, as MindCluster keeps them."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)


class Influence(_Part):
    node: Name | None = Field(default=None, alias="nodeName")
    serial: Name | None = Field(default=None, alias="nodeSN")
    devices: Annotated[list[Annotated[int, Field(ge=0, le=1_000_000)]], Field(max_length=100)] = (
        Field(default_factory=list, alias="deviceIds")
    )

    @model_validator(mode="after")
    def _names_a_node(self) -> Influence:
        if self.node is None:
            what = "is not known here: name the node" if self.serial else "missing; name the node"
            raise problem(what, "nodeSN" if self.serial else "nodeName")
        return self


class PublicFault(_Part):
    id: Name = Field(alias="faultId")
    kind: Literal["NPU", "Node", "Network", "Storage"] = Field(alias="faultType")
    code: Annotated[str, Matches(CODE, "be a code of 9 digits")] = Field(alias="faultCode")
    at_ms: Milliseconds = Field(alias="faultTime")
    assertion: Literal["occur", "recover", "once"]
    influence: Annotated[list[Influence], Field(min_length=1, max_length=1000)]
    description: Annotated[str, Field(max_length=512)] = ""


class Message(_Part):
    id: Name
    version: Literal["1.0"]
    resource: Name
    faults: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=100)]


class PublicFaults(NamedTuple):
    """The reports of a message, one for each device or for a node as a whole, and what was dropped of it."""

    reports: tuple[dict[str, Any], ...] = ()
    dropped: tuple[Problem, ...] = ()
    # IDs of the reports of faults that last until a message says `recover`.
    lasting: frozenset[str] = frozenset()


def reports(document: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Every report of a message, or of the ConfigMap around it; the message may be written by hand.

    Raises `InvalidSpec` with everything that is wrong. The same message twice makes the same reports.
    """
    faults = _read(document)
    if faults.dropped:
        raise refusal(faults.dropped)
    return faults.reports


def is_public_fault(config_map: Mapping[str, Any]) -> bool:
    """Whether this ConfigMap of a cluster is labelled as one that holds a message."""
    metadata = config_map.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    key, value = LABEL
    return isinstance(labels, Mapping) and labels.get(key) == value


def valid_reports(config_map: Mapping[str, Any]) -> PublicFaults:
    """The reports of a ConfigMap of a cluster. As in MindCluster, a wrong fault of several is dropped."""
    try:
        return _read(config_map)
    except InvalidSpec as error:
        return PublicFaults(dropped=tuple(error.problems))


def observer_report(config_map: Mapping[str, Any]) -> ObserverReport:
    """The facts of a ConfigMap of a cluster."""
    read = valid_reports(config_map)
    facts = (
        Fact(
            **{key: report[key] for key in ("id", "kind", "at", "node", "code", "message")},
            device=report.get("device"),
            details={LASTS_UNTIL_HEALED: True} if report["id"] in read.lasting else {},
        )
        for report in read.reports
    )
    return ObserverReport(tuple(facts), tuple(": ".join(problem) for problem in read.dropped))


def _read(document: Mapping[str, Any]) -> PublicFaults:
    body, root = _body(document)
    message = judged(Message, body, *root)
    all_reports: list[dict[str, Any]] = []
    lasting: set[str] = set()
    dropped: list[Problem] = []
    for n, raw in enumerate(message.faults):
        try:
            fault = judged(PublicFault, raw, *root, "faults", n)
        except InvalidSpec as error:
            dropped += error.problems
        else:
            fault_reports = list(_reports(message, fault))
            all_reports += fault_reports
            if fault.assertion == "occur":
                lasting |= {report["id"] for report in fault_reports}
    return PublicFaults(tuple(all_reports), tuple(dropped), frozenset(lasting))


def _body(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The message itself, and the keys under which it stands."""
    if document.get("kind") != "ConfigMap":
        return document, ()
    data = document.get("data")
    text = data.get(KEY) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        raise refusal([_missing()])
    return read_text(text), ("data", KEY)


def _missing() -> Problem:
    return path("data", KEY), "missing; it holds the message, a text of JSON"


def _reports(message: Message, fault: PublicFault) -> Iterator[dict[str, Any]]:
    kind = "device.healed" if fault.assertion == "recover" else "device.fault"
    for influence in fault.influence:
        devices: tuple[int | None, ...] = tuple(influence.devices) or (None,)
        for device in devices:
            place = {"node": influence.node, "device": device}
            words = (message.resource, fault.id, fault.assertion, influence.node, device)
            yield {
                "id": "/".join(str(word) for word in words if word is not None),
                "kind": kind,
                **{key: value for key, value in place.items() if value is not None},
                "code": fault.code,
                "at": fault.at_ms / 1000,
                "message": fault.description or f"{fault.kind} fault, {message.resource} says",
            }
