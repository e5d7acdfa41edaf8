"""Pod templates against a real API server: what it refuses it says in seconds, what it takes is used."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from everstep.core.errors import InvalidSpec
from everstep.processes import free_port
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.conftest import OWN_NODES
from tests.kubernetes.jobs import STORAGE, KubernetesLab, KubernetesRun
from tests.kubernetes.objects import made, takes_pods, until, until_node
from tests.kubernetes.site import Site
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api, Json
from tests.testbed.machines import Machines

SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def template(lab: KubernetesLab, **spec: Any) -> Json:
    """The lab's template with more in its spec."""
    return {"spec": {**lab.pod["pod_template"]["spec"], **spec}}


WRONG: Mapping[str, tuple[Json, str]] = {
    "unknown field": ({"nodeSelecter": {"pool": "gpu"}}, 'unknown field "spec.nodeSelecter"'),
    "wrong kind": ({"hostNetwork": "yes"}, "cannot unmarshal string into Go struct field"),
    "bad value": ({"tolerations": [{"operator": "Sometimes"}]}, "Unsupported value"),
    "no such class": ({"priorityClassName": "absent"}, "no PriorityClass with name absent"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_template_is_an_invalid_document_in_the_words_of_the_server(
    lab: KubernetesLab, name: str
) -> None:
    spec, sentence = WRONG[name]
    job = KubernetesRun(lab, id=f"wrong-{name.replace(' ', '-')}", slots=(0, 1))
    await job.new_generation("launch")
    order = job.place_order(pod_template=template(lab, **spec))
    with pytest.raises(InvalidSpec, match=r"the API server refuses the pod") as refused:
        await lab.backend.ensure_placed(order)
    assert sentence in str(refused.value)
    await job.gone()


async def test_a_host_path_that_the_security_level_forbids_is_named(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """The lab's own volume is one."""
    enforce = "pod-security.kubernetes.io/enforce"
    path = f"/api/v1/namespaces/{namespace}"
    await api.patch(path, {"metadata": {"labels": {enforce: "baseline"}}})
    try:
        job = KubernetesRun(lab, id="forbidden")
        await job.new_generation("launch")
        with pytest.raises(InvalidSpec, match=r"violates PodSecurity.*hostPath"):
            await lab.backend.ensure_placed(job.place_order())
    finally:
        await api.patch(path, {"metadata": {"labels": {enforce: None}}})
    await job.gone()


async def test_a_quota_is_waited_for_and_named(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    quota = {"metadata": {"name": "one"}, "spec": {"hard": {"pods": "0"}}}
    job = KubernetesRun(lab, id="quota", slots=(0,))
    await job.new_generation("launch")
    async with made(api, quotas, quota) as one:

        async def is_counted() -> bool:
            return "hard" in (await api.get(one)).get("status", {})

        await until(is_counted)
        state = await lab.backend.ensure_placed(job.place_order())
        assert "exceeded quota: one" in state.waiting_for
    await job.place()
    await job.gone()


@pytest.fixture
async def webhook(api: Api, namespace: str, tmp_path: Path) -> AsyncIterator[None]:
    """A validating webhook that refuses every pod of the namespace whose label `team` is missing."""
    key, certificate = tmp_path / "hook.key", tmp_path / "hook.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=hook", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )

    async def review(request: web.Request) -> web.Response:
        body = await request.json()
        labels = body["request"]["object"]["metadata"].get("labels", {})
        answer: Json = {"uid": body["request"]["uid"], "allowed": "team" in labels}
        answer["status"] = {"message": "every pod needs the label team"}
        return web.json_response({**body, "response": answer})

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    app = web.Application()
    app.router.add_post("/", review)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    name = f"hook-{namespace}"
    authority = await asyncio.to_thread(certificate.read_bytes)
    refusing = {"metadata": {"name": name}, "webhooks": [hook(namespace, port, authority)]}
    try:
        async with made(api, hooks, refusing):
            yield
    finally:
        await runner.cleanup()


def hook(namespace: str, port: int, authority: bytes) -> Json:
    from base64 import b64encode

    client = {"url": f"https://127.0.0.1:{port}/", "caBundle": b64encode(authority).decode()}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    return {
        "name": "teams.example.test",
        "clientConfig": client,
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


async def test_what_a_webhook_refuses_is_an_invalid_document_in_its_words(
    lab: KubernetesLab, webhook: None
) -> None:
    job = KubernetesRun(lab, id="refused", slots=(0,))
    await job.new_generation("launch")

    async def is_refused() -> bool:  # the API server takes a moment to call a new webhook
        try:
            await lab.backend.ensure_placed(job.place_order())
        except InvalidSpec as refused:
            return "every pod needs the label team" in str(refused)
        await job.gone()
        await job.new_generation(f"after {job.generation}")
        return False

    await until(is_refused)
    await job.gone()


async def test_a_job_with_a_wrong_template_fails_in_seconds_with_the_sentence_of_the_server(
    site: Site, worker: WorkerProcess
) -> None:
    assert worker.pid
    site.submit("wrong", train={"resurces": {}})
    began = asyncio.get_running_loop().time()
    await until(lambda: site.status("wrong")["state"] in {"failed", "completed"})
    assert asyncio.get_running_loop().time() - began < 30.0
    why = site.everstep("why", "wrong")
    assert 'unknown field "spec.containers[0].resurces"' in why


@pytest.fixture
async def special(
    lab: KubernetesLab, machines: Machines, namespace: str
) -> AsyncIterator[dict[str, str]]:
    """Two tainted nodes of a pool. A device of one is isolated, and so is the node; another one was."""
    nodes = {name: f"{namespace}-{name}" for name in ("chosen", "isolated")}
    labels = {OWN_NODES: namespace, "pool": "special"}
    resources = {"cpu": "8", "memory": "32Gi", "pods": "110", "rdma/hca": "2"}
    async with machines.nodes(dict.fromkeys(nodes.values(), labels), resources=resources):
        for node in nodes.values():
            await machines.fault("node-taint", node=node, key="special", effect="NoSchedule")
        isolated, released = (f"{nodes['isolated']}/{device}" for device in (0, 1))
        for device in (isolated, released):
            await lab.backend.ensure_isolated(device, reason="test")
        await lab.backend.ensure_released(released)
        yield nodes
        await lab.backend.ensure_released(isolated)


async def test_a_template_is_used_and_an_isolated_node_is_not(
    lab: KubernetesLab, api: Api, special: dict[str, str], namespace: str
) -> None:
    """One pod with everything: on the only node that is left of those that the template selects."""
    mounts = [{"name": "storage", "mountPath": STORAGE}]
    first = {
        "name": "prepare",
        "image": "machine",
        "command": ["sh", "-c", f"echo prepared > {STORAGE}/control/prepared"],
        "volumeMounts": mounts,
        "securityContext": SAFE,
    }
    side = {**first, "name": "side", "command": ["sleep", "1000"]}
    train = {
        "name": "train",
        "volumeMounts": [*mounts, {"name": "shm", "mountPath": "/dev/shm"}],
        "resources": {"limits": {"rdma/hca": "1"}},
    }
    spec = template(
        lab,
        nodeSelector={"pool": "special"},
        tolerations=[{"key": "special", "operator": "Exists"}],
        initContainers=[first],
        containers=[train, side],
        volumes=[
            *lab.pod["pod_template"]["spec"]["volumes"],
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
        imagePullSecrets=[{"name": "registry"}],
        hostNetwork=True,
    )
    job = KubernetesRun(lab, id="full", slots=(0,), env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.stop()
    await job.until_done(lambda: lab.backend.ensure_placed(job.place_order(pod_template=spec)))
    await job.fence()
    await job.start()
    pods = (await job.step(5)).pods
    assert [pod.node for pod in pods] == [special["chosen"]]
    assert (lab.folder / "control" / "prepared").exists()
    pod = await api.get(f"/api/v1/namespaces/{namespace}/pods/full-0-g1")
    required = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    ((kept_off,),) = [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
    assert (kept_off["operator"], kept_off["values"]) == ("NotIn", [special["isolated"]])
    assert all(one["ready"] for one in pod["status"]["containerStatuses"])
    assert [one["hostPort"] for one in pod["spec"]["containers"][0]["ports"]] == [7070]
    await job.gone()


async def test_pods_of_a_job_prefer_to_share_a_domain(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    """Two racks of three nodes: all three pods are in one, wherever the first one went."""
    lab.settings = replace(lab.settings, topology=("rack",))
    await lab.another_worker()
    racks = {f"{namespace}-rack-{n}": f"rack-{n % 2}" for n in range(6)}
    labels_of = {
        node: {OWN_NODES: namespace, "pool": "racks", "rack": rack} for node, rack in racks.items()
    }
    async with machines.nodes(labels_of):
        for node in racks:  # a preference is for what there is at that moment
            await until_node(api, node, takes_pods)
        job = KubernetesRun(lab, id="close", slots=(0, 1, 2), env=NEVER_ENDS)
        await job.new_generation("launch")
        placed = await job.place(pod_template=template(lab, nodeSelector={"pool": "racks"}))
        assert len({racks[ref.node] for ref in placed.pods.values()}) == 1
        assert len({ref.node for ref in placed.pods.values()}) == 3
        await job.gone()


async def test_an_absent_node_with_the_longest_name_ends_no_job(lab: KubernetesLab) -> None:
    """It was isolated while the cluster had it. A label may be far shorter than its name."""
    name = ".".join(["n" * 50] * 4 + ["x" * 49])
    await lab.backend.ensure_isolated(name, reason="broken")
    job = KubernetesRun(lab, id="long", slots=(0,))
    await job.new_generation("launch")
    await job.place(avoid=("no name of a node!",))
    await job.gone()
    await lab.backend.ensure_released(name)


async def test_a_node_without_labels_is_avoided_by_its_name(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """As a controller of nodes without a kubelet makes them."""
    name = f"{namespace}-bare"
    job = KubernetesRun(lab, id="bare", slots=(0,))
    async with made(api, "/api/v1/nodes", {"metadata": {"name": name}}):
        assert "labels" not in (await api.get(f"/api/v1/nodes/{name}"))["metadata"]
        await until(lambda: lab.backend.watch.node(name) is not None)
        await job.new_generation("launch")
        await job.place(avoid=(name,))
    await job.gone()
