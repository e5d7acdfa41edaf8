"""The train library as one file serves an image in which nothing of Everstep is installed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from everstep.train.build import build
from tests.agent.memory.test_snapshots import TRAIN, held_steps
from tests.agent.pod import PYTHON, Pod, signal_to


def script(last: int) -> str:
    """That of the other tests, with the file in the place of the package."""
    changed = TRAIN.replace("LAST", str(last)).replace("everstep.train", "everstep_train")
    return f"import sys\nsys.path.insert(0, '.')\n{changed}"


def runs(pod: Pod, last: int, *, generation: int = 1, step: int | None = None) -> list[int]:
    resumed = {} if step is None else {"EVERSTEP_SNAPSHOT_STEP": str(step)}
    env = {"WORLD_SIZE": "1", **resumed}
    # Neither the package of the checkout nor an installed one is found: without site, and isolated.
    command = [PYTHON, "-I", "-S", "-c", script(last)]
    return pod.runs(command, generation=generation, env=env, snapshot_step=step)


def test_a_rank_keeps_and_finds_its_state_with_the_file_alone(pod: Pod) -> None:
    build(pod.home / "everstep_train.py")
    (pid,) = runs(pod, 5)
    pod.file("made-1-0")
    signal_to(pid, signal.SIGKILL)
    state = pod.until(lambda s: any(fact["kind"] == "process.exit" for fact in s["facts"]))
    assert held_steps(state) == [(0, 4), (0, 5)]
    runs(pod, 6, generation=2, step=5)
    assert pod.file("began-2-0") == "5 5"


def test_it_does_nothing_where_there_is_no_agent(tmp_path: Path) -> None:
    build(tmp_path / "everstep_train.py")
    code = (
        "import sys; sys.path.insert(0, '.'); from everstep_train import run\n"
        "print(run.is_managed, run.restore(), run.snapshot(1, {}), run.step(1))"
    )
    done = subprocess.run(
        [PYTHON, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False None False None\n"


def test_an_installed_everstep_comes_first(tmp_path: Path) -> None:
    build(tmp_path / "everstep_train.py")
    code = "import everstep_train, everstep.train; print(everstep.train.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("everstep/train/__init__.py")


def test_same_sources_make_the_same_file(tmp_path: Path) -> None:
    assert build(tmp_path / "a.py").read_bytes() == build(tmp_path / "b.py").read_bytes()
