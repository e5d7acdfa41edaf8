"""A dialect: a kind of document, how it is recognised, and the functions that compile it.

A document compiles for a cluster of pods or of processes, and its variables for the place of a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.core.spec import JobSpec
from everstep.core.world import SlotStart

HasPods = Callable[[str], bool]
"""Whether the cluster of this name makes Kubernetes pods; otherwise it starts processes of a machine."""

_WITHOUT_PODS = frozenset({"local", "fake"})


def has_pods_by_name(cluster: str) -> bool:
    """Judge a cluster that another worker serves by its name: it is Kubernetes unless named as a backend."""
    return cluster not in _WITHOUT_PODS


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of document."""

    name: str
    title: str  # for people
    recognises: Callable[[Mapping[str, Any]], bool]
    compiles: Callable[[dict[str, Any], HasPods], JobSpec]  # raises InvalidSpec
    command: str = "spec.command"  # path of the field with the command
    overlay: str = "everstep"  # the key of its fragment of the native `spec`
    # Whether a document that no dialect recognises is of this one, but for its `kind`; the sentence for it.
    looks_like: Callable[[Mapping[str, Any]], bool] = lambda _document: False
    right_kind: str = ""
    as_pyyaml: str | None = None  # texts with this key are read as PyYAML reads them
    # Whether a document may share its file with others, which are read as one Kubernetes List.
    may_share: Callable[[object], bool] = lambda _document: False
    # The document with its whole overlay at one place, the key `overlay`, and a name for each phase there.
    with_whole_overlay: Callable[[dict[str, Any]], dict[str, Any]] = lambda document: document
    fragment: Callable[[dict[str, Any]], dict[str, Any]] = lambda document: document["spec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The place of a rank's start, from which variables of a dialect are computed."""

    job: str
    start: SlotStart
    restarts: int  # of its phase, by whatever level
    ranks: int  # of its pod
    devices: int  # of its pod
    hosts: tuple[str, ...]  # of all pods, by their node rank
