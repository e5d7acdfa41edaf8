"""What the API server reports of a pod, as tables: the first row that matches counts. Pure.

`ENDS` makes facts of pods in which ranks may have run, `WAITS` sentences about pods that do not run yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.manifest import CONTAINER, KUEUE_FINALIZER
from everstep.core.waits import WaitCause, WaitKind

Json = Mapping[str, Any]
"""An object of the API, as the server wrote it."""

_PASSING = frozenset({KUEUE_FINALIZER, "foregroundDeletion", "orphan"})
"""Finalizers that we, or the cluster itself, take away."""
LAST_WORDS_MOST = 200
"""Characters of the end of the log of a container that failed."""
_FINAL = frozenset({"Succeeded", "Failed"})
_SHUTDOWN = frozenset({"NodeShutdown", "Shutdown", "Terminated"})
_TAKEN_BACK = _SHUTDOWN | {"Preempting", "Evicted"}
_OF_GANG = frozenset({"Schedulable", "Undetermined"})
"""Volcano's reasons of a pod that is not scheduled: it has a place, or was not tried, as others have none."""
_CANNOT_START = ("Err", "Image", "Create", "Invalid", "CrashLoop", "RunContainer", "PostStart")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """A pod, and the node that it is bound to where there is one."""

    pod: Json
    node: Json | None = None

    @property
    def status(self) -> Json:
        status: Json = self.pod.get("status", {})
        return status

    @property
    def reason(self) -> str:
        """Why its kubelet ended the pod as a whole; empty: it did not."""
        return str(self.status.get("reason", ""))

    @property
    def containers(self) -> Iterator[Json]:
        """The statuses of all containers, those that run first before the others."""
        yield from self.status.get("initContainerStatuses", ())
        yield from self.status.get("containerStatuses", ())

    def condition(self, kind: str) -> Json:
        """Empty: the pod has none of this type."""
        conditions = self.status.get("conditions", ())
        return next((one for one in conditions if one["type"] == kind), {})

    @property
    def disruption(self) -> str:
        """Who is about to end the pod, or did; empty: it was not disrupted."""
        condition = self.condition("DisruptionTarget")
        return str(condition.get("reason", "")) if condition.get("status") == "True" else ""

    @property
    def stop(self) -> str:
        """Why Kueue is about to end the pod, or did; empty: it does not."""
        condition = self.condition("TerminationTarget")
        return str(condition.get("reason", "")) if condition.get("status") == "True" else ""

    @property
    def ending(self) -> Json:
        """How the agent's container ended; empty: it did not."""
        states = (one.get("state", {}) for one in self.containers if one["name"] == CONTAINER)
        ending: Json = next((state.get("terminated", {}) for state in states), {})
        return ending

    @property
    def is_gated(self) -> bool:
        return bool(self.condition("PodScheduled").get("reason") == "SchedulingGated")

    @property
    def is_held_by_gang(self) -> bool:
        return self.condition("PodScheduled").get("reason") in _OF_GANG

    @property
    def is_deleted(self) -> bool:
        return "deletionTimestamp" in self.pod["metadata"]

    @property
    def is_cordoned(self) -> bool:
        return self.node is not None and bool(self.node["spec"].get("unschedulable"))

    @property
    def is_node_ready(self) -> bool:
        conditions = (self.node or {}).get("status", {}).get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


# -- Pods that end ----------------------------------------------------------------------------------


def _disruption_message(report: PodReport) -> str:
    return str(report.condition("DisruptionTarget").get("message") or report.disruption)


def _stop_message(report: PodReport) -> str:
    return f"Kueue: {report.condition('TerminationTarget').get('message') or report.stop}"


def _status_message(report: PodReport) -> str:
    return ": ".join(filter(None, (report.reason, report.status.get("message", ""))))


def _exit_message(report: PodReport) -> str:
    ending = report.ending
    words = f"container {CONTAINER} ended with exit code {ending.get('exitCode')}"
    reason = ending.get("reason", "")
    return f"{words} ({reason})" if reason else words


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRow:
    """A pod that this row matches is a fact of this kind. `field`: where it stands in the pod."""

    kind: str
    field: str
    why: str
    matches: Callable[[PodReport], bool]
    message: Callable[[PodReport], str]


def _disrupted(*reasons: str) -> Callable[[PodReport], bool]:
    return lambda report: report.disruption in reasons


def _ended_with(reasons: Collection[str]) -> Callable[[PodReport], bool]:
    return lambda report: report.reason in reasons


