"""`everstep simulate`: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.standin import document

SHORT = ("--nodes", "20", "--days", "3", "--profile", "bad")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document()))
    return str(path)


def test_a_page_says_what_trains_what_was_lost_and_the_levels(cli: Cli, file: str) -> None:
    ended = cli("simulate", file, *SHORT)
    assert ended.code == 0
    assert "on 20 nodes" in ended.out.splitlines()[0]
    for what in ("TRAINS", "BELOW ORACLE", "ENDED WRONGLY", "SOUND NODE-HOURS ISOLATED"):
        assert what in ended.out
    assert re.search(r"document: .*\n +lost to steps done again [\d.]+%", ended.out)
    assert re.search(r"restarts by level: \w+ \d+", ended.out)


def test_the_same_seed_has_the_same_numbers_and_another_one_others(cli: Cli, file: str) -> None:
    first, again, other = (
        cli("simulate", file, *SHORT, "--seed", seed, "--json").json["policies"]
        for seed in ("1", "1", "2")
    )
    assert first == again
    assert first != other


def test_every_policy_that_is_named_has_a_row_with_its_source(cli: Cli, file: str) -> None:
    names = "document,modelarts,cerebras,in-place,oracle"
    value = cli("simulate", file, *SHORT, "--policies", names, "--json").json
    rows = {row["name"]: row for row in value["policies"]}
    assert list(rows) == names.split(",")
    assert all(row["source"] for row in rows.values())
    assert rows["oracle"]["below_oracle"] == 0
    assert rows["oracle"]["ended_wrongly"] == 0
    assert rows["oracle"]["ettr"] >= max(row["ettr"] for row in rows.values()) - 0.001


def test_what_if_has_a_row_for_each_combination(cli: Cli, file: str) -> None:
    varied = ("--checkpoint-every", "5m,1h", "--spares", "0,4", "--policies", "document")
    rows = cli("simulate", file, *SHORT, *varied, "--json").json["what_if"]
    shares = {(row["checkpoint_s"], row["spares"]): row["ettr"] for row in rows}
    assert list(shares) == [(300, 0), (300, 4), (3600, 0), (3600, 4)]
    assert shares[300, 4] > shares[3600, 4]
    assert shares[300, 4] > shares[300, 0]
    page = cli("simulate", file, *SHORT, *varied).out
    assert re.search(r"5 min +4 +none +\d", page)


def test_what_the_train_library_is_worth_has_a_row_for_each_use_of_it(cli: Cli, file: str) -> None:
    uses = ("--library", "none,snapshots,levels", "--policies", "document")
    value = cli("simulate", file, *SHORT, *uses, "--json").json
    rows = {row["library"]: row for row in value["what_if"]}
    assert list(rows) == ["none", "snapshots", "levels"]
    again = [row["lost"]["lost_steps"] for row in rows.values()]
    assert again[0] > 2 * again[1] > 0
    assert [row["lost"]["snapshots"] > 0 for row in rows.values()] == [False, True, True]
    assert not {"process", "process_online", "operator_online"} & rows["snapshots"]["levels"].keys()
    assert rows["levels"]["levels"]["process"] > 0
    assert value["numbers"]["library"] == "none"


def test_a_report_is_one_page_with_curves_and_no_script(
    cli: Cli, file: str, tmp_path: Path
) -> None:
    output = tmp_path / "report.html"
    ended = cli("simulate", file, "--nodes", "8", "--days", "1", "-o", str(output))
    assert ended.code == 0
    assert ended.out.startswith(f"{output}: document trains")
    page = output.read_text()
    assert page.count("<svg") == 3
    assert "Over spare nodes" in page
    assert "Lost time by cause" in page
    assert "<script" not in page


def test_outages_of_a_file_happen(cli: Cli, file: str, tmp_path: Path) -> None:
    trace = tmp_path / "outages.csv"
    lines = [f"{n},{n / 10 + 0.1},{n / 10 + 0.2},Hardware,GPU,GPU DBE" for n in range(20)]
    trace.write_text("\n".join(["node,start_day,end_day,level,class,description", *lines]))
    value = cli("simulate", file, *SHORT, "--trace", str(trace), "--spares", "2", "--json").json
    assert value["trace"] == "outages.csv"
    assert value["mishaps"]["node_fatal_hw"] == 20
    assert "slow_node" not in value["mishaps"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--profile", "perfect"], "--profile perfect: try one of mature, good"),
        (["--policies", "mine"], "--policies mine: try some of document"),
        (["--spares", "some"], "--spares some: give whole numbers"),
        (["--checkpoint-every", "0s"], "--checkpoint-every 0s: give more than 0 seconds"),
        (["--snapshot-every", "0s"], "--snapshot-every 0s: give more than 0 seconds"),
        (["--write-s", "inf"], "--write-s inf: give"),
        (["--step-s", "1e9"], "--step-s 1e9: give"),
        (["--library", "all"], "--library all: try some of none, snapshots, levels"),
        (["--snapshot-every", "often"], "--snapshot-every often: give a number and a unit"),
        (["--checkpoint-every", "5"], "--checkpoint-every 5: give a number and a unit"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv: No such file or directory"),
        (["-o", "report.pdf"], "report.pdf: the name has to end in .html or .json"),
        (["--nodes", "0"], "--nodes"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    cli: Cli, file: str, words: list[str], sentence: str
) -> None:
    ended = cli("simulate", file, *words)
    assert ended.code == 2
    assert ended.sentence.startswith(sentence) or sentence in ended.sentence


def test_a_document_that_is_none_is_refused_in_one_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("kind: nothing\n")
    ended = cli("simulate", str(path))
    assert ended.code == 2
    assert ended.sentence
