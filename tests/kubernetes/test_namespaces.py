"""Jobs in namespaces that their documents name, beside that of the workers."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from everstep.backends.kubernetes import rights as of_workers
from everstep.backends.kubernetes.api import KubernetesApi
from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.backends.kubernetes.identity import stored_namespaces
from everstep.core.errors import BackendUnavailable, InvalidSpec
from tests.backends.verbs import NEVER_ENDS, entries
from tests.kubernetes import rights
from tests.kubernetes.conftest import make_namespace, worker_process
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.kubernetes.test_queues import HOLD, waits_in_a_queue
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import Machines
from tests.testbed.operator import Kubectl


@pytest.fixture(scope="module")
async def team(api: Api, namespace: str, worker_kubeconfig: str, machines: Machines) -> str:
    """A namespace that the workers serve too, with the rights of deploy/job-namespace."""
    name = f"team-{namespace}"
    await make_namespace(api, name, nodes_of=namespace)
    await rights.grant_for_jobs(api, name, workers_in=namespace)
    return name


@pytest.fixture
async def lab(lab: KubernetesLab, team: str) -> KubernetesLab:
    lab.settings = replace(lab.settings, job_namespaces=(team,))
    await lab.another_worker()
    return lab


async def names_in(api: Api, namespace: str, kind: str, part: str) -> list[str]:
    group = "/apis/scheduling.k8s.io/v1beta1" if kind == "podgroups" else "/api/v1"
    response = await api.get(f"{group}/namespaces/{namespace}/{kind}")
    names = [one["metadata"]["name"] for one in response["items"]]
    return sorted(name for name in names if part in name)


KINDS = ("pods", "secrets", "podgroups", "configmaps")


async def test_all_that_a_job_has_is_in_the_namespace_that_it_names(
    lab: KubernetesLab, api: Api, namespace: str, team: str
) -> None:
    job = KubernetesRun(lab, id="elsewhere", env=NEVER_ENDS, namespace=team)
    await job.launch()
    await job.step(1)
    assert {kind: await names_in(api, team, kind, "elsewhere") for kind in KINDS} == {
        "pods": ["elsewhere-0-g1", "elsewhere-1-g1"],
        "secrets": ["everstep-agent-elsewhere"],
        "podgroups": ["elsewhere-g1"],
        "configmaps": ["everstep-job-elsewhere"],
    }
    assert [await names_in(api, namespace, kind, "elsewhere") for kind in KINDS] == [[]] * 4
    nodes = [node for node in await lab.backend.nodes() if "elsewhere" in node.jobs]
    assert len(nodes) == 2
    [left] = await lab.backend.leftovers()
    assert left.job == job.ref
    await lab.another_worker()  # that one finds the job there too
    await job.gone()
    assert await names_in(api, team, "pods", "elsewhere") == []
    assert await names_in(api, team, "secrets", "elsewhere") == []


async def test_commands_read_where_workers_make_pods_as_these_are_set_now(
    lab: KubernetesLab, cluster: ClusterAccess, api: Api, namespace: str, team: str
) -> None:
    books = f"/api/v1/namespaces/{namespace}/configmaps/everstep-books"
    reader = await KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    try:
        assert await stored_namespaces(reader, namespace) == [namespace, team]
        lab.settings = replace(lab.settings, job_namespaces=())
        await lab.another_worker()
        assert "namespaces" not in (await api.get(books))["data"]
        for stored in (None, "[]", "nonsense", '{"a": 1}', "[1]"):
            await api.patch(books, {"data": {"namespaces": stored}})
            assert await stored_namespaces(reader, namespace) == [namespace]
        assert await stored_namespaces(reader, "no-such-namespace") == ["no-such-namespace"]
    finally:
        await api.patch(books, {"data": {"namespaces": None}})
        await reader.close()


async def test_a_node_isolated_for_one_namespace_is_isolated_for_all(
    lab: KubernetesLab, namespace: str, team: str
) -> None:
    await lab.backend.ensure_isolated(f"{namespace}-0", reason="test")
    try:
        job = KubernetesRun(lab, id="avoids", env=NEVER_ENDS, namespace=team)
        await job.launch()
        assert {(await job.pod(slot)).node for slot in (0, 1)} == {
            f"{namespace}-1",
            f"{namespace}-2",
        }
        await job.gone()
    finally:
        await lab.backend.ensure_released(f"{namespace}-0")


async def test_a_namespace_that_the_workers_do_not_serve_is_refused(lab: KubernetesLab) -> None:
    job = KubernetesRun(lab, id="astray", namespace="absent")
    with pytest.raises(
        InvalidSpec, match="is absent, and the workers of this cluster make pods in"
    ):
        await job.new_generation("first")
    await job.gone()  # nothing was made


async def test_what_an_earlier_run_left_in_another_namespace_ends_first(
    lab: KubernetesLab, api: Api, team: str
) -> None:
    """That run was terminated, and its document named another namespace."""
    earlier = KubernetesRun(lab, id="moved", run="run-1", env=NEVER_ENDS, namespace=team)
    await earlier.launch()
    await earlier.step(1)
    job = KubernetesRun(lab, id="moved", run="run-2", env=NEVER_ENDS)

    async def has_a_generation() -> bool:
        try:
            await job.new_generation("first")
        except BackendUnavailable as error:
            waits.add(str(error).partition(" has to end first")[0])
            return False
        return True

    async def has_no_pods() -> bool:
        return not await names_in(api, team, "pods", "moved")

    waits = set[str]()
    assert not await has_a_generation()
    await until(has_no_pods)  # nothing that is watched is left of it, but its Secret
    await until(has_a_generation)
    assert waits == {f"an earlier run of moved in namespace {team}"}
    assert [await names_in(api, team, kind, "moved") for kind in ("secrets", "podgroups")] == [
        [],
        [],
    ]
    assert await lab.backend.leftovers() == ()
    await job.gone()


async def test_a_namespace_that_cannot_be_read_holds_up_no_job_elsewhere(
    lab: KubernetesLab, api: Api, namespace: str, team: str
) -> None:
    """A run of the same ID may be there still, so the first fence of a new one waits for its time."""
    right = ("configmaps", "get")
    job, begun = KubernetesRun(lab, id="not-begun"), KubernetesRun(lab, id="begun")
    await begun.new_generation("first")

    async def is_readable() -> bool:
        return await rights.is_allowed(api, team, *right, workers_in=namespace)

    async def is_refused() -> bool:
        return not await is_readable()

    async def may_have_unknown_pods(job: KubernetesRun) -> bool:
        stored = await lab.backend.books.read(job.id)
        return stored.document.record.may_have_unknown_pods

    await rights.grant_all_but(api, team, right, workers_in=namespace)
    try:
        await until(is_refused)
        await job.new_generation("first")
        assert await may_have_unknown_pods(job)
        await begun.new_generation("again")
        assert not await may_have_unknown_pods(begun)
    finally:
        await rights.grant_all_but(api, team, None, workers_in=namespace)
        await until(is_readable)
    await job.gone()
    await begun.gone()


async def test_what_is_left_elsewhere_is_listed_while_a_namespace_cannot_be_listed(
    lab: KubernetesLab, api: Api, namespace: str, team: str
) -> None:
    right = ("configmaps", "list")
    job = KubernetesRun(lab, id="left", env=NEVER_ENDS)
    await job.launch()

    async def is_listable() -> bool:
        return await rights.is_allowed(api, team, *right, workers_in=namespace)

    async def is_refused() -> bool:
        return not await is_listable()

    await rights.grant_all_but(api, team, right, workers_in=namespace)
    try:
        await until(is_refused)
        assert [left.job.id for left in await lab.backend.leftovers()] == ["left"]
    finally:
        await rights.grant_all_but(api, team, None, workers_in=namespace)
        await until(is_listable)
    await job.gone()


HELD = "testbed.everstep.dev/held"


async def missing(api: Api, name: str, nodes_of: str) -> None:
    """There is no such namespace."""


async def without_role(api: Api, name: str, nodes_of: str) -> None:
    await make_namespace(api, name, nodes_of=nodes_of)


async def under_deletion(api: Api, name: str, nodes_of: str) -> None:
    """It has a ConfigMap that keeps it from going."""
    await make_namespace(api, name, nodes_of=nodes_of)
    await rights.grant_for_jobs(api, name, workers_in=nodes_of)
    held = {"metadata": {"name": "held", "finalizers": [HELD]}}
    await api.create(f"/api/v1/namespaces/{name}/configmaps", held)
    await api.delete(f"/api/v1/namespaces/{name}")


async def make_again(api: Api, name: str, nodes_of: str) -> None:
    """Have the namespace with all rights, however it was broken."""
    path = f"/api/v1/namespaces/{name}"

    async def is_there() -> bool:
        names = (one["metadata"]["name"] for one in (await api.get("/api/v1/namespaces"))["items"])
        return name in names

    if await is_there() and "deletionTimestamp" in (await api.get(path))["metadata"]:
        await api.patch(f"{path}/configmaps/held", {"metadata": {"finalizers": None}})

        async def is_gone() -> bool:
            return not await is_there()

        await until(is_gone)
    if not await is_there():
        await make_namespace(api, name, nodes_of=nodes_of)
    await rights.grant_for_jobs(api, name, workers_in=nodes_of)


@pytest.mark.parametrize("broken", [missing, without_role, under_deletion])
async def test_a_namespace_that_refuses_stops_no_other_and_is_served_once_it_answers(
    lab: KubernetesLab,
    api: Api,
    namespace: str,
    broken: Callable[[Api, str, str], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = f"{broken.__name__.replace('_', '-')}-{namespace}"
    await broken(api, name, namespace)
    (team,) = lab.settings.job_namespaces
    lab.settings = replace(lab.settings, job_namespaces=(name, team))
    await lab.another_worker()
    [warning] = [line for line in caplog.messages if line.startswith(f"namespace {name} ")]
    assert warning.startswith(f"namespace {name} is not served, and its jobs wait: ")
    assert " forbidden: " in warning
    assert "over deploy/job-namespace" in warning
    for number, elsewhere in enumerate(("", team)):
        other = KubernetesRun(lab, id=f"beside-{number}", namespace=elsewhere)
        await other.new_generation("first")
        await other.gone()
    assert await lab.backend.leftovers() == ()
    job = KubernetesRun(lab, id="waits", env=NEVER_ENDS, namespace=name)

    async def has_begun() -> bool:
        try:
            await job.new_generation("first")
        except BackendUnavailable as error:
            refusals.add(str(error).partition(": ")[0])
            return False
        return True

    refusals = set[str]()
    assert not await has_begun()
    await make_again(api, name, namespace)
    await until(has_begun)
    assert refusals == {f"namespace {name} is not served, and its jobs wait"}
    await job.launch()
    await job.step(1)
    await job.gone()
    await api.delete(f"/api/v1/namespaces/{name}")


async def test_a_job_goes_on_once_the_role_is_back_that_was_deleted_before_its_worker_began(
    lab: KubernetesLab, api: Api, namespace: str, team: str
) -> None:
    job = KubernetesRun(lab, id="outlives", env=NEVER_ENDS, namespace=team)
    await job.launch()
    await job.step(1)
    pods = [(await job.pod(slot)).uid for slot in job.slots]
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team}/roles"
    role = await api.get(f"{roles}/everstep-jobs")
    await api.delete(f"{roles}/everstep-jobs")

    async def is_refused() -> bool:
        return not await rights.is_allowed(api, team, "pods", "list", workers_in=namespace)

    async def is_observed() -> bool:
        try:
            return len((await job.observe()).pods) == len(job.slots)
        except BackendUnavailable:
            return False

    try:
        await until(is_refused)
        await lab.another_worker()
        with pytest.raises(BackendUnavailable, match=f"{team} is not served, and its jobs wait"):
            await job.observe()
        assert await lab.backend.leftovers() == ()
    finally:
        metadata = {"name": "everstep-jobs"}
        await api.create(roles, {"metadata": metadata, "rules": role["rules"]})
    await until(is_observed)
    assert [(await job.pod(slot)).uid for slot in job.slots] == pods
    await job.gone()


async def test_the_namespace_of_other_workers_is_left_to_them(
    lab: KubernetesLab, api: Api, team: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it was the worker's own until now: its team decides, and the jobs of others go on."""
    books = f"/api/v1/namespaces/{team}/configmaps/everstep-books"
    identity = (await api.get(books))["data"]["identity"]
    what = f"namespace {team} is not served, and its jobs wait: it is that of other workers"
    await api.patch(books, {"data": {"identity": "others"}})
    try:
        await lab.another_worker()
        with pytest.raises(BackendUnavailable, match=what):
            await KubernetesRun(lab, id="theirs", namespace=team).new_generation("first")
        assert what in caplog.text
        assert (await api.get(books))["data"]["identity"] == "others"
    finally:
        await api.patch(books, {"data": {"identity": identity}})
        await lab.another_worker()


