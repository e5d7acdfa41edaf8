"""A folder is identified by its volume, by whatever path: device and inode on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.backends.local import volumes
from everstep.core.errors import FolderTaken
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab

IN_MOUNTS_OF_ITS_OWN = ("unshare", "--mount", "--propagation", "private")


async def claim(lab: LocalLab, job: str, folder: Path, key: str = "launch") -> None:
    ref = Run(lab, id=job).ref
    await lab.backend.ensure_generation(ref, key, folders={str(folder): "model_dir"})


@pytest.mark.parametrize("is_there", [True, False])
async def test_one_folder_by_two_paths_is_one_jobs(
    local_lab: LocalLab, tmp_path: Path, is_there: bool
) -> None:
    (tmp_path / "real" / "out").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    name = "out" if is_there else "not/made/yet"
    await claim(local_lab, "first", tmp_path / "real" / name)
    with pytest.raises(FolderTaken, match=f"job first.*writes to {tmp_path}/link/{name}"):
        await claim(local_lab, "second", tmp_path / "link" / name)


async def test_a_folder_stays_its_jobs_once_it_is_made(local_lab: LocalLab, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    await claim(local_lab, "first", out)
    out.mkdir(parents=True)
    with pytest.raises(FolderTaken, match="job first"):
        await claim(local_lab, "second", out)
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(FolderTaken, match="job first"):
        await claim(local_lab, "second", tmp_path / "link")


async def test_a_folder_that_got_the_inode_of_a_removed_one_is_free(
    local_lab: LocalLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems give the number of a removed folder to the next one that is made."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    await claim(local_lab, "first", old)
    number = old.stat().st_ino
    old.rename(tmp_path / "kept")  # so that no other folder gets its number in truth
    new.mkdir()
    old.mkdir()
    replaced, real = new.stat().st_ino, volumes.identity_of

    def reused(path: str) -> volumes.Identity | None:
        real_path = real(path)
        return (
            (real_path[0], number)
            if real_path is not None and real_path[1] == replaced
            else real_path
        )

    monkeypatch.setattr(volumes, "identity_of", reused)
    await claim(local_lab, "second", new)
    with pytest.raises(FolderTaken, match="job first"):
        await claim(local_lab, "third", old)


SHOW = """
import sys
from everstep.backends.local.volumes import places
print(*sorted(set(places(sys.argv[1])) & set(places(sys.argv[2]))))
"""


def shared_places(setup: str, *paths: Path) -> str:
    """What the two paths have in common after the set-up, with mounts of its own."""
    here = [*IN_MOUNTS_OF_ITS_OWN, "sh", "-ec", f'{setup}; exec "$@"', "sh"]
    command = [*here, sys.executable, "-c", SHOW, *map(str, paths)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.run([*IN_MOUNTS_OF_ITS_OWN, "true"], check=False, capture_output=True).returncode
    != 0,
    reason="only root mounts, where the machine lets it",
)


@needs_mounts
@pytest.mark.parametrize("name", ["", "not/made/yet"])
def test_one_volume_mounted_at_two_paths_is_one_folder(tmp_path: Path, name: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    assert shared_places(f"mount --bind {one} {two}", one / name, two / name)
    assert not shared_places(":", one / name, two / name)


@needs_mounts
def test_one_path_on_two_volumes_is_two_folders(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    mounted = f"mount -t tmpfs none {one}; mount -t tmpfs none {two}"
    assert not shared_places(mounted, one / "out", two / "out")


async def test_the_same_path_on_another_volume_is_free(
    local_lab: LocalLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume is unmounted, another one is mounted where it was."""
    mount = tmp_path / "mount"
    mount.mkdir()
    await claim(local_lab, "first", mount / "out")
    real, volume = volumes.identity_of, mount.stat().st_ino

    def mounted(path: str) -> volumes.Identity | None:
        real_path = real(path)
        return (-1, 2) if real_path is not None and real_path[1] == volume else real_path

    monkeypatch.setattr(volumes, "identity_of", mounted)
    await claim(local_lab, "second", mount / "out")
