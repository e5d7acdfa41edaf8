"""examples/single: a script without any Everstep in it, and the document that runs it as it is.

More seeds, which are long, look for a moment of death that the first one misses.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.dialects.registry import validate
from everstep.documents.text import read_text
from tests.support.child import Child
from tests.support.patience import HUNG_S

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "single"
SCRIPT = FOLDER / "train.py"
STEPS = 60

started: list[Child] = []


@pytest.fixture(autouse=True)
def leave_nothing_running() -> Iterator[None]:
    yield
    while started:
        started.pop().kill()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )


def steps_of(output: str) -> list[int]:
    """Read by the pattern of the document."""
    pattern = read_text((FOLDER / "job.yaml").read_text())["spec"]["progress"]["log_pattern"]
    return [int(match["step"]) for match in re.finditer(pattern, output, re.MULTILINE)]


def saved(folder: Path) -> dict[str, object]:
    return {path.name: json.loads(path.read_text()) for path in folder.glob("out/ckpt-*.json")}


def test_it_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    first = run(tmp_path, "--steps", "14", "--step-s", "0", "--save-every", "4")
    assert (first.returncode, first.stderr) == (0, "")
    assert steps_of(first.stdout) == [*range(1, 15)]
    assert set(saved(tmp_path)) == {f"ckpt-{step}.json" for step in (4, 8, 12, 14)}
    second = run(tmp_path, "--steps", "20", "--step-s", "0", "--save-every", "4")
    assert steps_of(second.stdout) == [*range(15, 21)]


def test_it_finds_the_line(tmp_path: Path) -> None:
    ended = run(tmp_path, "--steps", "1000", "--step-s", "0", "--save-every", "1000")
    assert ended.stdout.splitlines()[-1] == "y = 3.0000 x + -1.0000"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_killed_at_any_step_it_ends_the_same(seed: int, tmp_path: Path) -> None:
    step = random.Random(seed).randrange(1, STEPS - 5)
    arguments = ["--steps", str(STEPS), "--step-s", "0.003", "--save-every", "7"]
    killed = Child(
        [sys.executable, str(SCRIPT), *arguments],
        name="single",
        log=tmp_path / "single.log",
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
    )
    started.append(killed)

    async def has_made_it() -> bool:
        return step in steps_of(killed.output())

    await killed.until(has_made_it, within_s=HUNG_S)
    killed.kill()
    assert run(tmp_path, *arguments).returncode == 0
    (tmp_path / "plain").mkdir()
    run(tmp_path / "plain", *arguments)
    assert saved(tmp_path) == saved(tmp_path / "plain")


@pytest.mark.parametrize(
    "arguments", [["--steps", "many"], ["--steps", "-1"], ["--step-s", "nan"], ["--save-every=0"]]
)
def test_wrong_arguments_end_without_a_traceback(arguments: list[str], tmp_path: Path) -> None:
    ended = run(tmp_path, *arguments)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("train.py: error: ")
    assert "Traceback" not in ended.stderr


def test_the_document_is_valid() -> None:
    verdict = validate((FOLDER / "job.yaml").read_text())
    assert verdict.ok, verdict.errors
    assert not verdict.notes


def test_the_documents_command_works(tmp_path: Path) -> None:
    interpreter, script, *arguments = read_text((FOLDER / "job.yaml").read_text())["spec"][
        "command"
    ]
    assert (interpreter, script) == ("python3", SCRIPT.name)
    ended = run(tmp_path, *arguments, "--step-s", "0")
    assert steps_of(ended.stdout)[-1] == 100


def test_the_commands_for_doing_it_by_hand_work(tmp_path: Path) -> None:
    page = (FOLDER / "README.md").read_text()
    by_hand = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    shutil.copy(SCRIPT, tmp_path)
    ended = subprocess.run(
        ["/bin/sh", "-ec", by_hand],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert steps_of(ended.stdout) == [*range(1, 41)]