@pytest.mark.parametrize("whose", ["home", "all"])
async def test_deleted_books_are_those_of_the_jobs_in_the_namespaces_that_documents_name(
    lab: KubernetesLab, api: Api, namespace: str, team: str, whose: str
) -> None:
    job = KubernetesRun(lab, id=f"books-{whose}", namespace=team)
    job.books = await lab.backend.identity()
    await job.new_generation("launch")
    await lab.backend.close()
    for name in {"home": (namespace,), "all": (namespace, team)}[whose]:
        await api.delete(f"/api/v1/namespaces/{name}/configmaps/everstep-books")
    lab.backend = await KubernetesBackend.open(lab.settings)
    assert await lab.backend.identity() == job.books
    await job.new_generation("restart-1")
    await job.gone()


async def test_deleted_books_are_never_those_of_the_workers_of_another_namespace(
    lab: KubernetesLab, api: Api, namespace: str, team: str
) -> None:
    home, of_team = (
        f"/api/v1/namespaces/{name}/configmaps/everstep-books" for name in (namespace, team)
    )
    identity = await lab.backend.identity()
    await lab.backend.close()
    await api.delete(home)
    await api.patch(of_team, {"data": {"identity": "0ther", "workers": "elsewhere"}})
    try:
        lab.backend = await KubernetesBackend.open(lab.settings)
        assert await lab.backend.identity() != "0ther"
        with pytest.raises(BackendUnavailable, match=r"it is that of other workers: .* 0ther"):
            await KubernetesRun(lab, id="theirs", namespace=team).new_generation("first")
        await lab.backend.close()
    finally:
        await api.patch(of_team, {"data": {"identity": identity, "workers": namespace}})
        await api.patch(home, {"data": {"identity": identity}})
        lab.backend = await KubernetesBackend.open(lab.settings)


