"""Files that a run writes where its checkpoints should be, and that are none by their names."""

from __future__ import annotations

from pathlib import Path

from everstep.agent.observing.unrecognised import UnrecognisedFiles
from tests.agent.pod import Pod

PRINTS = "import time\nwhile True:\n  print('.', flush=True)\n  time.sleep(0.1)"
"""Signs of life: an agent reports what it sees along with them."""


def test_only_what_the_run_wrote_and_no_pattern_takes_for_a_checkpoint_counts(
    tmp_path: Path,
) -> None:
    (tmp_path / "weights_of_old.foo").touch()
    files = UnrecognisedFiles(str(tmp_path), None)
    assert files.check(100.0) is None
    for name in ("train.log", "step-3.pt", "latest", ".hidden", "step-4.pt.tmp", "config.yaml"):
        (tmp_path / name).touch()
    assert files.check(101.0) is None
    (tmp_path / "state_10.foo").touch()
    (tmp_path / "state_20").mkdir()
    report = files.check(102.0)
    assert report is not None
    assert (report["since"], report["count"]) == (102.0, 2)
    assert report["example"] in ("state_10.foo", "state_20")
    again = files.check(103.0)
    assert again == report
    assert UnrecognisedFiles(str(tmp_path / "nowhere"), None).check(1.0) is None


def test_a_pattern_makes_other_names_strange(tmp_path: Path) -> None:
    files = UnrecognisedFiles(str(tmp_path), r"state_(?P<step>\d+)")
    assert files.check(1.0) is None
    (tmp_path / "state_10.foo").touch()
    assert files.check(1.0) is None
    (tmp_path / "step_10.pt").touch()
    report = files.check(2.0)
    assert report is not None
    assert report["example"] == "step_10.pt"


def test_an_agent_reports_them_until_a_checkpoint_is_recognised(pod: Pod, tmp_path: Path) -> None:
    folder = tmp_path / "saves"
    folder.mkdir()
    pod.runs(PRINTS, checkpoints_path=str(folder))
    pod.until(lambda state: state["run"] and state["run"]["free_bytes"])  # it was looked once
    (folder / "state_10.foo").touch()
    state = pod.until(lambda state: state["run"] and state["run"]["unrecognised"])
    assert state["run"] is not None
    assert state["run"]["unrecognised"] is not None
    assert state["run"]["unrecognised"]["example"] == "state_10.foo"
    (folder / "step-3.json").write_text("{}")
    pod.until(lambda state: state["run"] and state["run"]["checkpoint"])
    pod.until(lambda state: state["run"] and not state["run"]["unrecognised"])
