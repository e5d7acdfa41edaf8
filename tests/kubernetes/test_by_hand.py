"""Objects under our names that a person deletes or makes: the job goes on, or reports what is in its way."""

from __future__ import annotations

import json
from functools import partial

import pytest

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.core.errors import BackendUnavailable, WrongCluster
from everstep.core.world import JobRef
from tests.backends.lab import uids_of
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import Pods, until
from tests.kubernetes.site import Site
from tests.kubernetes.test_gangs import ALL, another_node, groups, pods_of, until_refused
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.machines import Machines


async def resumed(job: KubernetesRun, key: str, *, recreate: tuple[int, ...]) -> None:
    """A restart that makes new pods for these slots."""
    await job.new_generation(key)
    await job.stop(slots=tuple(set(job.slots) - set(recreate)))
    await job.place(recreate=recreate)
    await job.fence()
    saved = await job.backend.checkpoints(job.ref)
    await job.start(next(checkpoint for checkpoint in saved if checkpoint.good))


async def train_on_once_adopted(job: KubernetesRun) -> None:
    """Adopt the job, which is in generation 2, and start it again from what it saved."""
    assert await job.backend.ensure_adopted(job.ref, generation=2) == job.books
    job.generation = await job.backend.ensure_generation(job.ref, "restart-2", above=2)
    assert job.generation == 3
    await job.stop()
    await job.place()
    await job.fence()
    saved = await job.backend.checkpoints(job.ref)
    await job.start(next(checkpoint for checkpoint in saved if checkpoint.good))
    await job.step(25)


async def test_a_deleted_pod_is_replaced_at_once_while_its_agent_still_answers(
    site: Site, worker: WorkerProcess, api: Api, namespace: str
) -> None:
    """Its ranks ignore the kubelet's request to end, so its agent lives for all of its grace time."""
    assert worker.pid
    site.submit("by-hand", STEPS="240", STEP_S="0.05", IGNORES_SIGTERM="yes")
    await until((site.storage / "by-hand" / "checkpoints" / "step-40.json").exists)
    before = uids_by_slot(site, "by-hand")
    await api.delete(f"/api/v1/namespaces/{namespace}/pods/by-hand-1-g1")
    await until(lambda: site.status("by-hand")["state"] in {"completed", "failed"})
    status, after = site.status("by-hand"), uids_by_slot(site, "by-hand")
    assert status["state"] == "completed"
    [record] = json.loads(site.everstep("restarts", "by-hand", "--json"))
    assert (record["fault"]["kind"], record["level"]) == ("pod.deleted", "pod")
    assert after[0] == before[0]
    assert after[1] != before[1]


def uids_by_slot(site: Site, job: str) -> dict[int, str]:
    return {pod["slot"]: pod["uid"] for pod in site.status(job)["pods"]}


