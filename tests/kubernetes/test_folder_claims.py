"""A folder is one job's, by its volume and the path in it, before any pod is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from everstep.backends.kubernetes import folders
from everstep.backends.kubernetes.folder_claims import FolderClaims
from everstep.backends.rules.ownership import FolderClaim, FolderPlace
from everstep.core.errors import FolderTaken
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.testbed.api import Api

CLAIM = {"persistentVolumeClaim": {"claimName": "models"}}
NFS = {"nfs": {"server": "10.0.0.1", "path": "/export"}}


@pytest.mark.parametrize(
    ("volume", "mount", "folder", "place"),
    [
        (CLAIM, {"mountPath": "/m"}, "/m/a", FolderPlace("claim ns/models", "/a")),
        (CLAIM, {"mountPath": "/m/"}, "/m", FolderPlace("claim ns/models", "/")),
        (
            CLAIM,
            {"mountPath": "/m", "subPath": "b"},
            "/m/a",
            FolderPlace("claim ns/models", "/b/a"),
        ),
        (CLAIM, {"mountPath": "/m"}, "/m/../m/a/.", FolderPlace("claim ns/models", "/a")),
        (NFS, {"mountPath": "/m"}, "/m/a", FolderPlace("nfs 10.0.0.1", "/export/a")),
        (CLAIM, {"mountPath": "/m", "subPathExpr": "$(A)"}, "/m/a", None),
        (CLAIM, {"mountPath": "/m"}, "/mine/a", None),
        ({"hostPath": {"path": "/x"}}, {"mountPath": "/m"}, "/m/a", None),
        ({"emptyDir": {}}, {"mountPath": "/m"}, "/m/a", None),
    ],
)
def test_a_folder_is_found_on_the_volume_that_is_mounted_above_it(
    volume: Mapping[str, Any], mount: Mapping[str, Any], folder: str, place: FolderPlace | None
) -> None:
    spec = {
        "volumes": [{"name": "v", **volume}],
        "containers": [{"name": "train", "volumeMounts": [{"name": "v", **mount}]}],
    }
    [claim] = folders.claims(spec, "train", {folder: "model_dir"}, namespace="ns")
    assert claim.places == (() if place is None else (place,))


def test_the_closest_mount_counts() -> None:
    other = {"name": "w", "persistentVolumeClaim": {"claimName": "other"}}
    mounts = [{"name": "v", "mountPath": "/"}, {"name": "w", "mountPath": "/m"}]
    spec = {
        "volumes": [{"name": "v", **CLAIM}, other],
        "containers": [{"name": "train", "volumeMounts": mounts}],
    }
    claims = folders.claims(spec, "train", {"/m/a": "a", "/n/a": "b"}, namespace="ns")
    assert [claim.places for claim in claims] == [
        (FolderPlace("claim ns/other", "/a"),),
        (FolderPlace("claim ns/models", "/n/a"),),
    ]


@pytest.fixture(scope="module")
async def volumes(api: Api, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two claims, each with a volume of its own."""
    tmp_path = tmp_path_factory.mktemp("volumes")
    names = ["one", "two"]
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        folder.chmod(0o777)
        size = {"storage": "1Gi"}
        volume = {
            "capacity": size,
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": str(folder)},
        }
        volume_name = f"{namespace}-{name}"
        await api.create(
            "/api/v1/persistentvolumes", {"metadata": {"name": volume_name}, "spec": volume}
        )
        claim = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": size},
            "volumeName": volume_name,
            "storageClassName": "",
        }
        await api.create(
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims",
            {"metadata": {"name": name}, "spec": claim},
        )
    return names


def on(lab: KubernetesLab, claim: str, mount_path: str) -> dict[str, Any]:
    """What an order says of pods that mount this claim, and of the folder that they write to."""
    spec = lab.pod["pod_template"]["spec"]
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": claim}}
    mount = {"name": "models", "mountPath": mount_path}
    train = spec["containers"][0]
    return {
        "pod_template": {
            "spec": {
                "volumes": [*spec["volumes"], volume],
                "containers": [{**train, "volumeMounts": [*train["volumeMounts"], mount]}],
            }
        },
        "folders": {f"{mount_path}/run": "model_dir"},
    }


