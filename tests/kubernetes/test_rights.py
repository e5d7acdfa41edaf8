"""What a worker may do in the cluster, and what a job's pods may not."""

from __future__ import annotations

import json
import ssl
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.backends.agents.client.link import NoAnswer, Refused, tls_link
from everstep.backends.kubernetes import manifest, names
from everstep.backends.kubernetes.credentials import OF_AGENTS, client_context
from everstep.plugin import MESSAGES
from everstep.protocol import wire
from tests.backends.lab import left_on
from tests.backends.verbs import NEVER_ENDS, entries
from tests.kubernetes import rights
from tests.kubernetes.jobs import TRAINER, KubernetesLab, KubernetesRun, ranks_of
from tests.kubernetes.objects import until
from tests.kubernetes.test_queues import HOLD, waits_in_a_queue
from tests.testbed.api import Api


async def test_a_worker_uses_each_right_that_deploy_grants_and_no_other(
    lab: KubernetesLab, api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rule less in the manifest: a request is refused here. One more: nothing uses it."""
    used = rights.recorded(monkeypatch)
    # As every worker of a cluster, it reads messages of observers.
    lab.settings = replace(lab.settings, messages=MESSAGES[:1])
    await lab.another_worker()
    job = KubernetesRun(lab, id="rights", env=NEVER_ENDS)
    await job.launch()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await api.patch(f"{pods}/rights-1-g1", {"metadata": {"finalizers": [HOLD]}})
    await api.delete(f"{pods}/rights-1-g1", gracePeriodSeconds=1)
    await job.fact("agent.gone")
    restart = replace(*entries(job, 1), restart="restart 1 of main: crash -> pod: started")
    await lab.backend.ensure_recorded(job.ref, (restart,))
    await lab.backend.ensure_isolated("a-node", reason="test")
    await job.new_generation("two new pods, and one more while these have nodes: their group grows")
    await job.place(recreate=job.slots)
    more = (*job.slots, 2)
    await lab.backend.ensure_placed(job.place_order(slots=more, recreate=more))
    await lab.backend.ensure_released("a-node")
    await waits_in_a_queue(lab, "queued")
    await left_on(lab)
    await job.gone()
    assert used == rights.granted()


@pytest.mark.parametrize("right_of_worker", sorted(rights.granted()), ids="-".join)
async def test_no_other_rule_grants_a_right_again(
    worker_kubeconfig: str, api: Api, namespace: str, right_of_worker: tuple[str, str]
) -> None:
    """So a worker that uses each of them, as above, is refused something without any one."""
    assert worker_kubeconfig

    async def is_refused() -> bool:
        return not await rights.is_allowed(api, namespace, *right_of_worker)

    assert not await is_refused()
    await rights.grant_all_but(api, namespace, right_of_worker)
    try:
        await until(is_refused)
        other_rights = rights.granted() - {right_of_worker}
        assert all([await rights.is_allowed(api, namespace, *one) for one in other_rights])
    finally:
        await rights.grant_all_but(api, namespace, None)
    await until(lambda: rights.is_allowed(api, namespace, *right_of_worker))


async def test_a_rank_finds_no_credential_of_kubernetes_or_temporal(lab: KubernetesLab) -> None:
    job = KubernetesRun(lab, id="bare", env=NEVER_ENDS)
    await job.launch()
    await job.step(1)
    pids = ranks_of("bare", slot=0, generation=1)
    assert pids
    for pid in pids:
        assert not Path(f"/proc/{pid}/root/var/run/secrets/kubernetes.io").exists()
        variables = {
            entry.partition(b"=")[0]
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        }
        assert not [name for name in variables if name.startswith((b"TEMPORAL_", b"EVERSTEP_KUBE"))]
        # Not what a worker shows an agent either: with it a rank could command the other pods.
        mounted = Path(f"/proc/{pid}/root{manifest.CREDENTIALS}")
        assert sorted(path.name for path in mounted.iterdir()) == sorted(OF_AGENTS)
    await job.gone()


async def test_an_agent_refuses_the_credentials_of_another_job(lab: KubernetesLab) -> None:
    first, other = (KubernetesRun(lab, id=name, env=NEVER_ENDS) for name in ("mine", "other"))
    for job in (first, other):
        await job.launch()
        await job.step(1)
    pods = lab.backend.placer.pods
    uid = (await first.pod(0)).uid
    secret, foreign = await pods.credentials_of("mine"), await pods.credentials_of("other")
    no_certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    no_certificate.load_verify_locations(cadata=secret[wire.AUTHORITY])
    cases = {
        "its own": (client_context(secret), secret[wire.TOKEN]),
        "the token of another job": (client_context(secret), foreign[wire.TOKEN]),
        "no token": (client_context(secret), ""),
        "the certificate of another job": (client_context(foreign), secret[wire.TOKEN]),
        "no certificate": (no_certificate, secret[wire.TOKEN]),
    }
    answered = []
    for name, (tls, token) in cases.items():
        host = lab.backend.watch.address(uid)
        assert host
        link = tls_link(uid, host=host, port=manifest.PORT, tls=tls, token=token)
        try:
            await link.request("GET", wire.STATE)
            answered.append(name)
        except (NoAnswer, Refused):
            pass
        finally:
            link.close()
    assert answered == ["its own"]
    for job in (first, other):
        await job.gone()


async def test_no_object_holds_environment_or_command_of_a_rank(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """Environment and command go to the agent over TLS: they are in no pod, record, Secret or event."""
    job = KubernetesRun(lab, id="canary", env={**NEVER_ENDS, "TOKEN": "canary-env"})
    await job.launch()
    await job.step(1)
    lab.end_rank("canary", 1, code=3)
    await job.fact("process.exit")
    objects = [
        one
        for path in ("api/v1/namespaces/{}/" + kind for kind in KINDS)
        for one in (await api.get("/" + path.format(namespace)))["items"]
    ]
    await job.gone()
    texts = json.dumps(objects) + "".join(
        b64decode(value).decode(errors="replace")
        for one in objects
        for value in (one.get("data") or {}).values()
        if one["metadata"]["name"] == names.secret("canary")
    )
    assert "canary-0-g1" in texts
    assert [word for word in ("canary-env", TRAINER.name) if word in texts] == []


KINDS = ("pods", "configmaps", "secrets", "events")
