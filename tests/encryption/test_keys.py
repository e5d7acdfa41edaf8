"""The folder of keys: what is wrong with it is one sentence without a key, and a change needs no restart."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.core.errors import KeysUnusable
from everstep.encryption.keys import LOOK_AGAIN_S, LOOK_FOR_S, KeyFolder, read
from tests.support.keys import choose, key_folder, key_text, write_key


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_only_key_writes(tmp_path: Path) -> None:
    write_key(tmp_path / "keys", "a")
    assert read(tmp_path / "keys").current == "a"


def test_a_mounted_secret_is_such_a_folder(tmp_path: Path) -> None:
    """Its entries are links to a folder that the kubelet replaces as a whole."""
    folder = key_folder(tmp_path / "..data", "a", "b")
    for name in ("a", "b", "current"):
        (tmp_path / name).symlink_to(folder / name)
    tmp_path.chmod(0o1777)
    keys = read(tmp_path)
    assert (sorted(keys.by_name), keys.current) == (["a", "b"], "a")


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


SECRET = key_text("of nobody else")[:-4]
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda folder: folder.rename(folder.with_name("gone")), "No such file"),
    "no key": (empty, "holds no key"),
    "too short": (lambda folder: write_key(folder, "a", SECRET), "32 bytes in base64"),
    "not base64": (lambda folder: write_key(folder, "a", SECRET + "!!!!"), "32 bytes in base64"),
    "no text": (lambda folder: (folder / "a").write_bytes(b"\xff\x00"), "32 bytes in base64"),
    "two keys": (lambda folder: (folder / "current").unlink(), "write the name of the one that writes"),
    "none chosen": (lambda folder: choose(folder, SECRET), "holds no name of a key"),
    "a folder": (lambda folder: (folder / "c").mkdir(), "holds keys alone"),
    "a strange name": (lambda folder: write_key(folder, "a b"), "name a key with letters"),
    "open": (lambda folder: (folder / "b").chmod(0o644), "may read"),
    "open to all": (lambda folder: folder.chmod(0o777), "may change"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_one_sentence_without_a_key(wrong: str, tmp_path: Path) -> None:
    folder = key_folder(tmp_path / "keys", "a", "b")
    spoil, sentence = WRONG[wrong]
    spoil(folder)
    with pytest.raises(KeysUnusable, match=sentence) as raised:
        read(folder)
    text = str(raised.value)
    assert (text.isprintable(), SECRET in text, "EVERSTEP_PAYLOAD_KEYS" in text) == (
        True,
        False,
        True,
    )


def test_a_key_that_is_chosen_later_writes_without_a_restart(tmp_path: Path) -> None:
    folder, clock = key_folder(tmp_path / "keys", "a"), Clock()
    keys = KeyFolder(folder, clock=clock)
    write_key(folder, "b")
    clock.now += LOOK_FOR_S
    assert (keys.current()[0], keys.key("b") is not None) == ("a", True)
    choose(folder, "b")
    assert keys.current()[0] == "a"
    clock.now += LOOK_AGAIN_S
    assert keys.current()[0] == "b"


def test_a_key_that_is_taken_away_opens_nothing_more(tmp_path: Path) -> None:
    folder, clock = key_folder(tmp_path / "keys", "a", "b"), Clock()
    keys = KeyFolder(folder, clock=clock)
    (folder / "b").unlink()
    clock.now += LOOK_AGAIN_S
    assert (keys.key("b"), keys.key("a") is not None) == (None, True)


def test_a_folder_that_is_lost_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, clock = key_folder(tmp_path / "keys", "a"), Clock()
    keys = KeyFolder(folder, clock=clock)
    folder.rename(tmp_path / "gone")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.now += LOOK_AGAIN_S
            assert keys.current()[0] == "a"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith(f"{os.strerror(2)}; the keys that were read before are used")
