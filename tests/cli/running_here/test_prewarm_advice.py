"""The suggestion to import ahead, after a restart whose processes took long to their first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.cli.authoring.documents import JobDocument, job_here
from everstep.cli.authoring.from_command import job_of
from everstep.cli.jobs.watching import Glance, JobScreen
from everstep.cli.running_here.prewarm_advice import (
    ScreenWithPrewarmAdvice,
    advice,
    slow_imports,
)
from tests.cli.standin import record

SCRIPT = "import os, torch.utils.data\nfrom transformers import Trainer\nimport model\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and a module of its own beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "model.py").write_text("def f():\n    import scipy\n    from . import gone\n")
    (tmp_path / "plain.py").write_text("import json, train_utils\n")
    (tmp_path / "broken.py").write_text("import torch (\n")
    return tmp_path


def command(*words: str, **options: Any) -> JobDocument:
    return job_of(words or ("/usr/bin/python3", "train.py"), options)


def restart(
    *, n: int = 1, first_step: float | None = 8.25, result: str = "success"
) -> dict[str, Any]:
    row = record(n, result=result)
    return {**row, "stages_s": {**row["stages_s"], "first_step": first_step}}


def test_after_a_restart_of_imports_the_line_for_them_is_suggested(folder: Path) -> None:
    assert advice(command(), restart()) == (
        "restart 1 took 8.2 s from the start of its processes to their first step, and train.py imports "
        "scipy, torch, transformers: `--prewarm scipy --prewarm torch --prewarm transformers` (in a "
        "document `prewarm: [scipy, torch, transformers]` in `spec`) has later restarts begin with that "
        "imported"
    )


def test_of_a_document_the_line_is_its_key(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "apiVersion: everstep/v1\nkind: TrainingJob\nmetadata: {name: demo}\n"
        "spec: {command: [python3, -m, train]}\n"
    )
    line = advice(job_here("job.yaml"), restart())
    assert line is not None
    assert ": `prewarm: [scipy, torch, transformers]` in `spec` has later" in line


@pytest.mark.parametrize(
    ("job", "row"),
    [
        (("python3", "train.py"), {"first_step": 2.9}),
        (("python3", "train.py"), {"first_step": None}),
        (("python3", "train.py"), {"result": "failed"}),
        (("python3", "plain.py"), {}),
        (("python3", "gone.py"), {}),
        (("python3", "broken.py"), {}),
        (("python3", "-c", "import torch"), {}),
        (("python3", "-m"), {}),
        (("sh", "train.py"), {}),
    ],
)
def test_where_it_would_not_help_nothing_is_suggested(
    folder: Path, job: tuple[str, ...], row: dict[str, Any]
) -> None:
    assert advice(command(f"/bin/{job[0]}", *job[1:]), restart(**row)) is None


@pytest.fixture(autouse=True)
def any_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.cli.authoring.from_command.shutil.which", lambda word: word)


def test_a_job_that_imports_ahead_needs_no_advice(folder: Path) -> None:
    assert advice(command(prewarm=["torch"]), restart()) is None


def test_scripts_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b, jax\n")
    (tmp_path / "b.py").write_text("import a\n")
    assert slow_imports(tmp_path / "a.py") == {"jax"}


class Printed(JobScreen):
    """A screen that notes what is printed beside the job."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def show(self, glance: Glance) -> None:
        """The job itself is of no interest here."""

    def print(self, text: str) -> None:
        self.texts.append(text)


async def test_it_is_suggested_once(folder: Path) -> None:
    printed = Printed()
    screen = ScreenWithPrewarmAdvice(printed, command())
    looks = (
        (restart(first_step=None),),
        (restart(),),
        (restart(),),
        (restart(), restart(n=2)),
    )
    for at, restarts in enumerate(looks):
        await screen.update(Glance(at=float(at), status={}, restarts=restarts))
    (text,) = printed.texts
    assert text.startswith("note   restart 1 took 8.2 s")
    assert text.endswith("\n")


async def test_a_restart_that_needs_no_advice_is_judged_once(folder: Path) -> None:
    printed = Printed()
    screen = ScreenWithPrewarmAdvice(printed, command())
    await screen.update(Glance(at=0.0, status={}, restarts=(restart(first_step=0.5),)))
    await screen.update(Glance(at=1.0, status={}, restarts=(replace_step(restart()),)))
    assert printed.texts == []


def replace_step(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "stages_s": {**row["stages_s"], "first_step": 9.0}}
