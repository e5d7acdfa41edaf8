"""The NetworkPolicy of a job: who reaches its pods. No policy of all jobs can select "the same job". Pure."""

from __future__ import annotations

from collections.abc import Mapping

from everstep.backends.kubernetes import manifest, names
from everstep.backends.kubernetes.api import Json

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""A label that the API server sets on each namespace."""


def policies_path(namespace: str) -> str:
    return f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"


def job_policy(job: str, *, books: str, owner: Mapping[str, str], workers_in: str | None) -> Json:
    """Pods of the job reach each other at any port, workers reach their agents, others reach nothing.

    `owner`: name and uid of the ConfigMap that holds the job's record; the policy goes with it.
    `workers_in`: the namespace of the workers; None: outside the cluster, where any address may be theirs.
    """
    same_job = {"podSelector": {"matchLabels": {names.JOB: names.job_label(job)}}}
    at_agents: Json = {"ports": [{"port": manifest.PORT}]}
    if workers_in is not None:
        at_agents["from"] = [
            {
                "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: workers_in}},
                "podSelector": {"matchLabels": {names.COMPONENT: names.WORKER}},
            }
        ]
    return {
        "metadata": {
            "name": names.policy(job),
            "labels": names.labels(books, job),
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "controller": True, **owner}
            ],
        },
        "spec": {
            **same_job,
            "policyTypes": ["Ingress"],
            "ingress": [at_agents, {"from": [same_job]}],
        },
    }
