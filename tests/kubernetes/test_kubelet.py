"""The process kubelet runs and reports pods as a real kubelet does."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from pathlib import Path

import pytest

from tests.kubernetes.conftest import OWN_NODES, PUT_BACK
from tests.kubernetes.objects import (
    Pods,
    condition,
    ending,
    made,
    objects_of,
    processes_with,
    takes_pods,
    until,
    until_node,
    waiting,
)
from tests.testbed.api import Api, ApiError, Json
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import FaultRefused, Machines


async def test_a_pod_ends_with_the_exit_code_of_its_command(pods: Pods) -> None:
    await pods.create("seven", "exit 7")
    await pods.create("zero", "exit 0")
    failed = await pods.until_phase("seven", "Failed")
    assert (ending(failed)["exitCode"], ending(failed)["reason"]) == (7, "Error")
    assert condition(failed, "Ready")["reason"] == "PodFailed"
    done = await pods.until_phase("zero", "Succeeded")
    assert (ending(done)["exitCode"], ending(done)["reason"]) == (0, "Completed")
    assert condition(done, "PodScheduled")["status"] == "True"  # written by the scheduler, kept


async def test_a_container_reads_its_variables_and_volumes(
    pods: Pods, api: Api, namespace: str, tmp_path: Path
) -> None:
    objects = f"/api/v1/namespaces/{namespace}"
    settings = {"metadata": {"name": "settings"}, "data": {"COLOUR": "red", "file.txt": "text"}}
    await api.create(f"{objects}/configmaps", settings)
    secret = {"metadata": {"name": "secret"}, "data": {"key": b64encode(b"hidden").decode()}}
    await api.create(f"{objects}/secrets", secret)
    env: list[Json] = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "key"}}},
        {"name": "BOTH", "value": "$(POD)-$(KEY)-$$(POD)-$(NONE)"},
    ]
    mounts = [
        {"name": "settings", "mountPath": "/etc/everstep-test/settings", "readOnly": True},
        {"name": "secret", "mountPath": "/secret"},
        {"name": "disk", "mountPath": "/models/shared", "subPath": "job"},
        {"name": "scratch", "mountPath": "/scratch"},
    ]
    (tmp_path / "job").mkdir()
    await pods.create(
        "reader",
        """
        cd /models/shared
        echo $BOTH $IP $COLOUR `hostname` `cat /secret/key /etc/everstep-test/settings/file.txt` > seen
        touch /scratch/file /etc/everstep-test/file || exit 1
        touch /etc/everstep-test/settings/file && exit 2
        exit 0
        """,
        main={
            "env": env,
            "envFrom": [{"configMapRef": {"name": "settings"}}],
            "volumeMounts": mounts,
        },
        volumes=[
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "secret", "secret": {"secretName": "secret"}},
            {"name": "disk", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    )
    pod = await pods.until(
        "reader", lambda pod: pod["status"].get("phase") in {"Failed", "Succeeded"}
    )
    assert ending(pod)["exitCode"] == 0
    words = (tmp_path / "job" / "seen").read_text().split()
    assert words == [
        "reader-hidden-$(POD)-$(NONE)",
        pod["status"]["podIP"],
        "red",
        "reader",
        "hiddentext",
    ]
    assert not Path("/etc/everstep-test").exists()  # its root is its own
    assert not Path("/models").exists()


async def test_a_claim_is_the_folder_of_its_volume(
    pods: Pods, api: Api, namespace: str, tmp_path: Path
) -> None:
    size = {"storage": "1Gi"}
    volume = {
        "capacity": size,
        "accessModes": ["ReadWriteMany"],
        "hostPath": {"path": str(tmp_path)},
        "storageClassName": "",
    }
    await api.create("/api/v1/persistentvolumes", {"metadata": {"name": namespace}, "spec": volume})
    claim = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": size},
        "volumeName": namespace,
        "storageClassName": "",
    }
    await api.create(
        f"/api/v1/namespaces/{namespace}/persistentvolumeclaims",
        {"metadata": {"name": "models"}, "spec": claim},
    )
    await pods.create(
        "writer",
        "echo saved > /models/checkpoint",
        main={"volumeMounts": [{"name": "models", "mountPath": "/models"}]},
        volumes=[{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    )
    await pods.until_phase("writer", "Succeeded")
    assert (tmp_path / "checkpoint").read_text() == "saved\n"


async def test_a_pod_has_a_token_of_its_service_account(
    pods: Pods, cluster: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    await pods.create(
        "account",
        "cat /var/run/secrets/kubernetes.io/serviceaccount/token > /out/token",
        automountServiceAccountToken=True,
        main={"volumeMounts": [{"name": "out", "mountPath": "/out"}]},
        volumes=[{"name": "out", "hostPath": {"path": str(tmp_path)}}],
    )
    await pods.until_phase("account", "Succeeded")
    token = (tmp_path / "token").read_text()
    async with cluster.with_token(token).api() as client:
        with pytest.raises(ApiError, match=f"system:serviceaccount:{namespace}:default"):
            await client.get(f"/api/v1/namespaces/{namespace}/pods")


async def test_a_container_waits_for_what_its_spec_names(
    pods: Pods, api: Api, namespace: str
) -> None:
    await pods.create("early", "exit 0", main={"envFrom": [{"configMapRef": {"name": "late"}}]})
    stuck = await pods.until("early", lambda pod: "late" in waiting(pod).get("message", ""))
    assert stuck["status"]["phase"] == "Pending"
    await api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "late"}})
    await pods.until_phase("early", "Succeeded")


async def test_an_image_that_does_not_exist_is_reported(pods: Pods) -> None:
    await pods.create("absent", main={"image": "absent.example.test/trainer:1"})
    pod = await pods.until("absent", lambda pod: waiting(pod).get("reason") == "ImagePullBackOff")
    assert pod["status"]["phase"] == "Pending"
    assert "absent.example.test/trainer:1" in waiting(pod)["message"]


async def test_init_containers_run_one_after_the_other_and_first(
    pods: Pods, tmp_path: Path
) -> None:
    mount = {"volumeMounts": [{"name": "out", "mountPath": "/out"}]}

    def step(word: str) -> Json:
        script = f"sleep 0.05; echo {word} >> /out/words"
        return {"name": word, "image": "machine", "command": ["sh", "-c", script], **mount}

    await pods.create(
        "ordered",
        "echo main >> /out/words",
        initContainers=[step("first"), step("second")],
        main=mount,
        volumes=[{"name": "out", "hostPath": {"path": str(tmp_path)}}],
    )
    pod = await pods.until_phase("ordered", "Succeeded")
    assert (tmp_path / "words").read_text().split() == ["first", "second", "main"]
    assert condition(pod, "Initialized")["status"] == "True"


async def test_a_failed_init_container_fails_its_pod(pods: Pods) -> None:
    bad = {"name": "bad", "image": "machine", "command": ["sh", "-c", "exit 3"]}
    await pods.create("uninitialized", initContainers=[bad])
    pod = await pods.until_phase("uninitialized", "Failed")
    assert ending(pod, "bad")["exitCode"] == 3
    assert waiting(pod)["reason"] == "PodInitializing"


async def test_a_command_that_does_not_exist_is_a_start_error(pods: Pods) -> None:
    await pods.create("typo", main={"command": ["no-such-program"]})
    pod = await pods.until_phase("typo", "Failed")
    assert (ending(pod)["exitCode"], ending(pod)["reason"]) == (128, "StartError")
    assert "no-such-program" in ending(pod)["message"]


async def test_a_failed_container_is_restarted_where_its_pod_wants_it(
    pods: Pods, tmp_path: Path
) -> None:
    await pods.create(
        "again",
        "test -e /out/second && exit 0; touch /out/second; exit 5",
        restartPolicy="OnFailure",
        main={"volumeMounts": [{"name": "out", "mountPath": "/out"}]},
        volumes=[{"name": "out", "hostPath": {"path": str(tmp_path)}}],
    )
    pod = await pods.until_phase("again", "Succeeded")
    (status,) = pod["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 5


async def test_a_killed_container_is_reported_and_its_neighbour_runs_on(
    pods: Pods, machines: Machines, namespace: str
) -> None:
    for name in ("victim", "neighbour"):
        await pods.create(name)
        await pods.until_phase(name, "Running")
    await machines.fault("container-kill", namespace=namespace, pod="victim")
    pod = await pods.until_phase("victim", "Failed")
    assert (ending(pod)["exitCode"], ending(pod)["reason"]) == (137, "Error")
    assert (await pods.get("neighbour"))["status"]["phase"] == "Running"


async def test_a_container_that_used_too_much_memory_is_reported_as_such(
    pods: Pods, machines: Machines
) -> None:
    await pods.create("greedy")
    await pods.until_phase("greedy", "Running")
    await machines.fault("out-of-memory", namespace=pods.namespace, pod="greedy", container="main")
    ended = ending(await pods.until_phase("greedy", "Failed"))
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


async def test_a_pod_that_its_node_evicts_fails_with_the_reason_and_stays(
    pods: Pods, machines: Machines
) -> None:
    await pods.create("evicted")
    await pods.until_phase("evicted", "Running")
    await machines.fault("node-pressure", namespace=pods.namespace, pod="evicted")
    pod = await pods.until_phase("evicted", "Failed")
    assert pod["status"]["reason"] == "Evicted"
    assert condition(pod, "DisruptionTarget")["reason"] == "TerminationByKubelet"
    assert condition(pod, "PodScheduled")["status"] == "True"


async def test_a_deleted_pod_may_use_its_grace_period(pods: Pods, tmp_path: Path) -> None:
    """SIGTERM, then the object goes when no process is left."""
    await pods.create(
        "tidy",
        "trap 'echo saved > /out/saved; exit 0' TERM; touch /out/up; while :; do sleep 0.05; done",
        main={"volumeMounts": [{"name": "out", "mountPath": "/out"}]},
        volumes=[{"name": "out", "hostPath": {"path": str(tmp_path)}}],
    )
    await until((tmp_path / "up").exists)
    await pods.delete("tidy")
    await pods.until_gone("tidy")
    assert (tmp_path / "saved").exists()


async def test_the_log_of_a_pod_is_what_its_container_prints(pods: Pods, api: Api) -> None:
    await pods.create("talker", "echo one; echo two >&2; echo three")
    await pods.until_phase("talker", "Succeeded")
    log = f"{pods.path}/talker/log"
    assert await api.get_text(log) == "one\ntwo\nthree\n"
    assert await api.get_text(log, tailLines="1") == "three\n"


async def test_a_log_is_followed_to_its_end(pods: Pods, api: Api, tmp_path: Path) -> None:
    await pods.create(
        "slow-talker",
        "echo one; while [ ! -e /in/go ]; do sleep 0.02; done; echo two",
        main={"volumeMounts": [{"name": "in", "mountPath": "/in"}]},
        volumes=[{"name": "in", "hostPath": {"path": str(tmp_path)}}],
    )
    await pods.until_phase("slow-talker", "Running")
    following = asyncio.create_task(api.get_text(f"{pods.path}/slow-talker/log", follow="true"))
    (tmp_path / "go").touch()
    assert await following == "one\ntwo\n"


async def test_a_later_deletion_shortens_the_grace_period(pods: Pods) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    await pods.create("stubborn", f"trap '' TERM; sleep {mark}; sleep {mark}")
    await until(lambda: processes_with(mark))
    await pods.delete("stubborn", gracePeriodSeconds=1000)
    await pods.delete("stubborn", gracePeriodSeconds=1)
    await pods.until_gone("stubborn")
    await until(lambda: not processes_with(mark))


async def test_processes_of_an_object_that_vanished_are_ended(pods: Pods) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    await pods.create("vanished", f"exec sleep {mark}")
    await until(lambda: processes_with(mark))
    await pods.delete("vanished", gracePeriodSeconds=0)
    await until(lambda: not processes_with(mark))


async def test_a_pod_that_does_not_fit_is_refused_by_the_node(pods: Pods, namespace: str) -> None:
    """It names its node itself, so that no scheduler looks."""
    resources = {"requests": {"cpu": "9000m"}}
    await pods.create("big", nodeName=f"{namespace}-0", main={"resources": resources})
    pod = await pods.until_phase("big", "Failed")
    assert pod["status"]["reason"] == "OutOfcpu"


async def test_a_slow_node_starts_pods_later(
    pods: Pods, machines: Machines, namespace: str
) -> None:
    await machines.fault("slow-node", node=f"{namespace}-1", seconds=1000)
    await pods.create("slow", nodeName=f"{namespace}-1")
    await pods.create("quick", "exit 0", nodeName=f"{namespace}-0")
    await pods.until_phase("quick", "Succeeded")
    assert (await pods.get("slow"))["status"]["phase"] == "Pending"


async def test_a_hollow_node_runs_pods_without_processes(
    pods: Pods, machines: Machines, namespace: str
) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    node = f"{namespace}-hollow"
    await machines.add_node(node, labels={OWN_NODES: namespace}, is_hollow=True)
    names = [f"hollow-{number}" for number in range(20)]
    for name in names:
        await pods.create(name, f"exec sleep {mark}", nodeName=node)
    for name in names:
        await pods.until_phase(name, "Running")
    assert not processes_with(mark)
    await machines.fault("container-kill", namespace=namespace, pod=names[0])
    assert ending(await pods.until_phase(names[0], "Failed"))["exitCode"] == 137
    for name in names:
        await pods.delete(name)
    for name in names:
        await pods.until_gone(name)


async def test_an_unknown_fault_is_refused_with_the_names_that_there_are(
    machines: Machines,
) -> None:
    with pytest.raises(FaultRefused, match="no fault meteor; there are node-crash, "):
        await machines.fault("meteor")
    with pytest.raises(FaultRefused, match="no node nowhere; there are "):
        await machines.fault("node-crash", node="nowhere")


async def test_machines_without_power_leave_no_process(
    cluster: ClusterAccess, api: Api, namespace: str, tmp_path: Path
) -> None:
    machines = await Machines.start(cluster, tmp_path / "machines")
    mark = f"1000.{secrets.randbelow(10**9)}"
    try:
        await machines.add_node(f"{namespace}-brief")
        pods = Pods(api, namespace)
        await pods.create("brief", f"exec sleep {mark}", nodeName=f"{namespace}-brief")
        await until(lambda: processes_with(mark))
    finally:
        machines.stop()
        await api.delete(f"/api/v1/nodes/{namespace}-brief")
        await until(lambda: not processes_with(mark))


async def test_what_a_failing_test_broke_and_left_is_put_back(
    request: pytest.FixtureRequest, pods: Pods, api: Api, machines: Machines, namespace: str
) -> None:
    crashed, deleted, marked = (f"{namespace}-{number}" for number in range(3))
    mark = f"1000.{secrets.randbelow(10**9)}"
    await pods.create("left", f"exec sleep {mark}", nodeName=crashed)
    await until(lambda: processes_with(mark))
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    labels = {"everstep.dev/job": "left"}
    await api.create(maps, {"metadata": {"name": "everstep-job-left", "labels": labels}})
    await machines.add_node(f"{namespace}-extra", labels={OWN_NODES: namespace})
    await machines.fault("kubelet-death", node=crashed)
    await api.delete(f"/api/v1/nodes/{deleted}")
    await machines.fault("node-taint", node=marked, key="broken", effect="NoSchedule")

    await request.node.getparent(pytest.Module).stash[PUT_BACK]()

    await until(lambda: not processes_with(mark))
    await pods.until_gone("left")
    assert await objects_of(api, namespace, "left") == set()
    nodes = (await api.get("/api/v1/nodes", labelSelector=f"{OWN_NODES}={namespace}"))["items"]
    assert {node["metadata"]["name"] for node in nodes} == {crashed, deleted, marked}
    for node in (crashed, deleted, marked):
        await until_node(api, node, takes_pods)


async def test_what_a_failing_test_made_is_taken_away(
    api: Api, machines: Machines, namespace: str
) -> None:
    node, maps = f"{namespace}-failing", f"/api/v1/namespaces/{namespace}/configmaps"
    paths = [f"/api/v1/nodes/{node}"]

    async def fail() -> None:
        async with (
            machines.nodes({node: {OWN_NODES: namespace}}),
            made(api, maps, {"metadata": {"name": "failing"}}) as one,
        ):
            paths.append(one)
            assert all([await api.get(path) for path in paths])
            raise AssertionError("as a test fails")

    with pytest.raises(AssertionError, match="as a test fails"):
        await fail()
    for path in paths:
        with pytest.raises(ApiError, match="404 NotFound"):
            await api.get(path)
