"""Ranks of an agent that was started with --inherit: what a container image sets is theirs too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.pod import Pod, until

SHOW = "import os; print(os.environ.get('OF_IMAGE'), os.environ.get('OF_BOTH'), os.getcwd(), flush=True)"


def output(pod: Pod) -> str:
    log = pod.home / "logs" / "g1-r0.log"
    until(lambda: log.exists() and log.read_text().endswith("\n"), what="a line of the rank")
    return log.read_text().strip()


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What an image sets: two variables and a folder to begin in."""
    monkeypatch.setenv("OF_IMAGE", "image")
    monkeypatch.setenv("OF_BOTH", "image")
    workdir = tmp_path / "image"
    (workdir / "src").mkdir(parents=True)
    monkeypatch.chdir(workdir)
    return workdir


@pytest.mark.parametrize(("workdir", "place"), [(".", "."), ("src", "src"), ("/", "/")])
def test_a_rank_has_the_environment_and_the_folder_of_its_agent(
    idle: Pod, image: Path, workdir: str, place: str
) -> None:
    pod = idle.start("--inherit")
    pod.run(SHOW, env={"OF_BOTH": "command"}, workdir=workdir)
    assert output(pod) == f"image command {os.path.realpath(image / place)}"


def test_without_it_a_rank_has_what_its_command_says_and_no_more(idle: Pod, image: Path) -> None:
    pod = idle.start()
    pod.run(SHOW, workdir=str(image))
    assert output(pod) == f"None None {os.path.realpath(image)}"
