"""What a dialect is: one kind of document, how it is recognised, and who reads it. What its variables say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.core.spec import JobSpec
from everstep.core.world import SlotStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of document. `compiles` raises `InvalidSpec`."""

    name: str
    title: str
    shape: str
    recognises: Callable[[Mapping[str, Any]], bool]
    compiles: Callable[[dict[str, Any]], JobSpec]
    command: str = "spec.command"
    overlay: str = "everstep"  # the key under which it holds words of the native `spec`
    looks_like: Callable[[Mapping[str, Any]], bool] = lambda _document: False  # but for its kind
    right_kind: str = ""  # what its kind must be then
    as_pyyaml: str | None = None  # the key of texts that its own program reads too, with PyYAML
    # Whether a document may share its file with others: they are read as one Kubernetes List.
    may_share: Callable[[object], bool] = lambda _document: False
    # The document with a name for each of its phases, where it may do without.
    named: Callable[[dict[str, Any]], dict[str, Any]] = lambda document: document
    fragment: Callable[[dict[str, Any]], dict[str, Any]] = lambda document: document["spec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank is started: what variables of a dialect are made of."""

    job: str
    start: SlotStart
    restarts: int  # of its phase, by whatever level
    ranks: int  # of its pod
    devices: int  # of its pod
    hosts: tuple[str, ...]  # of all pods, by their node rank
