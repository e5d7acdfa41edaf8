"""The MindCluster object -> JobSpec: pods become nodes, labels a policy, and the overlay is laid over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from everstep.core.spec import JobSpec, Note, Origin, PhaseSpec
from everstep.dialects import overlays
from everstep.dialects.dialect import HasPods
from everstep.dialects.mindcluster import COMMAND, container_commands, labels, objects, pods, shapes
from everstep.dialects.mindcluster.labels import Switches, Texts
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.native import shapes as native
from everstep.dialects.native.document import (
    NOT_HANDED_OVER,
    PRODUCT_VARIABLES,
    compile_spec,
)
from everstep.documents.merge import merged
from everstep.documents.problems import Problem, described, judged, path, refusal

GRACE_OVER_TIME_S = 900
"""Seconds that a pod has to end gracefully; then it is killed. The scheduler's default."""
MAX_RETRY_DEFAULT = 3
"""`maxRetry` of a Volcano Job that has none, or 0."""
PENDING_SESSIONS_S = 12.0
"""Seconds that a pod waits for its place before the whole job is rescheduled: twelve sessions of a second."""
WAIT_VARIABLE = "MINDIO_WAIT_MINDX_TIME"
WAIT_VARIABLE_S, BEFORE_SCALE_IN_S = 30, 10
"""The variable has the seconds that an elastic job waits for a new place. Its default; and so long before the
end of that wait MindCluster scales in."""

