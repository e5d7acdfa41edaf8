"""A log of any size: bounded on the disk, readable by the offsets of what was written."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.observing import logs
from everstep.agent.observing.log_times import Times, times_beside
from everstep.agent.observing.logs import LogFile, read
from everstep.agent.storage import files

HEAD_BYTES, KEPT_BYTES, MOST = 100, 200, 400


def filled(path: Path, size: int, piece: int) -> bytes:
    """A small log after so many bytes in such pieces; what was written."""
    whole = b"".join(b"%09d\n" % number for number in range(size // 10))
    log = LogFile(path, head=HEAD_BYTES, tail_least=KEPT_BYTES, most=MOST)
    for start in range(0, len(whole), piece):
        log.write(whole[start : start + piece])
    assert log.written == len(whole)
    log.close()
    return whole


@pytest.mark.parametrize("size", [0, 50, 100, 500, 510, 5_000, 100_000])
@pytest.mark.parametrize("piece", [10, 90, 250])
def test_beginning_and_end_stay_readable_by_their_offsets(
    tmp_path: Path, size: int, piece: int
) -> None:
    path = tmp_path / "log"
    whole = filled(path, size, piece)
    assert path.stat().st_size <= HEAD_BYTES + MOST + 100
    assert read(path, 0, 60, head=HEAD_BYTES)[0] == whole[:60]
    chunk, at, behind = read(path, -30, 60, head=HEAD_BYTES)
    assert chunk == whole[-30:]
    assert (at, behind) == (max(0, size - 30), size)


def test_reading_on_and_on_meets_everything_that_is_left_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = filled(path, 5_000, 70)
    offset, pieces = 0, []
    while True:
        chunk, at, behind = read(path, offset, 64, head=HEAD_BYTES)
        if not chunk:
            break
        assert chunk == whole[at:behind]
        pieces.append(chunk)
        offset = behind
    assert offset == len(whole)
    assert len(b"".join(pieces)) >= HEAD_BYTES + KEPT_BYTES


@pytest.mark.parametrize(("first", "times"), [(0, 3), *((first, 1) for first in range(8))])
def test_a_move_that_fails_leaves_every_byte_where_its_offset_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, times: int
) -> None:
    """The disk is full for a moment, and takes no overwriting either, as one that copies on write.

    `first`: how many changes of moves worked before that; a move makes four.
    """
    path, whole = tmp_path / "log", b"".join(b"%09d\n" % number for number in range(200))
    pwrite, ftruncate, changes = os.pwrite, os.ftruncate, itertools.count()

    def fail() -> None:
        if first <= next(changes) < first + times:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(handle: int, data: bytes, offset: int) -> int:
        if HEAD_BYTES <= offset < path.stat().st_size:
            fail()
        return pwrite(handle, data, offset)

    def cut(handle: int, size: int) -> None:
        fail()
        ftruncate(handle, size)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "ftruncate", cut)
    log = LogFile(path, head=HEAD_BYTES, tail_least=KEPT_BYTES, most=MOST)
    for start in range(0, len(whole), 10):
        log.write(whole[start : start + 10])
        chunk, at, behind = read(path, -10, 60, head=HEAD_BYTES)
        assert behind == log.written
        assert chunk == whole[at:behind]
    assert log.problem
    assert next(changes) > first + times
    log.close()


@pytest.mark.parametrize("piece", [10, 90, 250])
def test_every_byte_is_readable_at_any_moment_of_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Also for good, if the agent is killed at that moment."""
    path, whole = tmp_path / "log", b"".join(b"%09d\n" % number for number in range(500))
    moments = 0

    def look() -> None:
        nonlocal moments
        moments += 1
        offset = 0
        while True:
            chunk, at, offset = read(path, offset, 64, head=HEAD_BYTES)
            if not chunk:
                break
            assert chunk == whole[at:offset]
        assert offset % 10 == 0, "the end of what was written"
        assert offset <= log.written

    def watched(change: Callable[..., int | None]) -> Callable[..., int | None]:
        def do(*arguments: Any) -> int | None:
            result = change(*arguments)
            look()
            return result

        return do

    log = LogFile(path, head=HEAD_BYTES, tail_least=KEPT_BYTES, most=MOST)
    for name in ("pwrite", "ftruncate"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    for start in range(0, len(whole), piece):
        log.write(whole[start : start + piece])
    assert moments > len(whole) // piece, "there were moves"
    log.close()


def test_log_that_cannot_be_written_keeps_its_end_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = LogFile(tmp_path / "file" / "log")
    log.write(b"one\ntwo\n")
    assert log.problem
    assert log.recent_lines() == ["one", "two"]


def test_a_log_takes_as_much_room_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogFile, "tail_max", 2 * logs.MB)
    log = LogFile(tmp_path / "log")
    for _ in range(12):
        log.write(b"x" * logs.MB)
    tail_bytes = (tmp_path / "log").stat().st_size - logs.HEAD
    assert logs.MB <= tail_bytes <= 2.1 * logs.MB


@pytest.mark.parametrize("put", [Path.mkdir, lambda path: path.symlink_to("/dev/zero"), os.mkfifo])
def test_nothing_but_a_plain_file_is_a_log(tmp_path: Path, put: Callable[[Path], object]) -> None:
    put(tmp_path / "log")
    log = LogFile(tmp_path / "log")
    log.write(b"one\n")
    assert (log.problem, log.recent_lines()) == (f"{tmp_path / 'log'} is no plain file", ["one"])
    with pytest.raises(files.NotPlain):
        read(tmp_path / "log", 0, 1)


def test_no_link_that_a_rank_puts_beside_its_log_is_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("untouched")
    times_beside(tmp_path / "log").symlink_to(other)
    filled(tmp_path / "log", 100, 10)
    assert other.read_text() == "untouched"


def test_tail_is_short() -> None:
    log = LogFile(Path("/dev/null"))
    log.write(b"line\n" * 100_000)
    assert len(log.recent_lines()) == logs.RECENT_LINES
    log.close()


def test_a_log_marks_itself(tmp_path: Path) -> None:
    began = time.time()
    filled(tmp_path / "a.log", 5_000, 90)
    line_time = Times(tmp_path / "a.log").at(4_990)
    assert line_time is not None
    assert began <= line_time <= time.time()
