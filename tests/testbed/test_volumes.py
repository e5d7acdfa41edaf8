"""Volumes of a pod whose kubelet was restarted: what its containers have mounted stays where it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.testbed.api import Json
from tests.testbed.kubelet.volumes import VolumeMaker

POD = {"spec": {"volumes": [{"name": "agent", "configMap": {"name": "agent"}}]}}


def config_map(**data: str) -> Any:
    return lambda _kind, _name: {"data": data}


async def made(folder: Path, pod: Json, **data: str) -> Path:
    # Nothing of a ConfigMap volume is requested: the lookup has all of it.
    api: Any = None
    return Path((await VolumeMaker(api, pod, config_map(**data), folder).make())["agent"])


async def test_a_volume_that_is_made_again_is_still_the_one_that_is_mounted(tmp_path: Path) -> None:
    folder = await made(tmp_path, POD, file="1", left="x")
    mounted = os.open(
        folder, os.O_RDONLY
    )  # as a bind mount holds it: its number is not given out again
    try:
        await made(tmp_path, POD, file="2")
        assert folder.stat().st_ino == os.fstat(mounted).st_ino
    finally:
        os.close(mounted)
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "2"
