"""The table of kills shows what the tests do, and no level is without kills at what it always does."""

from __future__ import annotations

from everstep.core.levels import STEPS, Level, Step
from tests.workflows.ended.kill_table import ALL, Write, counts, table, text

ALWAYS = (Step.STOP, Step.RESUME, Step.START)


def test_each_level_is_killed_at_each_write_that_it_always_makes() -> None:
    killed_at = counts()["fake"]
    levels = [level for level, steps in STEPS.items() if steps]
    missing = [
        (level, step) for level in levels for step in ALWAYS if not killed_at[Write(level, step)]
    ]
    assert missing == []


def test_the_table_has_a_line_for_each_write_of_each_level() -> None:
    lines = table().splitlines()
    assert len(lines) == 1 + len(ALL)
    assert lines[0].split() == ["level", "step", "fake", "local", "kubernetes"]


def test_what_no_test_kills_at_is_named() -> None:
    *_, summary = text().splitlines()
    uncovered = [write for write in ALL if not any(column[write] for column in counts().values())]
    assert summary.startswith(f"{len(ALL) - len(uncovered)} of {len(ALL)} lines have a kill")
    assert all(f"{write.level} {write.step}" in summary for write in uncovered)


def test_kills_are_counted_where_the_tests_have_them() -> None:
    """A kill after the healing of a device, one at the placing of a lost node's pod, one on Kubernetes."""
    columns = counts()
    assert columns["fake"][Write(Level.IN_PLACE, Step.HEAL)] > 0
    assert columns["local"][Write(Level.POD, Step.PLACE)] > 0
    assert columns["kubernetes"][Write(Level.POD, Step.ISOLATE)] == 1
