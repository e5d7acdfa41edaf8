"""The objects of MindCluster, key by key: what is read of them, of which type, within which bounds.

Manifests hold much that is the cluster's business: a key that is not read is kept and not judged. What is
read is judged strictly, as the API server does: labels, annotations and variables are texts.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from everstep.dialects.native.values import JOB_NAME, NODES, TEXT_LENGTH, Matches
from everstep.documents.problems import described, problem

ENTRIES = 1000
FRAMEWORKS = ("pytorch", "mindspore", "tensorflow")
REPLICA_TYPES = ("Master", "Chief", "Scheduler", "Worker")
"""Types of replicas, in the order of their node ranks."""
LEADERS = REPLICA_TYPES[:-1]
RESTART_POLICIES = ("Never", "OnFailure", "Always", "ExitCode")

ASCEND_JOB_VERSION = "mindxdl.gitee.com/v1"
RANK_INDEX = "hccl/rankIndex"

DEVICE = re.compile(r"huawei\.com/(npu|Ascend[0-9]+[A-Z]?)")
"""A resource that counts whole devices; parts of one (`Ascend910-4c`, `npu-core`) are no device."""
PERCENT_OF_A_DEVICE = "softShareDev"
"""The value of `huawei.com/schedule_policy` with which the number is a share of one device, in percent."""


class Part(BaseModel):
    """What all parts have in common: keys that are not read are kept."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)


Text = Annotated[str, Field(max_length=TEXT_LENGTH)]
Texts = Annotated[dict[Text, Text], Field(max_length=ENTRIES)]
Name = Annotated[
    str,
    Matches(JOB_NAME, "be 1 to 63 letters, digits, '-' and '.', as Kubernetes names are"),
]
Replicas = Annotated[int, Field(ge=1, le=NODES)]
Seconds = Annotated[int, Field(ge=0, le=24 * 3600)]


# --- Pods -------------------------------------------------------------------------------------------


class Variable(Part):
    name: Annotated[str, Field(min_length=1, max_length=4096)]
    value: Text | None = None

    @model_validator(mode="after")
    def _has_a_name(self) -> Variable:
        if "=" in self.name:
            raise problem("must be a variable's name: it holds no `=`", "name")
        return self

    @property
    def has_source(self) -> bool:
        """Whether its value comes from the pod, a ConfigMap or a Secret."""
        return "valueFrom" in (self.model_extra or {})


