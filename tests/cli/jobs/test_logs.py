"""`everstep logs`: lines of all ranks in the order of time, from folders as agents leave them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from everstep.agent.observing.logs import LogFile
from tests.cli.conftest import Cli
from tests.cli.ranks import Ranks
from tests.support.machine import Machine, until_printed
from tests.support.patience import HUNG_S


@pytest.fixture
def ranks(cli: Cli, tmp_path: Path) -> Ranks:
    return Ranks(tmp_path / "home")


@pytest.fixture
def two(ranks: Ranks) -> Ranks:
    for generation in (1, 2):
        for line in ("one", "two"):
            for rank in (1, 0):
                ranks.print(generation, rank, f"{line} of {rank}\n")
    return ranks


def test_lines_of_all_ranks_come_in_the_order_of_time(cli: Cli, two: Ranks) -> None:
    assert cli("logs", "demo").out.splitlines() == [
        "== generation 1",
        *("[rank 1] one of 1", "[rank 0] one of 0", "[rank 1] two of 1", "[rank 0] two of 0"),
        "== generation 2",
        *("[rank 1] one of 1", "[rank 0] one of 0", "[rank 1] two of 1", "[rank 0] two of 0"),
    ]


def test_of_a_line_that_was_written_over_the_last_state_is_shown(cli: Cli, two: Ranks) -> None:
    two.print(2, 1, "50 %\r 60 %\r")
    output = cli("logs", "demo", "--rank", "1", "--generation", "2").out
    assert output == "one of 1\ntwo of 1\n 60 %"
    both = cli("logs", "demo", "--rank", "1", "--rank", "0", "--generation", "2").out
    assert both.splitlines()[-1] == "[rank 1]  60 %"


HOSTILE = (
    "\x1b]0;yours\x07\x1b[31mred\x1b[0m\tand\x9b2J \u202etxet\x1b]8;;http://e.example\x1b\\x\r\n"
)


@pytest.mark.parametrize("more", [(), ("--rank", "0"), ("--timestamps",)])
def test_what_a_rank_printed_steers_no_terminal(
    cli: Cli, two: Ranks, more: tuple[str, ...]
) -> None:
    two.print(2, 0, HOSTILE)
    output = cli("logs", "demo", "--generation", "2", *more).out
    assert output.splitlines()[-1].endswith("red\tand  txetx")
    assert not {c for c in output if not c.isprintable()} - {"\t", "\n"}


def test_raw_is_every_byte_that_one_rank_printed(cli: Cli, two: Ranks) -> None:
    two.print(2, 0, HOSTILE + "half")
    output = cli("logs", "demo", "--generation", "2", "--rank", "0", "--raw").out
    assert output == f"one of 0\ntwo of 0\n{HOSTILE}half"
    both = cli("logs", "demo", "--generation", "2", "--raw").out
    assert "[rank 0] \x1b]0;yours\x07\x1b[31mred" in both


def test_json_escapes_what_a_rank_printed_by_itself(cli: Cli, two: Ranks) -> None:
    two.print(2, 0, HOSTILE)
    output = cli("logs", "demo", "--generation", "2", "--rank", "0", "--json").out
    assert output.isascii()
    assert output.replace("\n", "").isprintable()
    assert json.loads(output.splitlines()[-1])["text"] == HOSTILE.rstrip("\n")


@pytest.mark.parametrize(
    ("tail", "lines"),
    [
        (0, []),
        (1, ["== generation 2", "[rank 0] two of 0"]),
        (3, ["== generation 2", "[rank 0] one of 0", "[rank 1] two of 1", "[rank 0] two of 0"]),
    ],
)
def test_the_newest_lines_of_all_ranks(cli: Cli, two: Ranks, tail: int, lines: list[str]) -> None:
    assert cli("logs", "demo", "--tail", str(tail)).out.splitlines() == lines


def test_the_tail_reaches_back_to_earlier_generations(cli: Cli, two: Ranks) -> None:
    whole = cli("logs", "demo").out.splitlines()
    assert cli("logs", "demo", "--tail", "6").out.splitlines() == [whole[0], *whole[3:]]
    assert cli("logs", "demo", "--tail", "99").out.splitlines() == whole


def test_the_tail_of_long_lines_is_found_too(cli: Cli, ranks: Ranks) -> None:
    for number in range(5):
        ranks.print(1, 0, f"{number}" + "x" * 50_000 + "\n")
    lines = cli("logs", "demo", "--tail", "4", "--generation", "1").out.splitlines()
    assert [line[0] for line in lines] == ["1", "2", "3", "4"]


def test_times_are_those_of_printing(cli: Cli, two: Ranks) -> None:
    line = cli("logs", "demo", "--timestamps", "--generation", "1").out.splitlines()[1]
    assert line == "2027-01-15T08:00:01.000Z [rank 0] one of 0"


def test_programs_get_a_line_of_json_each(cli: Cli, two: Ranks) -> None:
    lines = cli("logs", "demo", "--json", "--rank", "0", "--generation", "2").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"generation": 2, "rank": 0, "at": at, "text": text, "left_out": 0}
        for at, text in (
            ("2027-01-15T08:00:05.000Z", "one of 0"),
            ("2027-01-15T08:00:07.000Z", "two of 0"),
        )
    ]


def test_a_log_without_times_is_shown_too(cli: Cli, two: Ranks, tmp_path: Path) -> None:
    for path in tmp_path.rglob("*.times"):
        path.unlink()
    lines = cli("logs", "demo", "--timestamps", "--generation", "1").out.splitlines()
    assert [line.split()[0] for line in lines] == ["-"] * 4
    assert [line.split("]")[1].strip() for line in lines] == [
        *("one of 0", "two of 0"),
        *("one of 1", "two of 1"),
    ]


def test_what_a_log_left_out_is_said_once_in_words(cli: Cli, ranks: Ranks, tmp_path: Path) -> None:
    ranks.print(1, 0, "")
    log = LogFile(next(tmp_path.rglob("g1-r0.log")))
    for number in range(40):
        log.write((f"{number:07}" * 149_796 + "\n").encode())  # a megabyte
    log.close()
    output = cli("logs", "demo").out
    assert "bytes left out" not in output
    (note,) = [line for line in output.splitlines() if "left out" in line]
    assert note.startswith("... here ")
    assert note.endswith("of a long log the first 8 MB and at least the newest 12 MB are kept")
    assert output.splitlines()[-1].startswith("0000039")


def test_what_nobody_printed_is_said(cli: Cli, two: Ranks) -> None:
    assert "rank 7 of demo left no log" in cli("logs", "demo", "--rank", "7").sentence
    assert "left no log of generation 9" in cli("logs", "demo", "--generation", "9").sentence


def test_who_follows_sees_what_comes_of_every_rank_and_generation(tmp_path: Path) -> None:
    machine = Machine.at(tmp_path / "home")
    ranks = Ranks(machine.home)
    ranks.print(1, 0, "alone\n")
    with machine.running("logs", "demo", "--tail", "1", "-f") as process:
        assert until_printed(process, "alone") == ["== generation 1\n", "alone\n"]
        ranks.print(1, 1, "second\n")
        assert until_printed(process, "second") == ["[rank 1] second\n"]
        ranks.print(1, 0, "half")
        ranks.print(1, 0, " and whole\n")
        assert until_printed(process, "half") == ["[rank 0] half and whole\n"]
        ranks.print(2, 0, "again\n")
        assert until_printed(process, "again") == ["== generation 2\n", "[rank 0] again\n"]
        process.send_signal(signal.SIGINT)
        assert process.wait(HUNG_S) == 130