NO_COMMAND = (
    "missing: {at} names none, and what its image starts is not known here; say what to run"
)
OF_PODS = (
    "images, working directories, volumes, probes and placement have no effect on cluster `{cluster}`: "
    "processes start there"
)
OF_THE_POD = (
    "{names}: no value on cluster `{cluster}`: it comes from the pod, a ConfigMap or a Secret"
)
ONE_TEMPLATE = (
    "its pods are made from {at}, like all pods of the job: only commands and `env` differ"
)
POLICY_WITHOUT_EFFECT = "has no effect: what follows an exit is said by fault-retry-times"
POLICY_EXIT_CODE = "exit codes 1 to 127 of any pod end the job, 128 to 255 are retried"
BEGINS_WITH = (
    "has no effect: the job begins with {begins_with} nodes; with elastic-training, minReplicas: "
    '"{least}" lets it begin and go on with fewer'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The pods of one template. `at` is its path in the document; each pod is a node of the job."""

    at: str
    nodes: int
    template: shapes.PodTemplate
    restart_policy: str | None
    restart_policy_at: str

    @property
    def container_at(self) -> str:
        index, _ = container_commands.main_container(self.template)
        return path(self.at, "spec", "containers", index)

    @property
    def container(self) -> shapes.Container:
        return container_commands.main_container(self.template)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A job of any of the three kinds (AscendJob, Volcano Job, Deployment), in one shape."""

    kind: str
    metadata: shapes.Metadata
    texts: Texts
    roles: tuple[Role, ...]
    block: Mapping[str, Any]
    retries: int | None  # backoffLimit or maxRetry
    retries_at: str
    min_available: int | None = None
    min_available_at: str = "spec.minAvailable"
    run_s: int | None = None
    priority_class: str | None = None  # of a pod whose template names none

    @property
    def nodes(self) -> int:
        return sum(role.nodes for role in self.roles)

    @property
    def largest(self) -> Role:
        """The first role with the most devices: all pods of the job are made like its own."""
        return max(self.roles, key=lambda role: role.container.resources.devices)

    @property
    def has_final_exits(self) -> bool:
        """Whether exit codes below 128 end the job, because any role has that `restartPolicy`."""
        return any(role.restart_policy == "ExitCode" for role in self.roles)


def compile_mindcluster(document: dict[str, Any], has_pods: HasPods) -> JobSpec:
    """Compile the document to a job. Raises `InvalidSpec` with everything that is wrong."""
    job_object = objects.job_object(document)
    job = _manifest(job_object.value)
    switches = labels.read_switches(job.texts)
    if problems := list(_contradictions(job, switches)):
        raise refusal(problems)
    root, overlay = overlays.overlay(job.metadata.annotations, job.block)
    cluster = str(overlay.get("cluster", "local"))
    in_pods = has_pods(cluster)
    start = container_commands.one_start(
        [(r.nodes, container_commands.start_of(r.container)) for r in job.roles]
    )
    spec = merged(_native(job, switches, start, in_pods=in_pods), overlay)
    if overlay.get("accelerator") == "none":  # one word makes it a job without devices
        spec["accelerators_per_node"] = overlay.get("accelerators_per_node", 0)
    shape = judged(native.Spec, spec, root)
    policy = mindcluster(
        fault_scheduling=switches.fault_scheduling,
        pod_rescheduling=switches.pod_rescheduling,
        fault_retry_times=switches.fault_retry_times,
        backoff_limit=job.retries,
        recover_strategy=switches.strategies,
        sub_healthy=switches.sub_healthy,
        recover_policy_path_pod=switches.never_job,
        final_exits=job.has_final_exits,
    )
    phases, notes = compile_spec(
        spec, shape, has_pods=has_pods, root=root, base=policy, needs_command=False
    )
    place = partial(overlays.place, root, overlay)
    return JobSpec(
        name=job.metadata.name,
        labels=job.metadata.labels,
        cluster=shape.cluster,
        namespace=shape.namespace or "",
        priority=shape.priority,
        start_phase=shape.start_phase,
        phases=tuple(
            _finished(phase, job, switches, start, partial(place, i))
            for i, phase in enumerate(phases)
        ),
        dialect="mindcluster",
        origin=Origin(kind=job.kind, annotations=job.metadata.annotations),
        notes=(
            *(Note(field=at, message=what) for at, what in objects.notes(job_object)),
            *(Note(field=at, message=what) for at, what in labels.notes(job.texts)),
            *(
                Note(field=at, message=what)
                for at, what in _notes(job, switches, phases, "" if in_pods else cluster)
            ),
            *notes,
        ),
    )


def fragment(document: dict[str, Any]) -> dict[str, Any]:
    """The document's fragment of the native `spec`: its overlay."""
    job = _manifest(objects.job_object(document).value)
    return overlays.overlay(job.metadata.annotations, job.block)[1]


# --- The three kinds --------------------------------------------------------------------------------


def _manifest(value: dict[str, Any]) -> Manifest:
    bare = {
        key: inner if key == overlays.BLOCK else overlays.without_nulls(inner)
        for key, inner in value.items()
        if inner is not None
    }
    match value["kind"]:
        case "AscendJob":
            return _of_ascend_job(judged(shapes.AscendJob, bare))
        case "Job":
            return _of_volcano_job(judged(shapes.VolcanoJob, bare))
        case _:
            return _of_deployment(judged(shapes.Deployment, bare))


def _of_ascend_job(job: shapes.AscendJob) -> Manifest:
    specs = job.spec.replica_specs
    roles = [
        _role(
            ("spec", "replicaSpecs", kind),
            specs[kind],
            restart_policy=specs[kind].restart_policy,
        )
        for kind in shapes.REPLICA_TYPES
        if kind in specs and specs[kind].replicas
    ]
    return Manifest(
        kind="AscendJob",
        metadata=job.metadata,
        texts=Texts(job.metadata.labels, job.metadata.annotations),
        roles=_ranked(roles),
        block=job.everstep,
        retries=job.spec.run_policy.backoff_limit,
        retries_at="spec.runPolicy.backoffLimit",
        min_available=job.spec.run_policy.scheduling.min_available,
        min_available_at="spec.runPolicy.schedulingPolicy.minAvailable",
        run_s=job.spec.run_policy.run_s,
        priority_class=job.spec.run_policy.scheduling.priority_class,
    )


def _of_volcano_job(job: shapes.VolcanoJob) -> Manifest:
    roles = [_role(("spec", "tasks", i), task) for i, task in enumerate(job.spec.tasks)]
    return Manifest(
        kind="Job",
        metadata=job.metadata,
        texts=Texts(job.metadata.labels, job.metadata.annotations),
        roles=_ranked(roles),
        block=job.everstep,
        retries=job.spec.max_retry or MAX_RETRY_DEFAULT,
        retries_at="spec.maxRetry",
        min_available=job.spec.min_available,
        priority_class=job.spec.priority_class,
    )


def _of_deployment(job: shapes.Deployment) -> Manifest:
    template = job.spec.template
    role = replace(_role(("spec",), job.spec), restart_policy=None)  # it can only be Always there
    return Manifest(
        kind="Deployment",
        metadata=job.metadata,
        texts=Texts(
            {**template.metadata.labels, **job.metadata.labels},
            {**template.metadata.annotations, **job.metadata.annotations},
        ),
        roles=(role,),
        block=job.everstep,
        retries=None,
        retries_at="",
    )


def _role(
    at: tuple[str | int, ...],
    replicas: shapes.ReplicaSpec | shapes.Task | shapes.DeploymentSpec,
    *,
    restart_policy: str | None = None,
) -> Role:
    """The pods of one template. `restart_policy`: that beside the template, which holds instead."""
    policy_at = ("restartPolicy",) if restart_policy else ("template", "spec", "restartPolicy")
    return Role(
        at=path(*at, "template"),
        nodes=replicas.replicas,
        template=replicas.template,
        restart_policy=restart_policy or replicas.template.spec.restart_policy,
        restart_policy_at=path(*at, *policy_at),
    )


def _ranked(roles: list[Role]) -> tuple[Role, ...]:
    """Sort the roles by `hccl/rankIndex` if all have one."""
    if any(role.template.rank_index is None for role in roles):
        return tuple(roles)
    return tuple(sorted(roles, key=lambda role: role.template.rank_index or 0))


# --- In native words --------------------------------------------------------------------------------


def _native(
    job: Manifest, switches: Switches, start: container_commands.StartCommand, *, in_pods: bool
) -> dict[str, Any]:
    """Translate the document to a native `spec`. Every node has as many devices as the largest pod."""
    devices = _devices(job.largest, job.metadata.annotations)
    kind = "ascend" if in_pods else "simulated"
    nodes_min = (switches.nodes_min or 1) if switches.shrinks else job.nodes
    spec: dict[str, Any] = {
        "nodes": {"min": nodes_min, "wanted": job.nodes} if nodes_min < job.nodes else job.nodes,
        "accelerators_per_node": devices,
        "accelerator": kind if devices else "none",
        "limits": _limits(job, switches, start),
    }
    if start.command:
        spec["command"] = list(start.command)
    if in_pods:
        spec["namespace"] = job.metadata.namespace
        spec["pod_template"] = pods.pod_template(job.largest.template, job.priority_class)
        if job.largest.container.image:
            spec["image"] = job.largest.container.image
    return spec


def _devices(role: Role, annotations: Mapping[str, str]) -> int:
    """How many devices each pod gets. With soft sharing the number is a percentage: one device."""
    devices = role.container.resources.devices
    is_share = shapes.PERCENT_OF_A_DEVICE in annotations.get("huawei.com/schedule_policy", "")
    return min(devices, 1) if is_share else devices


def _limits(
    job: Manifest, switches: Switches, start: container_commands.StartCommand
) -> dict[str, Any]:
    # A MindCluster job stays pending without limit.
    limits: dict[str, Any] = {"spare_s": _spare_s(switches, start.env), "requeue_s": None}
    if switches.fault_scheduling == "grace":
        written = [role.template.spec.grace_s for role in job.roles]
        grace_s = max((s for s in written if s is not None), default=GRACE_OVER_TIME_S)
        limits["grace_s"] = min(grace_s, GRACE_OVER_TIME_S)
    if job.run_s is not None:
        limits["run_s"] = job.run_s
    return limits


def _spare_s(switches: Switches, env: Mapping[str, str]) -> float:
    """How long a lost pod waits for a new place before the next coarser level."""
    if "recover" in switches.strategies:
        return float(switches.wait_s)
    if switches.is_elastic:
        # MindCluster scales in 10 s before this wait ends.
        return max(0.0, float(env.get(WAIT_VARIABLE, WAIT_VARIABLE_S)) - BEFORE_SCALE_IN_S)
    return PENDING_SESSIONS_S


def _finished(
    phase: PhaseSpec,
    job: Manifest,
    switches: Switches,
    start: container_commands.StartCommand,
    place: overlays.OverlayPlace,
) -> PhaseSpec:
    """The phase with its variables, also those that the native shape refuses, and with MindCluster's names
    for its limits.

    It begins with all nodes, unless the document says how few will do.
    """
    begins_with = switches.begins_with or phase.nodes
    run_s_path = None if job.run_s is None else "spec.runPolicy.activeDeadlineSeconds"
    document_paths = {"limits.run_s": place("limits", "run_s") or run_s_path}
    return replace(
        phase,
        # None: the overlay's own minimum holds.
        first_nodes_min=None if place("nodes") else begins_with,
        env={**start.env, **phase.env},
        called={name: at for name, at in document_paths.items() if at is not None},
    )


# --- Contradictions and notes -----------------------------------------------------------------------


def _contradictions(job: Manifest, switches: Switches) -> Iterator[Problem]:
    if job.min_available is not None and job.min_available > job.nodes:
        yield job.min_available_at, f"must not be more than its replicas ({job.nodes})"
    if switches.nodes_min is not None and switches.nodes_min > job.nodes:
        key = labels.MIN_REPLICAS if job.texts.get(labels.MIN_REPLICAS) else labels.MIN_AVAILABLE
        yield labels.at(key), f"must not be more than its replicas ({job.nodes})"
    indices = [role.template.rank_index for role in job.roles]
    for role in job.roles:
        index = role.template.rank_index
        at = path(role.at, "metadata", "annotations", shapes.RANK_INDEX)
        if index is not None and index >= job.nodes:
            yield at, f"must be less than its replicas ({job.nodes}), not {index}"
        elif index is not None and indices.count(index) > 1:
            yield at, f"is the node rank of two templates ({index}): give each its own"
        yield from _wrong_variables(role)


def _wrong_variables(role: Role) -> Iterator[Problem]:
    for i, variable in enumerate(role.container.env):
        text = variable.value or ""
        is_number = text.isascii() and text.isdecimal() and len(text) < 5
        if variable.name != WAIT_VARIABLE or variable.has_source:
            continue
        if not (is_number and 1 <= int(text) <= 3600):
            at = path(role.container_at, "env", i, "value")
            yield at, f"must be a whole number of seconds from 1 to 3600, not {described(text)}"


def _notes(
    job: Manifest, switches: Switches, phases: tuple[PhaseSpec, ...], cluster_without_pods: str
) -> Iterator[Problem]:
    """`cluster_without_pods`: empty if the cluster makes pods."""
    if not all(phase.command for phase in phases):
        lacking = (
            role for role in job.roles if not container_commands.start_of(role.container).command
        )
        yield COMMAND, NO_COMMAND.format(at=next(lacking, job.roles[0]).container_at)
    if cluster_without_pods:
        yield job.roles[0].at, OF_PODS.format(cluster=cluster_without_pods)
        for role in job.roles:
            names = ", ".join(v.name for v in role.container.env if v.has_source)
            if names:
                yield (
                    path(role.container_at, "env"),
                    OF_THE_POD.format(names=names, cluster=cluster_without_pods),
                )
    else:
        made = pods.pod_template(job.largest.template)
        for role in job.roles:
            if pods.pod_template(role.template) != made:
                yield role.at, ONE_TEMPLATE.format(at=job.largest.at)
    for name in filter(
        PRODUCT_VARIABLES.fullmatch,
        dict.fromkeys(v.name for r in job.roles for v in r.container.env),
    ):
        yield path(job.roles[0].container_at, "env", name), NOT_HANDED_OVER
    yield from _begin_notes(job, switches)
    yield from _restart_notes(job, switches)


def _begin_notes(job: Manifest, switches: Switches) -> Iterator[Problem]:
    """On fields with which MindCluster begins a job with fewer pods, and which have no effect here."""
    begins_with = switches.begins_with or job.nodes
    keys = (labels.MIN_REPLICAS, labels.MIN_AVAILABLE)
    written = {
        job.min_available_at: job.min_available,
        **{labels.at(key): int(job.texts.get(key) or begins_with) for key in keys},
    }
    for at, least in written.items():
        if least is not None and least < begins_with:
            yield at, BEGINS_WITH.format(begins_with=begins_with, least=least)


def _restart_notes(job: Manifest, switches: Switches) -> Iterator[Problem]:
    for role in job.roles:
        if role.restart_policy == "ExitCode":
            yield role.restart_policy_at, POLICY_EXIT_CODE
        elif role.restart_policy in ("Always", "OnFailure"):
            yield role.restart_policy_at, POLICY_WITHOUT_EFFECT
    limit, times = job.retries or 0, switches.fault_retry_times
    if switches.fault_scheduling != "off" and 0 < limit < times:
        what = f"is {limit}: the job is rescheduled so often at most, and never {times} times"
        yield job.retries_at, what
