"""The folders of a job that ended are free for the next one, once nothing of it can write there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.core.errors import FolderTaken
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun, ranks_of
from tests.kubernetes.objects import until
from tests.testbed.api import Api
from tests.testbed.machines import Machines


async def begun(job: KubernetesRun) -> None:
    await job.launch()
    await job.step(5)


async def fence_folder_of(other: str, job: KubernetesRun, *, avoid: tuple[str, ...] = ()) -> None:
    """Up to the fence, in the folders of another job."""
    await job.new_generation("launch")
    await job.new_generation("above that of the other one")
    await job.place(avoid=avoid)
    folder = f"{job.lab.storage}/{other}"
    await job.fence(model_dir=folder, checkpoints_path=f"{folder}/checkpoints")


def releasers(lab: KubernetesLab) -> list[str]:
    """Pods that only release folders."""
    pods = lab.backend.watch.all_pods()
    names = [pod["metadata"]["name"] for pod in pods]
    return [name for name in names if "-release-" in name]


async def test_agents_release_the_folders_before_their_pods_go(lab: KubernetesLab) -> None:
    job = KubernetesRun(lab, id="first", env=NEVER_ENDS)
    await begun(job)
    pods: set[str] = set()

    async def is_gone() -> bool:
        state = await lab.backend.ensure_gone(job.ref)
        pods.update(releasers(lab))
        return state.done

    await until(is_gone)
    assert not pods
    word = json.loads((lab.folder / "first" / ".everstep" / "generation").read_text())
    assert (word["job"], word["released"]) == ("first", True)
    second = KubernetesRun(lab, id="second", slots=(0,))
    await fence_folder_of("first", second)
    await second.gone()


async def test_after_the_last_pod_a_short_lived_one_releases_the_folders(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="lost", env=NEVER_ENDS)
    await begun(job)
    for slot in job.slots:
        path = f"/api/v1/namespaces/{namespace}/pods/lost-{slot}-g1"
        await api.delete(path, gracePeriodSeconds=1)
    await until(lambda: not ranks_of("lost", slot=1, generation=1))
    await job.gone()
    await until(lambda: not releasers(lab))
    second = KubernetesRun(lab, id="heir", slots=(0,))
    await fence_folder_of("lost", second)
    await second.gone()


async def hold_pods(machines: Machines, namespace: str, *, held: bool) -> None:
    for number in range(3):
        await machines.fault("hold-pods", node=f"{namespace}-{number}", held=held)


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
async def test_what_the_short_lived_pod_mounts_is_made_again(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str, moment: str
) -> None:
    """An operator who tidies up removes the agent's program where no pod seems to need it any more."""
    job = KubernetesRun(lab, id=f"tidied-{moment}", slots=(0,), env=NEVER_ENDS)
    await begun(job)
    await api.delete(f"/api/v1/namespaces/{namespace}/pods/{job.id}-0-g1", gracePeriodSeconds=1)
    await until(lambda: not ranks_of(job.id, slot=0, generation=1))
    agent = lab.backend.placer.agent["metadata"]["name"]
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    if moment == "before":
        await api.delete(f"{maps}/{agent}")
    else:
        await hold_pods(machines, namespace, held=True)
        while not releasers(lab):
            assert not (await lab.backend.ensure_gone(job.ref)).done
        await api.delete(f"{maps}/{agent}")
        await hold_pods(machines, namespace, held=False)
    await job.gone()
    second = KubernetesRun(lab, id=f"heir-{moment}", slots=(0,))
    await fence_folder_of(job.id, second)
    await second.gone()


async def test_a_folder_is_kept_where_ranks_may_still_write(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    """The kubelet is dead and the pod object gone: nothing proves the end of its ranks."""
    job = KubernetesRun(lab, id="kept", env=NEVER_ENDS)
    await begun(job)
    node = next(pod.node for pod in (await job.observe_now()).pods if pod.slot == 1)
    await machines.fault("kubelet-death", node=node)
    await api.delete(f"/api/v1/namespaces/{namespace}/pods/kept-1-g1", gracePeriodSeconds=0)
    await job.see(lambda news: [pod.slot for pod in news.pods] == [0])
    await job.gone()
    assert ranks_of("kept", slot=1, generation=1), "they train on"
    second = KubernetesRun(lab, id="refused", slots=(0,))
    with pytest.raises(FolderTaken):
        await fence_folder_of("kept", second, avoid=(node,))
    await second.gone()


def mounted(folder: Path, path: str) -> dict[str, Any]:
    """A template whose pods see this folder at this path."""
    mount = {"name": "storage", "mountPath": path}
    volume = {"name": "storage", "hostPath": {"path": str(folder)}}
    containers = [{"name": "train", "volumeMounts": [mount]}]
    return {"spec": {"volumes": [volume], "containers": containers}}


async def test_a_folder_is_known_by_its_volume_and_not_by_its_path(
    lab: KubernetesLab, tmp_path: Path
) -> None:
    job = KubernetesRun(lab, id="owner", env=NEVER_ENDS)
    await begun(job)
    same = KubernetesRun(lab, id="same-volume", slots=(0,))
    await same.new_generation("launch")
    await same.place(pod_template=mounted(lab.folder, "/elsewhere"))
    with pytest.raises(FolderTaken):
        await same.fence(model_dir="/elsewhere/owner", checkpoints_path=None)
    await same.gone()
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o777)
    other = KubernetesRun(lab, id="other-volume", slots=(0,))
    await other.new_generation("launch")
    await other.place(pod_template=mounted(tmp_path / "volume", lab.storage))
    await other.fence(model_dir=f"{lab.storage}/owner", checkpoints_path=None)
    await other.gone()
    await job.gone()