ENDS: tuple[EndRow, ...] = (
    EndRow(
        kind="pod.preempted",
        field="DisruptionTarget: PreemptionByScheduler",
        why="the scheduler gives its place to a pod of higher priority",
        matches=_disrupted("PreemptionByScheduler"),
        message=_disruption_message,
    ),
    EndRow(
        kind="pod.preempted",
        field="status.reason: Preempting",
        why="the kubelet made room for a critical pod",
        matches=_ended_with({"Preempting"}),
        message=_status_message,
    ),
    EndRow(
        kind="pod.preempted",
        field="TerminationTarget: WorkloadEvictedDueToPreempted",
        why="Kueue gives its quota to a more important job",
        matches=lambda r: r.stop == "WorkloadEvictedDueToPreempted",
        message=_stop_message,
    ),
    EndRow(
        kind="pod.evicted",
        field="TerminationTarget",
        why="Kueue takes the quota back: its queue is stopped, or an operator ended the workload",
        matches=lambda r: bool(r.stop),
        message=_stop_message,
    ),
    # Before eviction: a drain evicts from a node that it has cordoned.
    EndRow(
        kind="pod.drained",
        field="DisruptionTarget: EvictionByEvictionAPI, node cordoned",
        why="the node is drained: somebody wants to service it, or an autoscaler removes it",
        matches=lambda r: r.disruption == "EvictionByEvictionAPI" and r.is_cordoned,
        message=_disruption_message,
    ),
    EndRow(
        kind="pod.drained",
        field="status.reason: NodeShutdown or Terminated",
        why="the node shuts down in an orderly way",
        matches=_ended_with(_SHUTDOWN),
        message=_status_message,
    ),
    EndRow(
        kind="pod.evicted",
        field="DisruptionTarget: EvictionByEvictionAPI",
        why="the eviction API ended it on a node that takes pods",
        matches=_disrupted("EvictionByEvictionAPI"),
        message=_disruption_message,
    ),
    EndRow(
        kind="pod.evicted",
        field="status.reason: Evicted",
        why="the node is low on memory, disk or process numbers",
        matches=_ended_with({"Evicted"}),
        message=_status_message,
    ),
    # A node that is not ready is a fact by itself, and the weightier one.
    EndRow(
        kind="pod.evicted",
        field="DisruptionTarget: DeletionByTaintManager, node ready",
        why="the node got a taint that the pod does not tolerate",
        matches=lambda r: r.disruption == "DeletionByTaintManager" and r.is_node_ready,
        message=_disruption_message,
    ),
    EndRow(
        kind="pod.oom_killed",
        field="terminated.reason: OOMKilled",
        why="the container used more memory than its limit",
        matches=lambda r: r.ending.get("reason") == "OOMKilled",
        message=_exit_message,
    ),
    # Before the exit code: a deleted pod ends by the signal of its kubelet.
    EndRow(
        kind="pod.deleted",
        field="metadata.deletionTimestamp",
        why="it was deleted, and not by Everstep",
        matches=lambda r: r.is_deleted,
        message=lambda r: f"pod {r.pod['metadata']['name']} was deleted, and not by Everstep",
    ),
    EndRow(
        kind="pod.exited",
        field="terminated.exitCode",
        why="the first process of the container ended, and all ranks with it",
        matches=lambda r: bool(r.ending),
        message=_exit_message,
    ),
)
"""Why a pod ends that no order ended. Ahead of an end come notices of it, which leave time to save."""


def end_of(report: PodReport) -> EndRow | None:
    """The first row that matches this pod; None: nothing ends it."""
    return next((row for row in ENDS if row.matches(report)), None)


# -- Pods that do not run yet -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRow:
    """What a pod waits for. `message` returns the words of the cluster; empty: the row does not match."""

    kind: WaitKind
    field: str
    why: str
    message: Callable[[PodReport], str]


def _failure(report: PodReport) -> str:
    if report.status.get("phase") not in _FINAL:
        return ""
    return ": ".join(filter(None, (_status_message(report), _bad_ending(report)))) or "it ended"


def _bad_ending(report: PodReport) -> str:
    """How the first container ended that did not end well."""
    for one in report.containers:
        ending = one.get("state", {}).get("terminated", {})
        if ending.get("exitCode"):
            last_words = " ".join(str(ending.get("message", "")).split())[-LAST_WORDS_MOST:]
            words = (f"{one['name']} exit code {ending['exitCode']}", last_words)
            return ", ".join(filter(None, words))
    return ""


def _start_problem(report: PodReport) -> str:
    for one in report.containers:
        waiting = one.get("state", {}).get("waiting", {})
        if waiting.get("reason", "").startswith(_CANNOT_START):
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message", ""))))
    return ""


def _creation_problem(report: PodReport) -> str:
    messages = (one.get("state", {}).get("waiting", {}).get("message") for one in report.containers)
    return next((str(message) for message in messages if message), "")


