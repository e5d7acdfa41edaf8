"""The process kubelet runs sidecars beside the other containers, and probes containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.processes import free_port
from tests.kubernetes.objects import Pods, condition, ending, until
from tests.testbed.api import Json

WAITS = "trap 'exit 9' TERM; while :; do sleep 0.02; done"
"""Without the trap the first process of a container would not end at SIGTERM."""
SOON = {"periodSeconds": 1, "failureThreshold": 1}


def sidecar(name: str, script: str, **more: Any) -> Json:
    words = {"name": name, "image": "machine", "command": ["sh", "-c", script]}
    return {**words, "restartPolicy": "Always", **more}


def on_disk(folder: Path) -> tuple[Json, Json]:
    """Fields of a container and of its pod that mount this folder at /out."""
    volumes = [{"name": "out", "hostPath": {"path": str(folder)}}]
    return {"volumeMounts": [{"name": "out", "mountPath": "/out"}]}, {"volumes": volumes}


def status_of(pod: Json, container: str = "main") -> Json:
    status = pod["status"]
    every = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return next((dict(one) for one in every if one["name"] == container), {})


async def test_a_sidecar_begins_before_the_others_and_ends_after_them(
    pods: Pods, tmp_path: Path
) -> None:
    mount, volumes = on_disk(tmp_path)
    ends = "trap 'echo NAME ends >> /out/words; exit 0' TERM; echo NAME >> /out/words; {}"
    waits = ends.format("while :; do sleep 0.02; done")
    first = sidecar("first", waits.replace("NAME", "first"), **mount)
    second = sidecar("second", waits.replace("NAME", "second"), **mount)
    for one in (first, second):
        one["startupProbe"] = {"exec": {"command": ["grep", one["name"], "/out/words"]}, **SOON}
        one["startupProbe"]["failureThreshold"] = 100
    await pods.create(
        "beside", "echo main >> /out/words", initContainers=[first, second], main=mount, **volumes
    )
    pod = await pods.until_phase("beside", "Succeeded")
    words = (tmp_path / "words").read_text().splitlines()
    assert words == ["first", "second", "main", "second ends", "first ends"]
    assert ending(pod, "first")["exitCode"] == 0
    assert condition(pod, "Initialized")["status"] == "True"


async def test_a_sidecar_that_ends_is_started_again_in_a_pod_that_never_restarts(
    pods: Pods, tmp_path: Path
) -> None:
    mount, volumes = on_disk(tmp_path)
    once = sidecar("once", "test -e /out/seen && exec sleep 1000; touch /out/seen; exit 4", **mount)
    await pods.create("again", initContainers=[once], main=mount, **volumes)
    pod = await pods.until("again", lambda pod: status_of(pod, "once").get("restartCount") == 1)
    assert status_of(pod, "once")["lastState"]["terminated"]["exitCode"] == 4
    await pods.until("again", lambda pod: condition(pod, "Ready").get("status") == "True")
    await pods.delete("again")


async def test_a_failed_init_container_ends_the_sidecars_too(pods: Pods) -> None:
    bad = {"name": "bad", "image": "machine", "command": ["sh", "-c", "exit 3"]}
    await pods.create("unfit", initContainers=[sidecar("beside", WAITS), bad])
    pod = await pods.until_phase("unfit", "Failed")
    assert ending(pod, "bad")["exitCode"] == 3
    assert ending(pod, "beside")["exitCode"] == 9


async def test_a_deleted_pod_ends_its_sidecars_last(pods: Pods, tmp_path: Path) -> None:
    mount, volumes = on_disk(tmp_path)
    word = (
        "trap 'echo {0} >> /out/words; exit 0' TERM; touch /out/{0}; while :; do sleep 0.02; done"
    )
    await pods.create(
        "in-turn",
        word.format("main"),
        initContainers=[sidecar("beside", word.format("beside"), **mount)],
        main=mount,
        **volumes,
    )
    await until((tmp_path / "main").exists)
    await pods.delete("in-turn")
    await pods.until_gone("in-turn")
    assert (tmp_path / "words").read_text().split() == ["main", "beside"]


@pytest.mark.parametrize("kind", ["exec", "httpGet", "tcpSocket"])
async def test_a_container_is_ready_while_its_probe_passes(
    pods: Pods, tmp_path: Path, kind: str
) -> None:
    """A server of the machine's Python, begun when a file is there and ended when it is gone."""
    mount, volumes = on_disk(tmp_path)
    port = free_port()
    probe: Json = {
        "exec": {"command": ["test", "-e", "/out/up"]},
        "httpGet": {"port": "web", "path": "/"},
        "tcpSocket": {"port": port},
    }
    serve = f"/usr/bin/env python3 -m http.server {port} & server=$!"
    await pods.create(
        f"asked-{kind.lower()}",
        f"""
        until test -e /out/up; do sleep 0.02; done; {serve}
        while test -e /out/up; do sleep 0.02; done; kill $server; exec sleep 1000
        """,
        main={
            **mount,
            "ports": [{"name": "web", "containerPort": port}],
            "readinessProbe": {kind: probe[kind], **SOON},
        },
        **volumes,
    )
    name = f"asked-{kind.lower()}"
    pod = await pods.until_phase(name, "Running")
    assert (status_of(pod)["started"], status_of(pod)["ready"]) == (True, False)
    (tmp_path / "up").touch()
    pod = await pods.until(name, lambda pod: status_of(pod)["ready"])
    assert condition(pod, "Ready")["status"] == "True"
    (tmp_path / "up").unlink()
    pod = await pods.until(name, lambda pod: not status_of(pod)["ready"])
    assert condition(pod, "ContainersReady")["status"] == "False"
    assert pod["status"]["phase"] == "Running"
    await pods.delete(name)


