"""What a job waits for: a kind that code branches on, what it concerns, and the sentence made of both.

All sentences of waits are here, a row each. Several kinds share a reason: the kind is ours, the reason is for
programs that read a job's status, and docs/records.md says what to do about each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class WaitReason(StrEnum):
    """Why a job waits, as programs read it. Reasons are added, never renamed."""

    ACTIVITY_FAILING = "ActivityFailing"
    AGENT_SILENT = "AgentSilent"
    CHECKPOINTS_MISSING = "CheckpointsMissing"
    CLUSTER_TOO_SMALL = "ClusterTooSmall"
    DEVICE_HEALING = "DeviceHealing"
    FENCE_UNPROVEN = "FenceUnproven"
    NO_WORKER = "NoWorker"
    NODES_ISOLATED = "NodesIsolated"
    NODES_UNAVAILABLE = "NodesUnavailable"
    PODS_ENDING = "PodsEnding"
    PODS_FAILING = "PodsFailing"
    PODS_REFUSED = "PodsRefused"
    PODS_STARTING = "PodsStarting"
    PRECHECK_RUNNING = "PrecheckRunning"
    QUEUE = "Queue"
    QUOTA_USED_UP = "QuotaUsedUp"
    RANKS_STARTING = "RanksStarting"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    WRONG_CLUSTER = "WrongCluster"


class WaitKind(StrEnum):
    """A kind of wait, with its reason and its sentence. `{}` is what it concerns."""

    reason: WaitReason
    template: str

    def __new__(cls, name: str, reason: WaitReason, template: str) -> Self:
        kind = str.__new__(cls, name)
        kind._value_, kind.reason, kind.template = name, reason, template
        return kind

    # Of the whole job
    WORKER = "worker", WaitReason.NO_WORKER, "a worker of cluster {}"
    FAILING = "failing", WaitReason.ACTIVITY_FAILING, "{}, which failed {} times: {}"
    BOOKS = "books", WaitReason.WRONG_CLUSTER, "{}"
    ANSWERS = "answers", WaitReason.AGENT_SILENT, "an answer from {}"
    STOP = "stop", WaitReason.PODS_ENDING, "the end of all processes: {}"
    # Places
    TURN = "turn", WaitReason.QUEUE, "its turn behind {}"
    ROOM = "room", WaitReason.NODES_UNAVAILABLE, "room for {}"
    ISOLATED_ROOM = "isolated room", WaitReason.NODES_ISOLATED, "room for {} ({})"
    NEVER_FITS = "never fits", WaitReason.CLUSTER_TOO_SMALL, "room for {} ({}: it never fits here)"
    DEVICE = "device", WaitReason.NODES_UNAVAILABLE, "device {}"
    ISOLATED_DEVICE = "isolated device", WaitReason.NODES_ISOLATED, "device {} ({})"
    POD_READY = "pod ready", WaitReason.PODS_STARTING, "{} to be ready"
    # Places on Kubernetes, where the last part is the cluster's words
    QUEUED = "queued", WaitReason.QUEUE, "group {} waits in queue {} of Kueue{}"
    PLACE_IN_GROUP = "place in group", WaitReason.QUEUE, "a place in group {} of Kueue"
    QUOTA = "quota", WaitReason.QUOTA_USED_UP, "{}"
    REFUSED = "refused", WaitReason.PODS_REFUSED, "{}"
    GROUP = "group", WaitReason.NODES_UNAVAILABLE, "{}"
    NEW_POD = "new pod", WaitReason.PODS_STARTING, "a pod for slot {} to be created"
    SCHEDULER = "scheduler", WaitReason.PODS_STARTING, "pod {}: the scheduler to choose a node"
    AGENT = "agent", WaitReason.PODS_STARTING, "pod {}: its agent to answer"
    FITS = "fits", WaitReason.NODES_UNAVAILABLE, "pod {}: {}"  # but others of its gang do not
    UNSCHEDULED = "unscheduled", WaitReason.NODES_UNAVAILABLE, "pod {}: {}"
    GATED = "gated", WaitReason.QUEUE, "pod {}: {}"
    POD_FAILED = "pod failed", WaitReason.PODS_FAILING, "pod {}: {}"
    POD_FAILING = "pod failing", WaitReason.PODS_FAILING, "{}"
    POD_HELD = "pod held", WaitReason.PODS_ENDING, "pod {}: the finalizer {} of others holds it"
    # The end of what ran before
    POD_GONE = "pod gone", WaitReason.PODS_ENDING, "{} to go"
    HELD_POD_GONE = (
        "held pod gone",
        WaitReason.PODS_ENDING,
        "{}, which the finalizer {} of others holds, to go",
    )
    RANKS_END = "ranks end", WaitReason.PODS_ENDING, "the ranks of {} to end"
    NEW_GENERATION = (
        "new generation",
        WaitReason.PODS_ENDING,
        "a generation that was begun meanwhile to end",
    )
    RELEASE = "release", WaitReason.PODS_STARTING, "a pod to release the folders"
    RELEASER = "releaser", WaitReason.PODS_STARTING, "pod {} to release the folders{}"
    NO_RELEASER = "no releaser", WaitReason.PODS_REFUSED, "a pod to release the folders: {}"
    NO_RELEASER_QUOTA = (
        "no releaser quota",
        WaitReason.QUOTA_USED_UP,
        "a pod to release the folders: {}",
    )
    # The fence
    FENCE = "fence", WaitReason.AGENT_SILENT, "slot {} to write the fence"
    PROOF = "proof", WaitReason.FENCE_UNPROVEN, "proof that {} ended"
    UNKNOWN_PODS = (
        "unknown pods",
        WaitReason.FENCE_UNPROVEN,
        "pods that are not in this cluster database to end by themselves",
    )
    # Storage and the start
    STORAGE = "storage", WaitReason.STORAGE_UNAVAILABLE, "the storage: {}"
    WRITABLE = "writable", WaitReason.STORAGE_UNAVAILABLE, "the storage to be writable"
    CHECKPOINTS = (
        "checkpoints",
        WaitReason.CHECKPOINTS_MISSING,
        "the checkpoints to be there again: {} has none; move them back into it",
    )
    CHECKPOINTS_AT_LAUNCH = (
        "checkpoints at launch",
        WaitReason.CHECKPOINTS_MISSING,
        "the checkpoints to be there again: {} has none; move them back into it. To begin without "
        "them, submit the job under another ID",
    )
    LISTING = "listing", WaitReason.AGENT_SILENT, "{}"
    HEAL = "heal", WaitReason.DEVICE_HEALING, "device {}/{} to heal"
    PRECHECK = "precheck", WaitReason.PRECHECK_RUNNING, "the checks before the start"
    START = "start", WaitReason.RANKS_STARTING, "slot {} to start its ranks{}"

    def of(self, *about: object) -> WaitCause:
        return WaitCause(kind=self, about=tuple(map(str, about)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitCause:
    """What is waited for. `hints` are what a person can do about it, or what else stands in the way."""

    kind: WaitKind
    about: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def reason(self) -> WaitReason:
        return self.kind.reason

    @property
    def sentence(self) -> str:
        return "; ".join((self.kind.template.format(*self.about), *self.hints))


def sentence_of(cause: WaitCause | None) -> str:
    """The sentence, empty where nothing is waited for."""
    return "" if cause is None else cause.sentence


def known_reason(text: object) -> str:
    """The reason that another process reports; empty for one that this version does not have."""
    return str(text) if text in [*WaitReason] else ""