class Resources(Part):
    limits: dict[Text, int | float | Text] = Field(default_factory=dict)
    requests: dict[Text, int | float | Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _whole_devices(self) -> Resources:
        for part, amounts in (("requests", self.requests), ("limits", self.limits)):
            for name, amount in amounts.items():
                if DEVICE.fullmatch(name) and not re.fullmatch(r"[0-9]{1,4}", str(amount)):
                    what = f"must be a whole number of devices, not {described(amount)}"
                    raise problem(what, part, name)
        return self

    @property
    def devices(self) -> int:
        amounts = {**self.requests, **self.limits}
        return sum(int(n) for name, n in amounts.items() if DEVICE.fullmatch(name))


class Container(Part):
    name: Text = ""
    image: Text | None = None
    command: Annotated[list[Text], Field(max_length=ENTRIES)] = Field(default_factory=list)
    args: Annotated[list[Text], Field(max_length=ENTRIES)] = Field(default_factory=list)
    env: Annotated[list[Variable], Field(max_length=ENTRIES)] = Field(default_factory=list)
    resources: Resources = Field(default_factory=Resources)


class PodSpec(Part):
    containers: Annotated[list[Container], Field(min_length=1, max_length=100)]
    restart_policy: Literal[RESTART_POLICIES] | None = Field(  # type: ignore[valid-type]  # one table
        default=None, alias="restartPolicy"
    )
    grace_s: Seconds | None = Field(default=None, alias="terminationGracePeriodSeconds")


def _rank_index(annotations: dict[str, str]) -> dict[str, str]:
    index = annotations.get(RANK_INDEX)
    if index is not None and not re.fullmatch(r"0|[1-9][0-9]{0,4}", index):
        raise problem(f"must be a node rank, 0 or more, not {described(index)}", RANK_INDEX)
    return annotations


class PodMetadata(Part):
    labels: Texts = Field(default_factory=dict)
    annotations: Annotated[Texts, AfterValidator(_rank_index)] = Field(default_factory=dict)


class PodTemplate(Part):
    metadata: PodMetadata = Field(default_factory=PodMetadata)
    spec: PodSpec

    @property
    def rank_index(self) -> int | None:
        index = self.metadata.annotations.get(RANK_INDEX)
        return None if index is None else int(index)


# --- Jobs -------------------------------------------------------------------------------------------


class Metadata(Part):
    name: Name
    namespace: Name | None = None
    labels: Texts = Field(default_factory=dict)
    annotations: Texts = Field(default_factory=dict)


class SchedulingPolicy(Part):
    min_available: Replicas | None = Field(default=None, alias="minAvailable")
    priority_class: Text | None = Field(default=None, alias="priorityClass")


class RunPolicy(Part):
    backoff_limit: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = Field(
        default=None, alias="backoffLimit"
    )
    run_s: Annotated[int, Field(ge=1, le=365 * 24 * 3600)] | None = Field(
        default=None, alias="activeDeadlineSeconds"
    )
    scheduling: SchedulingPolicy = Field(default_factory=SchedulingPolicy, alias="schedulingPolicy")


class ReplicaSpec(Part):
    replicas: Annotated[int, Field(ge=0, le=NODES)] = 1  # 0: a type without pods
    restart_policy: Literal[RESTART_POLICIES] | None = Field(  # type: ignore[valid-type]  # one table
        default=None, alias="restartPolicy"
    )
    template: PodTemplate


def _one_leader(
    specs: dict[Literal[REPLICA_TYPES], ReplicaSpec],  # type: ignore[valid-type]  # one table
) -> dict[str, ReplicaSpec]:
    leaders = [kind for kind in specs if kind in LEADERS]
    if not specs:
        raise problem("is empty; say what to run, replicaSpecs: {Master: {template: ...}}")
    if len(leaders) > 1:
        raise problem(f"`{leaders[0]}` leads already: keep one of {', '.join(leaders)}", leaders[1])
    for kind in leaders:
        if specs[kind].replicas != 1:
            what = f"must be 1, not {specs[kind].replicas}: a job has one {kind}"
            raise problem(what, kind, "replicas")
    if not any(spec.replicas for spec in specs.values()):
        raise problem("must be at least 1, not 0: no other type has pods", *specs, "replicas")
    return specs


class AscendJobSpec(Part):
    run_policy: RunPolicy = Field(default_factory=RunPolicy, alias="runPolicy")
    success_policy: Literal["", "AllWorkers"] = Field(default="", alias="successPolicy")
    replica_specs: Annotated[
        dict[Literal[REPLICA_TYPES], ReplicaSpec],  # type: ignore[valid-type]  # one table
        AfterValidator(_one_leader),
    ] = Field(alias="replicaSpecs")


class Task(Part):
    name: Text = ""
    replicas: Replicas = 1
    template: PodTemplate


class VolcanoSpec(Part):
    tasks: Annotated[list[Task], Field(min_length=1, max_length=100)]
    max_retry: Annotated[int, Field(ge=0, le=1_000_000)] = Field(default=0, alias="maxRetry")
    min_available: Replicas | None = Field(default=None, alias="minAvailable")
    priority_class: Text | None = Field(default=None, alias="priorityClassName")


class DeploymentSpec(Part):
    replicas: Replicas = 1
    template: PodTemplate


def _framework(metadata: Metadata) -> Metadata:
    framework = metadata.labels.get("framework")
    if framework is not None and framework not in FRAMEWORKS:
        what = f"must be one of {', '.join(FRAMEWORKS)}, not {described(framework)}"
        raise problem(what, "labels", "framework")
    return metadata


class AscendJob(Part):
    api_version: Literal[ASCEND_JOB_VERSION] = Field(  # type: ignore[valid-type]  # a constant
        alias="apiVersion", examples=[f"apiVersion: {ASCEND_JOB_VERSION}"]
    )
    metadata: Annotated[Metadata, AfterValidator(_framework)]
    spec: AscendJobSpec = Field(examples=["spec: {replicaSpecs: {Master: {template: ...}}}"])
    everstep: dict[str, Any] = Field(default_factory=dict)


class VolcanoJob(Part):
    metadata: Metadata
    spec: VolcanoSpec = Field(examples=["spec: {tasks: [{template: ...}]}"])
    everstep: dict[str, Any] = Field(default_factory=dict)


class Deployment(Part):
    metadata: Metadata
    spec: DeploymentSpec = Field(examples=["spec: {template: ...}"])
    everstep: dict[str, Any] = Field(default_factory=dict)