async def test_a_container_that_lives_no_more_is_ended_and_started_again(
    pods: Pods, tmp_path: Path
) -> None:
    mount, volumes = on_disk(tmp_path)
    (tmp_path / "lives").touch()
    probe = {"exec": {"command": ["test", "-e", "/out/lives"]}, **SOON}
    main = {**mount, "livenessProbe": probe}
    await pods.create("hung", WAITS, restartPolicy="Always", main=main, **volumes)
    await pods.until("hung", lambda pod: status_of(pod).get("ready"))
    (tmp_path / "lives").unlink()
    pod = await pods.until("hung", lambda pod: status_of(pod)["restartCount"] >= 1)
    assert status_of(pod)["lastState"]["terminated"]["exitCode"] == 9
    await pods.delete("hung", gracePeriodSeconds=1)


async def test_a_container_that_does_not_start_is_ended_and_one_that_starts_is_not_asked_before(
    pods: Pods, tmp_path: Path
) -> None:
    mount, volumes = on_disk(tmp_path)
    never = {"exec": {"command": ["false"]}}
    await pods.create("late", WAITS, main={**mount, "startupProbe": {**never, **SOON}}, **volumes)
    pod = await pods.until_phase("late", "Failed")
    assert ending(pod)["exitCode"] == 9
    starts = {"exec": {"command": ["test", "-e", "/out/started"]}, "periodSeconds": 1}
    main = {
        **mount,
        "startupProbe": {**starts, "failureThreshold": 1000},
        "livenessProbe": {"exec": {"command": ["sh", "-c", "touch /out/asked"]}, **SOON},
    }
    await pods.create("slow", main=main, **volumes)
    pod = await pods.until_phase("slow", "Running")
    assert not status_of(pod)["started"]
    assert not (tmp_path / "asked").exists()
    (tmp_path / "started").touch()
    await until((tmp_path / "asked").exists)
    pod = await pods.until("slow", lambda pod: status_of(pod)["started"])
    assert condition(pod, "Ready")["status"] == "True"
    await pods.delete("slow")
