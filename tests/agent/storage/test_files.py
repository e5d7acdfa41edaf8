"""Files in folders that others may write to: no link is followed, nothing is waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.agent.storage import files

MOST = 100


def fifo(path: Path) -> None:
    os.mkfifo(path)


def socket_at(path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    os.chdir(path.parent)  # its own path may be too long for an address
    listening.bind(path.name)
    listening.close()


# What somebody put in the place of the file.
IN_ITS_PLACE: dict[str, Callable[[Path], object]] = {
    "fifo": fifo,
    "socket": socket_at,
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to(path.parent / "elsewhere"),
    "endless": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What must not be read or changed through the file."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "elsewhere"
    path.write_text("{}")
    return path


@pytest.mark.parametrize("put", IN_ITS_PLACE.values(), ids=IN_ITS_PLACE)
@pytest.mark.parametrize(
    "flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREAT | os.O_TRUNC]
)
def test_only_a_plain_file_is_opened(
    tmp_path: Path, elsewhere: Path, put: Callable[[Path], object], flags: int
) -> None:
    path = tmp_path / "file"
    put(path)
    with pytest.raises(files.NotPlain, match="file is no plain file"):
        files.handle(path, flags)
    assert elsewhere.read_text() == "{}"


def test_no_link_is_followed_below_the_folder_that_was_named(tmp_path: Path) -> None:
    outside, link_path = tmp_path / "outside", tmp_path / "named"
    (outside / "below").mkdir(parents=True)
    (outside / "below" / "file").write_text("content")
    link_path.symlink_to(outside)
    assert files.read(link_path / "below" / "file", MOST, within=link_path) == b"content"
    (outside / "below").rename(tmp_path / "moved")
    (outside / "below").symlink_to(tmp_path / "moved")
    with pytest.raises(NotADirectoryError):
        files.read(link_path / "below" / "file", MOST, within=link_path)
    with pytest.raises(NotADirectoryError):
        files.replace(link_path / "below" / "file", "other", within=link_path)
    assert (tmp_path / "moved" / "file").read_text() == "content"


def test_no_more_is_read_than_a_file_of_its_kind_may_have(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * MOST)
    assert len(files.read(path, MOST)) == MOST
    path.write_bytes(b"x" * (MOST + 1))
    with pytest.raises(files.TooLarge, match="larger than 100 bytes"):
        files.read(path, MOST)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff"])
def test_what_is_no_json_is_a_value_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"."):
        files.read_json(path)


def test_what_is_written_takes_the_place_of_a_link_and_leaves_alone_what_it_leads_to(
    tmp_path: Path, elsewhere: Path
) -> None:
    path = tmp_path / "file"
    path.symlink_to(elsewhere)
    files.replace(path, "new", is_synced=True)
    assert (path.is_symlink(), path.read_text(), elsewhere.read_text()) == (False, "new", "{}")
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace(tmp_path / "folder", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "folder"]