def _scheduling_problem(report: PodReport) -> str:
    condition = report.condition("PodScheduled")
    if condition.get("status") != "False":
        return ""
    return str(condition.get("message") or condition.get("reason") or "not scheduled")


WAITS: tuple[WaitRow, ...] = (
    WaitRow(
        kind=WaitKind.POD_FAILED,
        field="status.phase: Failed",
        why="it ended before its agent answered, and is made again",
        message=_failure,
    ),
    WaitRow(
        kind=WaitKind.POD_FAILED,
        field="waiting.reason: ErrImagePull, ImagePullBackOff, Create..., CrashLoopBackOff",
        why="its image cannot be pulled, or its container cannot be created",
        message=_start_problem,
    ),
    WaitRow(
        kind=WaitKind.POD_FAILED,
        field="waiting.message",
        why="a volume, a Secret or a ConfigMap that it names is not there",
        message=_creation_problem,
    ),
    WaitRow(
        kind=WaitKind.GATED,
        field="PodScheduled: SchedulingGated",
        why="a queue holds it back",
        message=lambda report: _scheduling_problem(report) if report.is_gated else "",
    ),
    WaitRow(
        kind=WaitKind.FITS,
        field="PodScheduled: Schedulable, Undetermined",
        why="Volcano has no place for others of its gang",
        message=lambda report: _scheduling_problem(report) if report.is_held_by_gang else "",
    ),
    WaitRow(
        kind=WaitKind.UNSCHEDULED,
        field="PodScheduled: Unschedulable",
        why="no node fits",
        message=_scheduling_problem,
    ),
)


def wait_of(pod: Json) -> WaitCause | None:
    """Why it does not run yet, in the words of the scheduler or the kubelet. None: nothing is wrong."""
    report, name = PodReport(pod=pod), pod["metadata"]["name"]
    return next((row.kind.of(name, text) for row in WAITS if (text := row.message(report))), None)


def trouble(pod: Json) -> str:
    """The words of that; empty: nothing is wrong."""
    wait = wait_of(pod)
    return "" if wait is None else wait.about[1]


def is_gated(pod: Json) -> bool:
    """Whether the scheduler is to leave it alone for now: a queue holds it back."""
    return PodReport(pod=pod).is_gated


# -- Times and ends ---------------------------------------------------------------------------------


def has_ended(pod: Json) -> bool:
    """Whether its kubelet reports that no process of the agent's container is left."""
    report = PodReport(pod=pod)
    return report.status.get("phase") in _FINAL or bool(report.ending)


def is_owned(pod: Json, uid: str) -> bool:
    """Whether the object of this uid owns the pod: that of a job's record does."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid for owner in owners)


def generation_of(pod: Json) -> int:
    """The generation that created the pod; 0 where its label is not as it was written."""
    text = str(pod["metadata"].get("labels", {}).get(names.GENERATION, ""))
    return int(text) if text.isdecimal() and text.isascii() else 0


def is_failed_start(pod: Json) -> bool:
    """Whether a container of the pod ran and ended badly, or a person or a controller deleted the pod.

    A node that refuses the pod runs none. A cluster that takes the place back says so.
    """
    report = PodReport(pod=pod)
    is_taken_back = report.disruption or report.stop or report.reason in _TAKEN_BACK
    return bool(not is_taken_back and (_bad_ending(report) or report.is_deleted))


def dead_sidecars(pod: Json) -> tuple[str, ...]:
    """Containers beside the agent's that failed, each with how: its kubelet does not bring them back."""
    report = PodReport(pod=pod)
    beside_agent = (
        one for one in report.status.get("containerStatuses", ()) if one["name"] != CONTAINER
    )
    failed = (
        f"{one['name']} ({_ending_words(one['state']['terminated'])})"
        for one in beside_agent
        if one.get("state", {}).get("terminated", {}).get("exitCode")
    )
    restarting = (
        f"{one['name']} (its kubelet starts it again and again)"
        for one in report.containers
        if one["name"] != CONTAINER
        and one.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    return (*failed, *restarting)


def _ending_words(ending: Json) -> str:
    words = f"exit code {ending['exitCode']}"
    return f"{words}, {ending['reason']}" if ending.get("reason") not in (None, "Error") else words


def held_by(pod: Json) -> str:
    """The finalizer of others that keeps the object of a deleted pod; empty: none does."""
    metadata = pod["metadata"]
    finalizers = metadata.get("finalizers") or () if "deletionTimestamp" in metadata else ()
    return next((one for one in finalizers if one not in _PASSING), "")


def created_at(pod: Json) -> float:
    return seconds(pod["metadata"]["creationTimestamp"])


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
