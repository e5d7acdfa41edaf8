"""What earlier runs left in a pod's folder is bounded, and nothing of the running one is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.agent.agent import EVIDENCE
from everstep.agent.storage import earlier_runs
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, until

KB = 1024


def write(home: Path, generation: int, *, ranks: int = 2, size: int = KB) -> None:
    for rank in range(ranks):
        for suffix, content in (("log", b"x" * size), ("times", b"")):
            (home / wire.LOGS / f"g{generation}-r{rank}.{suffix}").write_bytes(content)
    (home / EVIDENCE / f"g{generation}").mkdir()
    (home / EVIDENCE / f"g{generation}" / "r0.stacks").write_bytes(b"x" * KB)


def generations(home: Path) -> dict[str, set[int]]:
    return {
        name: {int(path.name[1:].partition("-")[0]) for path in (home / name).glob("g*")}
        for name in (wire.LOGS, EVIDENCE)
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in (wire.LOGS, EVIDENCE):
        (tmp_path / name).mkdir()
    return tmp_path


def prune(home: Path, generation: int, *in_use: str) -> None:
    earlier_runs.prune((home / wire.LOGS, home / EVIDENCE), generation, in_use=in_use)


def test_the_newest_runs_stay_by_number(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_runs, "RUNS_MOST", 3)
    for generation in range(1, 13):
        write(home, generation)
    prune(home, 12)
    assert generations(home) == {wire.LOGS: {9, 10, 11, 12}, EVIDENCE: {9, 10, 11, 12}}


def test_the_newest_runs_stay_by_size(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_runs, "BYTES_MOST", 16 * KB)
    for generation in range(1, 13):
        write(home, generation)  # 3 KB, and the folder of the evidence
    prune(home, 12)
    left = generations(home)
    assert left[wire.LOGS] == left[EVIDENCE] <= {8, 9, 10, 11, 12}
    assert left[wire.LOGS] >= {11, 12}


def test_the_newest_of_the_earlier_runs_stays_whatever_it_takes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier_runs, "BYTES_MOST", 1)
    for generation in (3, 4, 7):
        write(home, generation)
    prune(home, 7)
    assert generations(home)[wire.LOGS] == {4, 7}


def test_the_log_of_a_rank_that_lives_on_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_runs, "RUNS_MOST", 1)
    for generation in (1, 2, 3, 4):
        write(home, generation)
    prune(home, 4, "g1-r0")
    names = {path.name for path in (home / wire.LOGS).glob("g1-*")}
    assert names == {"g1-r0.log", "g1-r0.times"}


def test_what_is_no_log_of_a_run_and_what_a_link_leads_to_stays(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier_runs, "RUNS_MOST", 0)
    strange = home / wire.LOGS / "g1-r0.log.txt"
    strange.touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "g1").mkdir()
    (home / EVIDENCE).rmdir()
    (home / EVIDENCE).symlink_to(elsewhere)
    prune(home, 9)
    assert strange.exists()
    assert (elsewhere / "g1").exists()


def test_what_a_link_leads_to_is_not_counted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links of a rank may lead to a large folder, or in circles."""
    monkeypatch.setattr(earlier_runs, "BYTES_MOST", 64 * KB)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "large").write_bytes(b"x" * 100 * KB)
    for generation in (3, 4, 7):
        write(home, generation)
    (home / EVIDENCE / "g3" / "link").symlink_to(elsewhere)
    prune(home, 7)
    assert generations(home)[wire.LOGS] == {3, 4, 7}


def test_an_agent_prunes_when_a_run_begins(pod: Pod) -> None:
    pod.runs(FOREVER, generation=1)
    pod.stopped(2)
    (pod.home / EVIDENCE).mkdir(exist_ok=True)
    write(pod.home, 2)
    with (pod.home / wire.LOGS / "g1-r0.log").open("ab") as log:
        log.truncate(earlier_runs.BYTES_MOST + 1)
    pod.runs(FOREVER, generation=3)
    until(lambda: generations(pod.home)[wire.LOGS] == {2, 3}, what="the end of the oldest log")