async def test_an_identity_is_made_only_once_every_namespace_of_jobs_answers(
    lab: KubernetesLab, api: Api, namespace: str, team: str
) -> None:
    """One that refuses may have jobs that name the identity of the books that were deleted."""
    home = f"/api/v1/namespaces/{namespace}/configmaps/everstep-books"
    books = await api.get(home)
    await lab.backend.close()
    await api.delete(home)
    lab.settings = replace(lab.settings, job_namespaces=(team, "no-such-namespace"))
    try:
        with pytest.raises(
            BackendUnavailable,
            match=r"has no ConfigMap everstep-books.* cannot be read: .*no-such-name",
        ):
            await KubernetesBackend.open(lab.settings)
    finally:
        metadata = {"name": "everstep-books", "labels": books["metadata"]["labels"]}
        await api.create(home.rpartition("/")[0], {"metadata": metadata, "data": books["data"]})
        lab.settings = replace(lab.settings, job_namespaces=(team,))
        lab.backend = await KubernetesBackend.open(lab.settings)


async def test_a_worker_uses_each_right_that_job_namespaces_grant_and_no_other(
    lab: KubernetesLab, api: Api, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = rights.recorded(monkeypatch, below=f"/namespaces/{team}/")
    await lab.another_worker()
    job = KubernetesRun(lab, id="rights", env=NEVER_ENDS, namespace=team)
    await job.launch()
    pods = f"/api/v1/namespaces/{team}/pods"
    await api.patch(f"{pods}/rights-1-g1", {"metadata": {"finalizers": [HOLD]}})
    await api.delete(f"{pods}/rights-1-g1", gracePeriodSeconds=1)
    await job.fact("agent.gone")
    restart = replace(*entries(job, 1), restart="restart 1 of main: crash -> pod: started")
    await lab.backend.ensure_recorded(job.ref, (restart,))
    await job.new_generation("two new pods, and one more while these have nodes: their group grows")
    await job.place(recreate=job.slots)
    more = (*job.slots, 2)
    await lab.backend.ensure_placed(job.place_order(slots=more, recreate=more))
    await lab.backend.leftovers()
    await waits_in_a_queue(lab, "queued", namespace=team)
    await job.gone()
    assert used == rights.granted(rights.OF_JOBS)
    assert used == {
        (name.partition(".")[0], verb)
        for name, verbs in of_workers.IN_JOB_NAMESPACE.items()
        for verb in verbs
    }


@pytest.mark.parametrize("right", sorted(rights.granted(rights.OF_JOBS)), ids="-".join)
async def test_no_other_rule_of_job_namespaces_grants_a_right_again(
    api: Api, namespace: str, team: str, right: tuple[str, str]
) -> None:
    """So a worker that uses each of them, as above, is refused something without any one."""

    async def is_refused() -> bool:
        return not await rights.is_allowed(api, team, *right, workers_in=namespace)

    assert not await is_refused()
    await rights.grant_all_but(api, team, right, workers_in=namespace)
    try:
        await until(is_refused)
        other_rights = rights.granted(rights.OF_JOBS) - {right}
        are_allowed = [
            await rights.is_allowed(api, team, *one, workers_in=namespace) for one in other_rights
        ]
        assert all(are_allowed)
    finally:
        await rights.grant_all_but(api, team, None, workers_in=namespace)
    await until(lambda: rights.is_allowed(api, team, *right, workers_in=namespace))


# -- As users and operators see it ------------------------------------------------------------------


@pytest.fixture
async def site(site: Site, cluster: ClusterAccess, namespace: str, team: str) -> Site:
    site.env |= {
        "KUBECONFIG": cluster.kubeconfig,
        "EVERSTEP_KUBE_NAMESPACE": namespace,
        "EVERSTEP_KUBE_JOB_NAMESPACES": json.dumps([team]),
    }
    return site


@pytest.fixture
async def worker(
    site: Site, worker_kubeconfig: str, namespace: str, team: str
) -> AsyncIterator[WorkerProcess]:
    also = {"EVERSTEP_KUBE_JOB_NAMESPACES": json.dumps([team])}
    async with worker_process(site, worker_kubeconfig, namespace, **also) as one:
        yield one
        assert one.stuck_tasks() == []


async def test_a_document_names_its_namespace(
    site: Site, worker: WorkerProcess, api: Api, namespace: str, team: str
) -> None:
    site.submit(
        "teamed", more={"namespace": team}, STEPS="1000000", STEP_S="0.05", CRASH_AT_STEP="1:20:3"
    )
    await until(lambda: (s := site.status("teamed"))["restarts"] == 1 and s["state"] == "running")
    assert await names_in(api, team, "pods", "teamed") == ["teamed-0-g1", "teamed-1-g1"]
    events = await api.get(f"/api/v1/namespaces/{team}/events")
    assert "everstep-job-teamed" in {one["involvedObject"]["name"] for one in events["items"]}
    assert "== generation 1\nstep 1\n" in site.everstep("logs", "teamed", "--rank", "1")
    nodes = json.loads(site.everstep("nodes", "--cluster", "pods", "--json"))
    assert [job for node in nodes for job in node["jobs"]] == ["teamed", "teamed"]
    site.everstep("stop", "teamed")
    await until(lambda: site.status("teamed")["state"] not in {"running", "stopping"})
    missing = site.everstep("logs", "teamed", code=3)
    assert f"in namespace {namespace} and {team}" in missing


async def test_a_document_with_another_namespace_ends_by_name(
    site: Site, worker: WorkerProcess, namespace: str, team: str
) -> None:
    site.submit("outside", more={"namespace": "kube-system"})
    printed = site.everstep("watch", "outside", code=1)
    allowed = f"{namespace}, {team} (EVERSTEP_KUBE_JOB_NAMESPACES)"
    what = f"is kube-system, and the workers of this cluster make pods in {allowed}"
    assert what in " ".join(printed.split())


async def test_doctor_and_validate_look_at_all_namespaces(
    site: Site, worker: WorkerProcess, api: Api, team: str, tmp_path: Path
) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{team}/roles/everstep-jobs"
    role = await api.get(path)
    await api.patch(path, {"rules": [r for r in role["rules"] if r["resources"] != ["events"]]})
    try:
        value = json.loads(site.everstep("doctor", "--cluster", "pods", "--json", code=1))
    finally:
        await api.patch(path, {"rules": role["rules"]})
    [check] = [check for check in value["checks"] if check["name"] == "rights"]
    assert check["what"] == f"service account everstep-worker may not create events in {team}"

    def verdict(code: int, namespace: str) -> str:
        spec = {"cluster": "pods", "image": "machine", "command": ["true"], "namespace": namespace}
        document = {
            "apiVersion": "everstep/v1",
            "kind": "TrainingJob",
            "metadata": {"name": "dry"},
            "spec": spec,
        }
        path = tmp_path / "dry.yaml"
        path.write_text(yaml.safe_dump(document))
        return site.everstep("validate", str(path), "--cluster", "pods", code=code)

    assert "valid" in verdict(0, team)
    assert "is default, and no worker makes pods there" in verdict(2, "default")


async def test_the_api_server_accepts_what_a_namespace_of_jobs_needs(
    cluster: ClusterAccess, team: str, tmp_path: Path
) -> None:
    folder = tmp_path / "overlay"
    folder.mkdir()
    resource = os.path.relpath(rights.OF_JOBS.parent, folder)
    kustomization = {"namespace": team, "resources": [resource]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    kubectl = Kubectl(cluster, team, tmp_path)
    await kubectl("apply", "--dry-run=server", "-k", str(folder), warns=True)
    rendered = list(yaml.safe_load_all(await kubectl("kustomize", str(folder))))
    assert {
        (one["kind"], one["metadata"].get("namespace", one["metadata"]["name"])) for one in rendered
    } == {
        ("Namespace", team),
        ("Role", team),
        ("RoleBinding", team),
        ("NetworkPolicy", team),
    }
    [binding] = [one for one in rendered if one["kind"] == "RoleBinding"]
    assert [subject["namespace"] for subject in binding["subjects"]] == ["everstep"]
