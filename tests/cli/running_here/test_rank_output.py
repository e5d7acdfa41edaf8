"""What ranks print, as `run` shows it: from now on, by whole lines, with the rank where there are several."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.cli.jobs.watching import JobScreen
from everstep.cli.running_here.rank_output import with_rank_output
from everstep.client.jobs.glances import Glance
from everstep.core.spec import JobSpec, PhaseSpec
from tests.cli.ranks import Ranks
from tests.cli.standin import status


class States(JobScreen):
    """A screen that prints the job's state alone."""

    def show(self, glance: Glance) -> None:
        self.print(f"-- {glance.status['state']}\n")


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    return Ranks(tmp_path)


async def screen(*, processes: int = 1) -> JobScreen:
    phase = PhaseSpec(name="main", command=("train",), processes_per_node=processes)
    return await with_rank_output(States(), "demo", JobSpec(name="demo", phases=(phase,)))


def glance(state: str = "running") -> Glance:
    return Glance(at=0.0, status=status("demo", state))


async def test_lines_come_before_the_look_that_follows_them(
    ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    text = await screen()
    ranks.print(1, 0, "one\nha")
    await text.update(glance())
    ranks.print(1, 0, "lf\n\x1b[31mred\x1b[0m")
    await text.update(glance())
    await text.update(glance("completed"))
    assert capsys.readouterr().out.splitlines() == [
        *("one", "-- running"),
        *("half", "-- running"),
        *("red", "-- completed"),  # its line had no end
    ]


async def test_of_several_each_line_says_whose_it_is(
    ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    text = await screen(processes=2)
    ranks.print(1, 1, "one\n")
    await text.update(glance())
    ranks.print(1, 0, "two\n")
    await text.update(glance())
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["[rank 1] one", "-- running", "[rank 0] two", "-- running"]


async def test_what_was_printed_before_is_left_out(
    ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks.print(1, 0, "old\n")
    ranks.print(2, 0, "older\n")
    text = await screen()
    ranks.print(2, 0, "new\n")
    await text.update(glance())
    assert capsys.readouterr().out.splitlines() == ["new", "-- running"]


async def test_no_generation_between_two_looks_is_left_out(
    ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    text = await screen()
    ranks.print(1, 0, "first\n")
    await text.update(glance())
    ranks.print(1, 0, "last of it")
    for generation in (2, 3):
        ranks.print(generation, 0, f"of {generation}\n")
    await text.update(glance())
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["first", "-- running", "last of it", "of 2", "of 3", "-- running"]