async def test_a_pod_that_is_deleted_while_it_waits_for_a_node_is_created_again(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    job = KubernetesRun(lab, id="unplaced", slots=ALL, env=NEVER_ENDS)
    await job.new_generation("launch")
    await until_refused(job)
    await api.delete(f"/api/v1/namespaces/{namespace}/pods/unplaced-2-g1")
    async with another_node(machines, namespace, "fourth-of-unplaced"):
        place = partial(lab.backend.ensure_placed, job.place_order())
        await job.until_done(place, within_s=90.0)
        await job.gone()


async def test_without_its_secret_a_job_goes_on_with_the_pods_it_has(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    """The worker that talks with its agents writes the Secret again: new pods have to trust old ones."""
    job = KubernetesRun(lab, id="secret", env=NEVER_ENDS)
    await job.launch()
    before = await job.step(15)
    secret = f"/api/v1/namespaces/{namespace}/secrets/everstep-agent-secret"
    data = (await api.get(secret))["data"]
    await api.delete(secret)
    await machines.fault(
        "container-kill", namespace=namespace, pod="secret-1-g1", container="train"
    )
    await job.fact("agent.gone")
    await resumed(job, "restart-1", recreate=(1,))
    assert uids_of(await job.step(30), [0]) == uids_of(before, [0])
    assert (await api.get(secret))["data"] == data
    await job.gone()


async def test_without_its_secret_and_its_worker_a_job_goes_on_in_new_pods(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="no-secret", env=NEVER_ENDS)
    await job.launch()
    await job.step(15)
    await api.delete(f"/api/v1/namespaces/{namespace}/secrets/everstep-agent-no-secret")
    await lab.another_worker()
    job.cursor = ""
    state = await lab.backend.ensure_generation(job.ref, "restart-1")
    assert state == 2
    await resumed(job, "restart-1", recreate=job.slots)
    await job.step(30)
    await job.gone()


@pytest.mark.short_fence
async def test_without_its_record_a_job_is_refused_by_its_name_until_it_is_adopted(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    """The API server removes what the ConfigMap owned. The new record numbers facts from the beginning."""

    async def report_a_dead_container() -> None:
        pod = f"record-1-g{placed_in}"
        await machines.fault("container-kill", namespace=namespace, pod=pod, container="train")
        assert (await job.fact("agent.gone")).slot == 1

    job = KubernetesRun(lab, id="record", env=NEVER_ENDS)
    job.books = await lab.backend.identity()
    await job.launch()
    await job.step(15)
    placed_in = 1
    await report_a_dead_container()
    await resumed(job, "restart-1", recreate=(1,))
    await job.step(20)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await api.delete(f"/api/v1/namespaces/{namespace}/configmaps/everstep-job-record")

    async def no_pod_is_left() -> bool:
        return not (await api.get(pods, labelSelector="everstep.dev/job=record"))["items"]

    await until(no_pod_is_left)
    with pytest.raises(
        WrongCluster, match=r"ConfigMap everstep-job-record .* everstep adopt record"
    ):
        await lab.backend.ensure_generation(job.ref, "restart-2", above=2)
    await train_on_once_adopted(job)
    placed_in = 3
    await report_a_dead_container()
    await job.gone()


async def test_a_pod_of_others_under_the_name_of_a_slot_is_left_alone_and_named(
    lab: KubernetesLab, pods: Pods
) -> None:
    """Once it is gone the job is placed."""
    job = KubernetesRun(lab, id="taken", env=NEVER_ENDS)
    name = names.pod("taken", slot=1, generation=1)
    await pods.create(name)
    other = await pods.until_phase(name, "Running")
    await job.new_generation("launch")
    for _ in range(3):
        state = await lab.backend.ensure_placed(job.place_order())
        assert f"pod {name} is not of job taken" in state.waiting_for
    await job.gone()
    still = await pods.get(name)
    assert still["metadata"]["uid"] == other["metadata"]["uid"]
    assert "deletionTimestamp" not in still["metadata"]
    job.run = "run-2"
    job.generation = await lab.backend.ensure_generation(job.ref, "launch again")
    await pods.delete(name, gracePeriodSeconds=0)
    await pods.until_gone(name)
    await job.place()
    await job.gone()


async def test_a_group_of_others_under_the_name_of_a_jobs_is_left_alone_and_named(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """Its size is another, so that the pods would start alone or never. Once it is gone the job is placed."""
    job = KubernetesRun(lab, id="grouped", env=NEVER_ENDS)
    name = names.group("grouped", generation=1)
    path = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/podgroups"
    spec = {"schedulingPolicy": {"gang": {"minCount": 9}}}
    other = await api.create(path, {"metadata": {"name": name}, "spec": spec})
    await job.new_generation("launch")
    for _ in range(3):
        state = await lab.backend.ensure_placed(job.place_order())
        assert not state.placed
        assert f"PodGroup {name} is not of job grouped" in state.waiting_for
    still = await api.get(f"{path}/{name}")
    assert (still["metadata"]["uid"], still["spec"]) == (other["metadata"]["uid"], other["spec"])
    await api.delete(f"{path}/{name}")
    await job.place()
    assert await groups(api, namespace, "grouped") == {name: 2}
    await job.gone()


async def test_a_group_that_is_deleted_by_hand_holds_its_pods_up_no_longer_than_it_stays(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    job = KubernetesRun(lab, id="groupless", slots=ALL, env=NEVER_ENDS)
    await job.new_generation("launch")
    await until_refused(job)
    path = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/podgroups"
    [name] = await groups(api, namespace, "groupless")
    await api.delete(f"{path}/{name}")
    async with another_node(machines, namespace, "fourth"):
        await job.place()
        assert len(await pods_of(api, namespace, "groupless")) == 4
        await job.gone()


async def test_without_the_file_of_the_agent_new_pods_get_it_again(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """An operator who tidies up removes the ConfigMap that all pods of this version mount."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    labelled = (await api.get(maps, labelSelector="app.kubernetes.io/managed-by=everstep"))["items"]
    [agent] = [m for m in labelled if m["metadata"]["name"].startswith("everstep-agent-")]
    await api.delete(f"{maps}/{agent['metadata']['name']}")
    job = KubernetesRun(lab, id="no-agent", env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.place()
    assert (await api.get(f"{maps}/{agent['metadata']['name']}"))["binaryData"] == agent[
        "binaryData"
    ]
    await job.gone()


@pytest.mark.parametrize("kind", ["configmaps", "secrets"])
async def test_what_pods_mount_is_made_again_while_they_wait_for_it(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str, kind: str
) -> None:
    """Their group has no place yet, and they have one only after the deletion."""
    job = KubernetesRun(lab, id=f"waits-for-{kind}", slots=ALL, env=NEVER_ENDS)
    await job.new_generation("launch")
    await until_refused(job)
    agent = lab.backend.placer.agent["metadata"]["name"]
    name = {"configmaps": agent, "secrets": names.secret(job.id)}[kind]
    await api.delete(f"/api/v1/namespaces/{namespace}/{kind}/{name}")
    async with another_node(machines, namespace, f"fourth-{kind}"):
        place = partial(lab.backend.ensure_placed, job.place_order())
        await job.until_done(place, within_s=90.0)
        await job.gone()


async def test_without_the_books_of_the_cluster_its_jobs_go_on(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="no-books", env=NEVER_ENDS)
    await job.launch()
    await job.step(5)
    path = f"/api/v1/namespaces/{namespace}/configmaps/everstep-books"
    await lab.backend.ensure_isolated("some-node", reason="broken")
    books = await api.get(path)
    await api.delete(path)
    await job.again("restart-1")
    await job.step(10)
    await lab.another_worker()
    job.cursor = ""
    await job.again("restart-2")
    await job.step(15)
    assert (await api.get(path))["data"]["identity"] == books["data"]["identity"]
    await job.gone()


async def test_books_that_are_deleted_while_no_worker_lives_are_those_of_the_jobs_records(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="kept-books", env=NEVER_ENDS)
    job.books = await lab.backend.identity()
    await job.launch()
    before = await job.step(5)
    await lab.backend.close()
    await api.delete(f"/api/v1/namespaces/{namespace}/configmaps/everstep-books")
    lab.backend = await KubernetesBackend.open(lab.settings)
    assert await lab.backend.identity() == job.books
    assert uids_of(await job.step(10), job.slots) == uids_of(before, job.slots)
    await job.again("restart-1")
    await job.step(15)
    await job.gone()


async def test_records_of_several_books_leave_it_to_a_person_which_are_those_of_the_cluster(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """Once the ConfigMap is made as the error says, workers begin."""
    identity = await lab.backend.identity()
    for number in range(4):
        await lab.backend.ensure_generation(JobRef(id=f"mine-{number}", run="run-1"), "launch")
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    labels = {
        **names.labels("0", "theirs"),
        names.ROLE: "job",
    }  # it comes before any other identity
    metadata = {"name": names.record("theirs"), "labels": labels}
    await api.create(maps, {"metadata": {**metadata, "annotations": {names.JOB: "theirs"}}})
    await lab.backend.close()
    await api.delete(f"{maps}/everstep-books")
    rows = rf"0 \(theirs\); {identity} \(mine-0, mine-1, mine-2 and 1 more\)"
    command = rf"kubectl -n {namespace} create configmap everstep-books --from-literal=identity="
    with pytest.raises(BackendUnavailable, match=rf"{rows}\. .*{command}"):
        await KubernetesBackend.open(lab.settings)
    await api.create(maps, {"metadata": {"name": "everstep-books"}, "data": {"identity": identity}})
    lab.backend = await KubernetesBackend.open(lab.settings)
    assert await lab.backend.identity() == identity


async def test_a_worker_whose_books_are_others_by_now_changes_nothing_until_it_is_restarted(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """Another worker began after a person had deleted the ConfigMap, and before this one made it again."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/everstep-books"
    identity = await lab.backend.identity()
    await api.patch(path, {"data": {"identity": "0ther"}})
    try:
        with pytest.raises(BackendUnavailable, match=f"0ther, not {identity}; restart this worker"):
            await lab.backend.clock()
    finally:
        await api.patch(path, {"data": {"identity": identity}})
    await lab.backend.clock()


async def test_a_finalizer_of_others_that_holds_a_stop_is_named(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="guarded", env=NEVER_ENDS)
    await job.launch()
    pod = f"/api/v1/namespaces/{namespace}/pods/guarded-1-g1"
    await api.patch(pod, {"metadata": {"finalizers": ["example.com/guard"]}})
    try:

        async def is_named() -> bool:
            state = await lab.backend.ensure_gone(job.ref)
            assert not state.done
            what = "guarded-1-g1, which the finalizer example.com/guard of others holds, to go"
            return state.waiting_for == what

        await until(is_named)
    finally:
        await api.patch(pod, {"metadata": {"finalizers": None}})
    await job.gone()


MARKS = {
    "the label of the books": {"labels": {names.BOOKS: None}},
    "the annotation of the job": {"annotations": {names.JOB: None}},
    "both": {"labels": {names.BOOKS: None}, "annotations": {names.JOB: None}},
}


@pytest.mark.parametrize("what", MARKS)
async def test_a_pod_whose_marks_were_taken_away_gets_them_back_and_trains_on(
    lab: KubernetesLab, api: Api, namespace: str, what: str
) -> None:
    job = KubernetesRun(lab, id="unmarked", env=NEVER_ENDS)
    await job.launch()
    before = await job.step(5)
    path = f"/api/v1/namespaces/{namespace}/pods/unmarked-1-g1"
    marks = {kind: (await api.get(path))["metadata"][kind] for kind in ("labels", "annotations")}
    await api.patch(path, {"metadata": MARKS[what]})

    async def has_marks() -> bool:
        await lab.backend.observe_now(job.ref, job.cursor)
        metadata = (await api.get(path))["metadata"]
        return {kind: metadata[kind] for kind in marks} == marks

    await until(has_marks)
    saved = max(pod.run.step or 0 for pod in before.pods)
    assert uids_of(await job.step(saved + 20), job.slots) == uids_of(before, job.slots)
    await job.gone()


@pytest.mark.short_fence
async def test_an_old_copy_of_its_record_removes_no_pod_that_is_newer(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """What lives proves that the copy is old. The job waits until a person has it adopted."""
    job = KubernetesRun(lab, id="restored", env=NEVER_ENDS)
    job.books = await lab.backend.identity()
    await job.launch()
    await job.step(15)
    record = f"/api/v1/namespaces/{namespace}/configmaps/everstep-job-restored"
    old = (await api.get(record))["data"]
    await resumed(job, "restart-1", recreate=job.slots)
    before = await job.step(20)
    await api.patch(record, {"data": old})
    for _ in range(3):
        with pytest.raises(WrongCluster, match=r"old copy: .* everstep adopt restored"):
            await lab.backend.observe_now(job.ref, job.cursor)
    pods = (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
    of_job = [pod["metadata"] for pod in pods if pod["metadata"]["name"].startswith("restored")]
    assert {pod["uid"] for pod in of_job} == {*uids_of(before, job.slots).values()}
    assert not any("deletionTimestamp" in pod for pod in of_job)
    await train_on_once_adopted(job)
    await job.gone()
