"""Books whose file is not where it was: the same ones moved or restored, or a copy of others."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.database import identity
from everstep.backends.local.database.settings_table import setting, store_setting
from everstep.backends.local.database.store import Db
from everstep.backends.local.reconciling.liveness import Life
from everstep.backends.local.settings import LocalSettings
from everstep.core.errors import BackendUnavailable, WrongCluster
from tests.backends.lab import Run, uids_of
from tests.backends.local_lab import LocalLab
from tests.backends.verbs import NEVER_ENDS, VERBS
from tests.support import books


def copied(home: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", home, to], check=True)


async def identity_of(home: Path) -> str:
    backend = await LocalBackend.open(LocalSettings(home=home))
    await backend.close()
    return backend.books_id


async def test_a_copy_beside_its_original_is_named_and_asks_for_an_adoption(
    local_lab: LocalLab, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    job = Run(local_lab, slots=(0,), env=NEVER_ENDS)
    await job.launch()
    job.books = await local_lab.backend.identity()
    (uid,) = uids_of(await job.step(1)).values()
    copy_home = tmp_path / "second" / "home"
    copy_home.parent.mkdir()
    copied(tmp_path / "home", copy_home)
    lab = await LocalLab.open(copy_home.parent)
    copy = lab.backend
    try:
        message = rf"{tmp_path}/home/local.db; .* {copy_home}/local.db, .* a copy .*adopt demo"
        second_run = Run(lab, slots=(0,), generation=job.generation, books=job.books)
        for verb in ("observe", "ensure_stopped", "ensure_gone", "ensure_generation"):
            with subtests.test(verb), pytest.raises(WrongCluster, match=message):
                await VERBS[verb](second_run)
        await copy.reconciler.end_strays()
        assert await copy.leftovers() == ()
        assert local_lab.backend.settings.folder(uid).life() is Life.ALIVE
        await job.step((await job.pod(0)).run.step or 1)
        folders = {job.model_dir: "model_dir"}
        adoption = await copy.ensure_adopted(
            second_run.ref, generation=job.generation, folders=folders
        )
        assert adoption == copy.books_id != job.books
    finally:
        await lab.leave()  # its copied agent folders name the agents of the original


async def test_a_copy_keeps_the_identity_that_it_was_given(tmp_path: Path) -> None:
    first = await identity_of(tmp_path / "home")
    copied(tmp_path / "home", tmp_path / "copy")
    identity = await identity_of(tmp_path / "copy")
    assert identity != first
    assert await identity_of(tmp_path / "copy") == identity
    assert await identity_of(tmp_path / "home") == first


def moved(home: Path) -> Path:
    return home.rename(home.with_name("moved"))


def moved_across_file_systems(home: Path) -> Path:
    copied(home, home.with_name("moved"))
    shutil.rmtree(home)
    return home.with_name("moved")


def restored(home: Path) -> Path:
    copied(home, home.with_name("backup"))
    shutil.rmtree(home)
    copied(home.with_name("backup"), home)
    return home


def linked(home: Path) -> Path:
    home.with_name("link").symlink_to(home)
    return home.with_name("link")


def replaced_by_others(home: Path) -> Path:
    """New books where the books were before they were moved."""
    moved(home)
    home.mkdir()
    shutil.copy(home.with_name("moved") / "local.db", home / "local.db")
    books.change(home, lambda db: store_setting(db, "cluster", "others"))
    return home.with_name("moved")


@pytest.mark.parametrize(
    "change", [moved, moved_across_file_systems, restored, linked, replaced_by_others]
)
async def test_books_stay_the_same(tmp_path: Path, change: Callable[[Path], Path]) -> None:
    first = await identity_of(tmp_path / "home")
    home = change(tmp_path / "home")
    assert [await identity_of(home) for _ in range(2)] == [first, first]


@pytest.mark.parametrize("is_first", [True, False], ids=["moved first", "copy first"])
async def test_of_moved_books_and_a_copy_in_their_place_one_is_the_original(
    tmp_path: Path, *, is_first: bool
) -> None:
    """The moved file is the original's, unless the copy was opened before it."""
    first = await identity_of(tmp_path / "home")
    original, copy = moved(tmp_path / "home"), tmp_path / "home"
    copied(original, copy)
    homes = [original, copy] if is_first else [copy, original]
    for _ in range(2):
        assert [await identity_of(home) == first for home in homes] == [True, False]


async def test_books_stay_the_same_under_another_device_number(tmp_path: Path) -> None:
    """As after a reboot, which gives devices other numbers."""
    first = await identity_of(tmp_path / "home")
    stored(tmp_path / "home", device=7)
    assert await identity_of(tmp_path / "home") == first


async def test_a_file_of_another_machine_is_a_copy_unless_both_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original may run where nothing of it can be seen."""
    machine = tmp_path / "machine-id"
    machine.write_text("here")
    monkeypatch.setattr(identity, "MACHINE", machine)
    first = await identity_of(tmp_path / "home")
    machine.write_text("there")
    assert await identity_of(tmp_path / "home") == first, "the same file, on shared storage"
    machine.write_text("here")
    copied(
        moved(tmp_path / "home"), tmp_path / "home"
    )  # both are there: the file has another inode
    assert await identity_of(tmp_path / "home") != first


async def test_books_that_may_be_a_copy_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await identity_of(tmp_path / "home")
    copied(tmp_path / "home", tmp_path / "copy")

    def unreadable(_path: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(identity, "identity_at", unreadable)
    with pytest.raises(BackendUnavailable, match=r"home/local.db: .*Permission denied"):
        await identity_of(tmp_path / "copy")


def garbage(file: Path) -> None:
    file.write_text("no database" * 100)


def empty_file(file: Path) -> None:
    file.touch()


def folder(file: Path) -> None:
    file.mkdir()


@pytest.mark.parametrize("put", [garbage, empty_file, folder, books.make_other_database])
async def test_something_else_where_the_books_were_makes_them_no_copy(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    first = await identity_of(tmp_path / "home")
    home = moved_across_file_systems(tmp_path / "home")
    (tmp_path / "home").mkdir()
    put(tmp_path / "home" / "local.db")
    assert await identity_of(home) == first


async def test_books_keep_their_jobs_while_what_may_be_their_original_is_damaged(
    tmp_path: Path,
) -> None:
    first = await identity_of(tmp_path / "home")
    copied(tmp_path / "home", tmp_path / "copy")
    with (tmp_path / "home" / "local.db").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 100_000)
    with pytest.raises(BackendUnavailable, match=r"may be the original .*remove it if it is not"):
        await identity_of(tmp_path / "copy")
    (tmp_path / "home" / "local.db").unlink()
    assert await identity_of(tmp_path / "copy") == first


def stored(home: Path, **changes: object) -> None:
    """Change what the books say of their file."""

    def change(db: Db) -> None:
        store_setting(db, "file", json.dumps({**json.loads(setting(db, "file") or ""), **changes}))

    books.change(home, change)
