"""The times beside a log: which line was written when."""

from __future__ import annotations

import itertools
from pathlib import Path

from everstep.agent.observing.log_times import Times, TimeStamps, times_beside


def test_lines_have_the_times_they_were_written_at(tmp_path: Path) -> None:
    moments = iter([10.0, 10.05, 11.0, 5.0])
    stamps = TimeStamps(tmp_path / "a.log", clock=lambda: next(moments))
    for offset in (0, 100, 200, 300):
        stamps.add(offset)
    times = Times(tmp_path / "a.log")
    line_times = [times.at(offset) for offset in (0, 99, 150, 200, 300, 10**9)]
    assert line_times == [10.0, 10.0, 10.0, 11.0, 5.0, 5.0], (
        "a mark each 0.1 s, and where a clock was set"
    )
    assert Times(tmp_path / "b.log").at(0) is None


def test_marks_do_not_outgrow_a_log_of_which_little_is_written_at_a_time(tmp_path: Path) -> None:
    """A dot for each step, ten times a second."""
    moments = (n / 8 for n in itertools.count())
    stamps = TimeStamps(tmp_path / "a.log", clock=lambda: next(moments))
    for offset in range(800):
        stamps.add(offset)
    times = Times(tmp_path / "a.log")
    assert times_beside(tmp_path / "a.log").stat().st_size == 16 * 100, "one a second"
    assert [times.at(offset) for offset in (0, 7, 8, 799)] == [0.0, 0.0, 1.0, 99.0]


def test_what_a_log_left_out_has_no_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    stamps = TimeStamps(path, clock=iter(range(1000)).__next__)
    for offset in range(0, 1000, 10):
        stamps.add(offset)
    before = Times(path)
    stamps.leave_out(100, 905)
    after = Times(path)
    assert [after.at(n) for n in (0, 95, 905, 999)] == [before.at(n) for n in (0, 95, 905, 999)]
    assert times_beside(path).stat().st_size == 16 * (10 + 10)
    (tmp_path / "a.times").write_bytes(b"half a mark")
    assert Times(path).at(5) is None
