"""What the API server would refuse of a job's pods: each phase's first pod, sent as a server-side dry run."""

from __future__ import annotations

from dataclasses import replace

from everstep.backends.kubernetes import manifest
from everstep.backends.kubernetes.api import KubernetesApi, Refused
from everstep.backends.kubernetes.document_rules import first_pod, owner_of
from everstep.backends.kubernetes.identity import CLUSTER
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.spec import JobSpec, PhaseSpec

_QUERY = {"dryRun": "All", "fieldValidation": "Strict"}


async def refusals(
    api: KubernetesApi, settings: manifest.PodSettings, spec: JobSpec
) -> list[tuple[str, str]]:
    """The field and the sentence of each refusal.

    Raises Unreachable, and BackendUnavailable where the rights are missing.
    """
    problems: dict[tuple[str, str], None] = {}
    if spec.namespace:
        settings = replace(settings, namespace=spec.namespace)
        problems |= dict.fromkeys(await _of_namespace(api, spec.namespace))
    for phase in spec.phases:
        problems |= dict.fromkeys(await _of_phase(api, settings, spec, phase))
    return list(problems)


async def _of_namespace(api: KubernetesApi, name: str) -> list[tuple[str, str]]:
    """The problem of a namespace in which no worker makes pods: workers mark theirs with a ConfigMap."""
    try:
        await api.get(f"/api/v1/namespaces/{name}/configmaps/{CLUSTER}")
    except Refused as error:
        if error.status == 404:
            what = "no worker makes pods there: EVERSTEP_KUBE_JOB_NAMESPACES of the workers names others"
            return [("spec.namespace", f"is {name}, and {what}")]
    return []  # or this user may not look: then the worker reports it


async def _of_phase(
    api: KubernetesApi, settings: manifest.PodSettings, spec: JobSpec, phase: PhaseSpec
) -> list[tuple[str, str]]:
    try:
        pod = manifest.pod(first_pod(spec, phase), 0, owner=owner_of(spec), settings=settings)
        await api.create(f"/api/v1/namespaces/{settings.namespace}/pods", pod, _QUERY)
    except InvalidSpec as error:
        return list(error.problems)
    except Refused as error:
        if error.reason == "AlreadyExists":  # the job runs, and has a pod of this name
            return []
        if 'cannot create resource "pods"' in str(error):
            raise BackendUnavailable(f"a dry run needs the right to create pods: {error}") from None
        return [
            ("spec.pod_template", f"phase {phase.name}: the API server refuses its pods: {error}")
        ]
    return []
