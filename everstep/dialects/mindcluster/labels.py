"""Read the labels and annotations of a job: `read_switches` gives their values, `notes` what has no effect.

Below is each key with its place, its words and its default. A word that MindCluster itself takes for the
default is noted; a text that can mean nothing (no number, no strategy) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from everstep.dialects.mindcluster.objects import SWITCH
from everstep.dialects.mindcluster.policy import STRATEGY, FaultScheduling, SubHealthy
from everstep.documents.problems import Problem, described, path, refusal, suggestion

RETRY_TIMES = "fault-retry-times"
POD_RESCHEDULING = "pod-rescheduling"
PROCESS_RECOVER = "process-recover-enable"
SUB_HEALTHY = "subHealthyStrategy"
STRATEGIES = "recover-strategy"
WAIT = "wait-reschedule-timeout"
POLICY_PATH = "huawei.com/recover_policy_path"
MIN_REPLICAS = "minReplicas"
MIN_AVAILABLE = "huawei.com/schedule_minAvailable"

WAIT_S_DEFAULT, WAIT_S_LEAST = 270, 30
RETRIES_MOST = 1_000_000
FAULT_FILTERS = ("huawei.com/schedule.filter.faultCode", "huawei.com/schedule.filter.faultLevel")
"""Keys by which MindCluster ignores faults. They have no effect here."""

Place = Literal["labels", "annotations"]

PLACES: Mapping[str, Place] = {
    SWITCH: "labels",
    RETRY_TIMES: "labels",
    POD_RESCHEDULING: "labels",
    PROCESS_RECOVER: "labels",
    SUB_HEALTHY: "labels",
    STRATEGIES: "annotations",
    WAIT: "annotations",
    POLICY_PATH: "annotations",
    MIN_REPLICAS: "annotations",
    MIN_AVAILABLE: "annotations",
}
"""Where each key that is read has to stand."""

SCHEDULINGS: Mapping[str, FaultScheduling] = {
    "grace": "grace",
    "force": "force",
    "off": "off",
    "external-grace": "grace",  # of Deployments: another component removes the pods there
    "external-force": "force",
}
SUB_HEALTHIES: Mapping[str, SubHealthy] = {
    "ignore": "ignore",
    "graceExit": "graceExit",
    "forceExit": "forceExit",
    "hotSwitch": "hotSwitch",
}
SWITCHES: Mapping[str, tuple[str, ...]] = {
    SWITCH: tuple(SCHEDULINGS),
    POD_RESCHEDULING: ("on", "off"),
    PROCESS_RECOVER: ("on", "pause", "off"),
    SUB_HEALTHY: tuple(SUB_HEALTHIES),
    POLICY_PATH: ("pod",),
}
"""The words of a key; any other word means its default, and is noted."""
DEFAULTS: Mapping[str, str] = {
    SWITCH: "off",
    POD_RESCHEDULING: "off",
    PROCESS_RECOVER: "off",
    SUB_HEALTHY: "ignore",
    POLICY_PATH: "not given",
}
STRATEGY_NAMES = (*STRATEGY, "dump", "exit")

LIBRARY_IS_NEEDED = (
    "works where every rank runs everstep.train.torch; elsewhere the next coarser level answers"
)
STRATEGY_NOTES: Mapping[str, str] = {
    "retry": LIBRARY_IS_NEEDED,
    "recover": LIBRARY_IS_NEEDED,
    "dump": (
        "saves before pods are given up where a rank calls run.save_with of everstep.train; elsewhere a"
        " restart goes on from the newest checkpoint"
    ),
}
"""What `validate` notes of strategies in `recover-strategy`."""

WITHOUT_SWITCH = f"has no effect while {SWITCH} is off: no fault leads to a restart"


class Texts(NamedTuple):
    """The labels and annotations of a job."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def get(self, key: str) -> str | None:
        place = self.labels if PLACES[key] == "labels" else self.annotations
        return place.get(key)

    @property
    def keys(self) -> Iterator[tuple[Place, str]]:
        yield from (("labels", key) for key in self.labels)
        yield from (("annotations", key) for key in self.annotations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """The switches of a job, every default filled in."""

    fault_scheduling: FaultScheduling = "off"
    fault_retry_times: int = 0
    pod_rescheduling: bool = False
    strategies: frozenset[str] = frozenset()
    sub_healthy: SubHealthy = "ignore"
    never_job: bool = False  # recover_policy_path: pod
    wait_s: int = WAIT_S_DEFAULT
    nodes_min: int | None = None  # minReplicas; None: not set

    @property
    def is_elastic(self) -> bool:
        return "elastic-training" in self.strategies

    @property
    def shrinks(self) -> bool:
        """Whether a fault may leave the job fewer nodes."""
        return self.is_elastic and self.fault_scheduling != "off"

    @property
    def begins_with(self) -> int | None:
        """The number of nodes with which it may begin; None: all."""
        return self.nodes_min if self.shrinks else None


def read_switches(texts: Texts) -> Switches:
    """What these texts switch on. Raises `InvalidSpec` with every text that has no meaning."""
    if problems := list(_problems(texts)):
        raise refusal(problems)
    scheduling = SCHEDULINGS.get(texts.get(SWITCH) or "", "off")
    nodes_min = texts.get(MIN_REPLICAS) or texts.get(MIN_AVAILABLE)
    return Switches(
        fault_scheduling=scheduling,
        fault_retry_times=int(texts.get(RETRY_TIMES) or 0),
        pod_rescheduling=texts.get(POD_RESCHEDULING) == "on",
        strategies=frozenset(_strategies(texts)),
        sub_healthy=SUB_HEALTHIES.get(texts.get(SUB_HEALTHY) or "", "ignore"),
        never_job=texts.get(POLICY_PATH) == "pod",
        wait_s=_wait_s(texts) or WAIT_S_DEFAULT,
        nodes_min=None if nodes_min is None else int(nodes_min),
    )


def _strategies(texts: Texts) -> tuple[str, ...]:
    names = (texts.get(STRATEGIES) or "").split(",")
    return tuple(name.strip() for name in names if name.strip())


def _wait_s(texts: Texts) -> int | None:
    """The job's wait in seconds; None if MindCluster would not take its value."""
    text = texts.get(WAIT) or ""
    seconds = int(text) if re.fullmatch(r"[1-9][0-9]{1,2}", text) else 0
    return seconds if WAIT_S_LEAST <= seconds <= WAIT_S_DEFAULT else None


# --- What is wrong ----------------------------------------------------------------------------------


def at(key: str) -> str:
    """The path of a key."""
    return path("metadata", PLACES[key], key)


def _problems(texts: Texts) -> Iterator[Problem]:
    for key, least in ((RETRY_TIMES, 0), (MIN_REPLICAS, 1), (MIN_AVAILABLE, 1)):
        text = texts.get(key)
        is_number = text is None or re.fullmatch(r"0|[1-9][0-9]{0,6}", text)
        if text is not None and not (is_number and least <= int(text) <= RETRIES_MOST):
            what = f"must be a whole number from {least} to {RETRIES_MOST}, not {described(text)}"
            yield at(key), what
    for name in _strategies(texts):
        if name not in STRATEGY_NAMES:
            near = suggestion(name, STRATEGY_NAMES)
            all_values = f"its values are {', '.join(STRATEGY_NAMES)}"
            yield at(STRATEGIES), f"has no strategy {described(name)}; {near or all_values}"


# --- Notes for its author ---------------------------------------------------------------------------


def notes(texts: Texts) -> Iterator[Problem]:
    switches = read_switches(texts)
    yield from _misplaced(texts)
    yield from _defaults(texts)
    if switches.fault_scheduling == "off":
        for key in (RETRY_TIMES, POD_RESCHEDULING, STRATEGIES, SUB_HEALTHY, POLICY_PATH):
            if texts.get(key) not in (None, "off", "ignore", "0"):
                yield at(key), WITHOUT_SWITCH
        return
    yield from _strategy_notes(texts, switches)
    if (texts.get(SWITCH) or "").startswith("external-"):
        yield (
            at(SWITCH),
            f"no other component removes pods here: taken for {switches.fault_scheduling}",
        )
    if switches.fault_retry_times == 0:
        what = (
            "missing: a process that exits by itself ends the job; hardware faults are rescheduled"
        )
        yield at(RETRY_TIMES), what


def _misplaced(texts: Texts) -> Iterator[Problem]:
    for place, key in texts.keys:
        here = path("metadata", place, key)
        if key in PLACES and PLACES[key] != place:
            yield here, f"has no effect here: it belongs under metadata.{PLACES[key]}"
        elif key in FAULT_FILTERS:
            yield here, "has no effect: every fault is answered when it is seen"
        elif key not in PLACES and (near := suggestion(key, tuple(PLACES), likeness=0.85)):
            yield here, f"has no effect: {near}"


def _defaults(texts: Texts) -> Iterator[Problem]:
    for key, words in SWITCHES.items():
        text = texts.get(key)
        if text is not None and text not in words:
            near = suggestion(text, words)
            what = f"{described(text)} means {DEFAULTS[key]}; its values are {', '.join(words)}"
            yield at(key), f"{what}; {near}" if near else what
    if texts.get(WAIT) is not None and _wait_s(texts) is None:
        what = (
            f"must be {WAIT_S_LEAST} to {WAIT_S_DEFAULT} seconds, not {described(texts.get(WAIT))}"
        )
        yield at(WAIT), f"{what}: taken for {WAIT_S_DEFAULT}"
    if texts.get(SWITCH) is None:
        yield at(SWITCH), "missing: no fault leads to a restart; write grace or force"


def _strategy_notes(texts: Texts, switches: Switches) -> Iterator[Problem]:
    for name in sorted(switches.strategies & STRATEGY_NOTES.keys()):
        yield at(STRATEGIES), f"{name}: {STRATEGY_NOTES[name]}"
    if switches.strategies and switches.fault_retry_times == 0:
        yield at(STRATEGIES), f"needs {RETRY_TIMES} there; here it holds without"
    if texts.get(PROCESS_RECOVER) == "on" and not switches.strategies:
        yield at(PROCESS_RECOVER), f"switches nothing on by itself: say which, {STRATEGIES}"
    if switches.is_elastic and switches.nodes_min is None:
        what = f"the job begins with all nodes and may go on with 1; {MIN_REPLICAS} says how few will do"
        yield at(STRATEGIES), f"elastic-training: {what}"
    if texts.get(WAIT) is not None and "recover" not in switches.strategies:
        yield at(WAIT), f"has no effect without recover in {STRATEGIES}"