async def test_one_volume_under_two_paths_collides_and_one_path_on_two_volumes_does_not(
    lab: KubernetesLab, api: Api, namespace: str, volumes: list[str]
) -> None:
    first, second, third = (
        KubernetesRun(lab, id=name, slots=(0,), env=NEVER_ENDS)
        for name in ("first", "second", "third")
    )
    for job in (first, second, third):
        await job.new_generation("launch")
    await first.place(**on(lab, "one", "/models"))
    with pytest.raises(
        FolderTaken, match="model_dir: job first, which has not ended, writes to /data"
    ):
        await second.place(**on(lab, "one", "/data"))
    for folder, how in (("/data/run/ckpt", "lies in"), ("/data", "contains")):
        changes = {**on(lab, "one", "/data"), "folders": {folder: "checkpoints.path"}}
        with pytest.raises(FolderTaken, match=rf"checkpoints.path: {folder} {how} a folder"):
            await second.place(**changes)
    pods = (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
    assert [pod["metadata"]["name"] for pod in pods] == ["first-0-g1"]
    secrets = (await api.get(f"/api/v1/namespaces/{namespace}/secrets"))["items"]
    assert [one["metadata"]["name"] for one in secrets] == ["everstep-agent-first"]
    await third.place(**on(lab, "two", "/models"))
    await lab.another_worker()  # whichever worker it is
    with pytest.raises(FolderTaken):
        await second.place(**on(lab, "one", "/data"))
    await first.place(**on(lab, "one", "/models"))
    await first.gone()
    await second.place(**on(lab, "one", "/data"))
    for job in (second, third):
        await job.gone()
    path = f"/api/v1/namespaces/{namespace}/configmaps/everstep-folders"
    assert (await api.get(path)).get("data", {}) == {}
    # A worker that was killed between the end of a job and that of its claim.
    key = await _key_of_a_claim(lab, api, path, probe="probe")
    await api.patch(path, {"data": {key: "first"}})
    await second.new_generation("again")
    await second.place(**on(lab, "one", "/data"))
    await second.gone()


async def test_a_void_claim_is_not_taken_while_its_owner_begins_again(
    lab: KubernetesLab, api: Api, namespace: str, volumes: list[str]
) -> None:
    first = KubernetesRun(lab, id="begins", slots=(0,), env=NEVER_ENDS)
    claims = await _with_a_void_claim(first, lab, api, namespace)
    folder = FolderClaim(
        path="/m/run", field="model_dir", places=(FolderPlace(f"claim {namespace}/one", "/run"),)
    )
    with pytest.raises(FolderTaken, match="job begins, which has not ended"):
        await claims.claim("second", [folder])
    await first.gone()


async def test_a_claim_is_not_given_up_that_its_owner_made_anew(
    lab: KubernetesLab, api: Api, namespace: str, volumes: list[str]
) -> None:
    first = KubernetesRun(lab, id="anew", slots=(0,), env=NEVER_ENDS)
    claims = await _with_a_void_claim(first, lab, api, namespace)
    await claims.release("anew")  # by a worker that was slow to end the run before
    stored = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/everstep-folders")
    assert [json.loads(entry)[2] for entry in stored["data"].values()] == ["anew"]
    await first.gone()


async def _with_a_void_claim(
    job: KubernetesRun, lab: KubernetesLab, api: Api, namespace: str
) -> FolderClaims:
    """The claims as a worker sees them that finds the job ended, just before the job begins again."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/everstep-folders"
    key = await _key_of_a_claim(lab, api, path, probe=f"before-{job.id}")
    await api.patch(path, {"data": {key: job.id}})
    books = lab.backend.books
    began: list[str] = []

    async def lives(owner: str) -> bool:
        does_live = (await books.read(owner)).document.record.placed is not None
        if not began:
            began.append(owner)
            assert not does_live
            await job.new_generation("again")
            await job.place(**on(lab, "one", "/models"))
        return does_live

    return FolderClaims(api=lab.backend._api, maps=books.maps, lives=lives)


async def _key_of_a_claim(lab: KubernetesLab, api: Api, path: str, *, probe: str) -> str:
    job = KubernetesRun(lab, id=probe, slots=(0,), env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.place(**on(lab, "one", "/data"))
    [key] = (await api.get(path))["data"]
    await job.gone()
    return str(key)
