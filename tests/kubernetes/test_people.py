"""What a user sees of a job on the cluster, with the commands of one machine and with kubectl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from everstep.backends.kubernetes import rights as of_workers
from tests.kubernetes import rights
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.support.patience import HUNG_S
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import Machines
from tests.testbed.operator import Kubectl

COLUMNS = "everstep.dev/job,everstep.dev/phase,everstep.dev/slot,everstep.dev/generation"


@pytest.fixture
async def site(site: Site, cluster: ClusterAccess, namespace: str) -> Site:
    """The site of a user whose kubeconfig reaches the cluster."""
    site.env |= {"EVERSTEP_KUBE_NAMESPACE": namespace, "KUBECONFIG": cluster.kubeconfig}
    return site


async def test_every_command_shows_a_job_of_the_cluster_and_so_does_kubectl(
    site: Site, worker: WorkerProcess, cluster: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    site.submit("shown", STEPS="1000000", STEP_S="0.05", CRASH_AT_STEP="1:20:3")
    await until(lambda: (s := site.status("shown"))["restarts"] == 1 and s["state"] == "running")

    kubectl = Kubectl(cluster, namespace, tmp_path)
    table = await kubectl("get", "pods", "-l", "everstep.dev/job=shown", "-L", COLUMNS)
    heading, *rows = table.splitlines()
    assert heading.split()[-4:] == ["JOB", "PHASE", "SLOT", "GENERATION"]
    assert [row.split()[-4:] for row in rows] == [
        ["shown", "main", "0", "1"],
        ["shown", "main", "1", "1"],
    ]

    async def events() -> list[str]:
        printed = await kubectl("get", "events", "-o", "json")
        items = json.loads(printed)["items"]
        of_job = [one for one in items if one["involvedObject"]["kind"] == "ConfigMap"]
        assert all(one["count"] == 1 for one in of_job)
        return [one["message"] for one in of_job]

    await until(events)
    await worker.restart()  # killed: what it published may be published again
    [message] = await events()
    assert message.startswith("restart 1 of main: crash of rank 1 -> in_place: started, from step")

    printed = await kubectl("logs", "shown-1-g1")
    assert "[g1 rank 1] step 20\n" in printed
    assert "[g2 rank 1] step " in printed
    logs = site.everstep("logs", "shown", "--rank", "1", "--tail", "1000000")
    assert "== generation 1\nstep 1\nstep 2\n" in logs
    assert "== generation 2\nstep" in logs
    assert "[rank 0] step 1\n" in site.everstep("logs", "shown", "--generation", "1")

    nodes = json.loads(site.everstep("nodes", "--cluster", "pods", "--json"))
    of_file = [node for node in nodes if node["name"].startswith(namespace)]
    assert {node["state"] for node in of_file} == {"ready"}
    assert [job for node in of_file for job in node["jobs"]] == ["shown", "shown"]

    assert "in_place" in site.everstep("why", "shown", "1")
    assert "shown" in site.everstep("list")
    pods = {pod["slot"]: pod["node"] for pod in site.status("shown")["pods"]}
    site.everstep("report-fault", "shown", "node.fault", "--node", pods[1])
    await until(lambda: site.status("shown")["restarts"] == 2)
    site.everstep("stop", "shown")
    assert "main stopped: stopped by an operator" in site.everstep("watch", "shown", code=1)
    selector = "everstep.dev/job=shown"
    await kubectl("wait", "--for=delete", "pods", "-l", selector, f"--timeout={HUNG_S:.0f}s")
    pruning = ("prune", "--cluster", "pods", "--older-than", "0s")
    await until(lambda: "1 kept: ended lately" in site.everstep(*pruning))
    (record,) = json.loads(site.everstep(*pruning, "--dry-run", "--json"))["kept"]
    assert (record["job"], record["record"]) == ("shown", "everstep-job-shown")
    missing = site.everstep("logs", "shown", code=3)
    assert f"left no log in namespace {namespace}" in missing


async def test_doctor_says_of_a_cluster_what_a_worker_needs(
    site: Site, worker: WorkerProcess, api: Api, namespace: str
) -> None:
    """Each check is a sentence; a right that is taken away is named."""

    def checks_of(code: int) -> dict[str, tuple[str, str]]:
        value = json.loads(site.everstep("doctor", "--cluster", "pods", "--json", code=code))
        return {check["name"]: (check["state"], check["what"]) for check in value["checks"]}

    checks = checks_of(0)
    assert checks["cluster"][1].endswith("answers, Kubernetes v1.37.1")
    assert checks["namespace"] == ("ok", f"{namespace} has the service account everstep-worker")
    assert checks["rights"][0] == "ok"
    assert checks["nodes"][0] == "ok"
    assert checks["gangs"][1].startswith("PodGroups are served")
    assert checks["storage"] == ("note", "no StorageClass is the default; there are: none")
    assert checks["clock"][0] == "ok"
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/everstep-jobs"
    role = await api.get(path)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["secrets"]]
    await api.patch(path, {"rules": rules})
    try:
        state, what = checks_of(1)["rights"]
    finally:
        await api.patch(path, {"rules": role["rules"]})
    assert state == "problem"
    assert what == (
        "service account everstep-worker may not create secrets, get secrets, delete secrets"
    )


async def test_prune_removes_no_record_of_a_job_whose_workflow_may_run(
    site: Site, worker: WorkerProcess, cluster: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    """A record by hand of a workflow that runs, of one that is over, and of a server that gets no request."""
    kubectl = Kubectl(cluster, namespace, tmp_path)
    site.submit("runs", STEPS="1000000", STEP_S="0.05")
    await until(lambda: site.status("runs")["state"] == "running")
    path = "configmap/everstep-job-runs"
    written = json.loads(await kubectl("get", path, "-o", "json"))
    record = json.loads(written["data"]["job.json"])
    for name, changed in (("here", {}), ("there", {"server": "elsewhere:7233/default"})):
        metadata = {**written["metadata"], "name": f"everstep-job-{name}"}
        metadata["annotations"] = {"everstep.dev/job": name}
        bare = {"id": name, "newest": 1, "server": record["record"]["server"], **changed}
        body = {**written, "metadata": metadata, "data": {"job.json": json.dumps({"record": bare})}}
        for key in ("uid", "resourceVersion", "managedFields"):
            metadata.pop(key, None)
        (tmp_path / name).write_text(json.dumps(body))
        await kubectl("create", "-f", str(tmp_path / name))
    pruned = json.loads(site.everstep("prune", "--cluster", "pods", "--older-than", "0s", "--json"))
    assert {row["job"]: row["why"] for row in pruned["kept"]} == {
        "runs": "a pod of the job is there",
        "here": "ended lately",
        "there": "its workflow is one of the server elsewhere:7233/default",
    }
    site.everstep("stop", "runs")


def test_prune_says_that_the_cluster_does_not_answer(site: Site, tmp_path: Path) -> None:
    kubeconfig = json.loads(Path(site.env["KUBECONFIG"]).read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "wrong").write_text(json.dumps(kubeconfig))
    site.env["KUBECONFIG"] = str(tmp_path / "wrong")
    assert "cannot be pruned to its end" in site.everstep("prune", "--cluster", "pods", code=4)


def test_a_missing_namespace_is_the_only_problem_of_doctor_with_namespaces(site: Site) -> None:
    site.env["EVERSTEP_KUBE_NAMESPACE"] = "no-such-place"
    value = json.loads(site.everstep("doctor", "--cluster", "pods", "--json", code=1))
    checks = {check["name"]: (check["state"], check["what"]) for check in value["checks"]}
    assert checks["namespace"] == ("problem", "there is no namespace no-such-place")
    assert "rights" not in checks


async def test_doctor_checks_the_namespaces_that_are_there_beside_one_that_is_missing(
    site: Site, worker: WorkerProcess, namespace: str
) -> None:
    site.env["EVERSTEP_KUBE_JOB_NAMESPACES"] = '["no-such-place"]'
    value = json.loads(site.everstep("doctor", "--cluster", "pods", "--json", code=1))
    checks = [(check["name"], check["state"], check["what"]) for check in value["checks"]]
    assert ("namespace", "problem", "there is no namespace no-such-place") in checks
    has_account = f"{namespace} has the service account everstep-worker"
    assert ("namespace", "ok", has_account) in checks
    assert [state for name, state, _ in checks if name == "rights"] == ["ok"]


async def test_doctor_names_a_namespace_of_other_workers_and_one_that_is_being_deleted(
    site: Site, worker: WorkerProcess, api: Api, namespace: str
) -> None:
    foreign, ending = f"foreign-{namespace}", f"ending-{namespace}"
    for name in (foreign, ending):
        await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    await rights.grant_for_jobs(api, foreign, workers_in=namespace)
    maps = "/api/v1/namespaces/{}/configmaps".format
    books = {"metadata": {"name": "everstep-books"}, "data": {"identity": "others"}}
    await api.create(maps(foreign), books)
    held = {"metadata": {"name": "held", "finalizers": ["testbed.everstep.dev/held"]}}
    await api.create(maps(ending), held)
    await api.delete(f"/api/v1/namespaces/{ending}")
    site.env["EVERSTEP_KUBE_JOB_NAMESPACES"] = json.dumps([foreign, ending])
    try:
        value = json.loads(site.everstep("doctor", "--cluster", "pods", "--json", code=1))
    finally:
        await api.patch(f"{maps(ending)}/held", {"metadata": {"finalizers": None}})
        await api.delete(f"/api/v1/namespaces/{foreign}")
    problems = {check["what"] for check in value["checks"] if check["state"] == "problem"}
    assert problems == {
        f"namespace {foreign} is that of other workers: its ConfigMap everstep-books names them",
        f"namespace {ending} is being deleted",
    }


async def test_doctor_names_a_namespace_that_its_user_may_not_see(
    site: Site, worker: WorkerProcess, worker_kubeconfig: str
) -> None:
    """As in a pod of the workers, whose service account sees no namespaces."""
    site.env["KUBECONFIG"] = worker_kubeconfig
    site.env["EVERSTEP_KUBE_JOB_NAMESPACES"] = '["unseen"]'
    value = json.loads(site.everstep("doctor", "--cluster", "pods", "--json", code=1))
    checks = [(check["name"], check["state"], check["what"]) for check in value["checks"]]
    [what] = [
        what
        for name, state, what in checks
        if (name, state) == ("namespace", "note") and "unseen" in what
    ]
    assert what.startswith("whether there is a namespace unseen cannot be checked: ")
    assert 'cannot get resource "namespaces"' in what


def test_doctor_names_a_cluster_that_does_not_answer(site: Site, tmp_path: Path) -> None:
    kubeconfig = json.loads(Path(site.env["KUBECONFIG"]).read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "wrong").write_text(json.dumps(kubeconfig))
    site.env["KUBECONFIG"] = str(tmp_path / "wrong")
    value = json.loads(site.everstep("doctor", "--cluster", "pods", "--json", code=1))
    [check] = [check for check in value["checks"] if check["name"] == "cluster"]
    assert check["state"] == "problem"
    assert "https://127.0.0.1:1" in check["what"]


def test_rights_that_doctor_looks_for_are_those_of_deploy() -> None:
    tables = (of_workers.IN_WORKERS_NAMESPACE, of_workers.IN_JOB_NAMESPACE, of_workers.IN_CLUSTER)
    assert rights.granted() == {
        (name.partition(".")[0], verb)
        for table in tables
        for name, verbs in table.items()
        for verb in verbs
    }


async def test_validate_says_what_the_api_server_would_refuse(
    site: Site, api: Api, namespace: str, machines: Machines, tmp_path: Path
) -> None:
    """Nothing is created, and the words are its own."""

    def verdict(code: int, image: str = "machine", **pod: object) -> str:
        spec = {
            "cluster": "pods",
            "image": image,
            "command": ["true"],
            "model_dir": "/storage/x",
            "pod_template": {"spec": pod},
        }
        document = {
            "apiVersion": "everstep/v1",
            "kind": "TrainingJob",
            "metadata": {"name": "dry"},
            "spec": spec,
        }
        path = tmp_path / "dry.yaml"
        path.write_text(yaml.safe_dump(document))
        return site.everstep("validate", str(path), "--cluster", "pods", code=code)

    assert "valid" in verdict(0)
    unknown = verdict(2, nodeSelektor={"a": "b"})
    assert 'unknown field "spec.nodeSelektor"' in unknown
    mount = {"name": "absent", "mountPath": "/storage"}
    absent = verdict(2, containers=[{"name": "train", "volumeMounts": [mount]}])
    assert 'Not found: "absent"' in absent
    assert "spec.image" in verdict(2, image="UPPER CASE:??")  # which the API server would take
    fetch = {"name": "fetch", "image": "Fetch: 1"}  # and this one
    assert "spec.pod_template.spec.initContainers.0.image" in verdict(2, initContainers=[fetch])
    assert (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"] == []
