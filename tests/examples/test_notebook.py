"""The notebook, cell after cell, as it is: a job that is run, restarted and watched to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine import EXAMPLES, Machine
from tests.support.patience import HUNG_S

PAGE = EXAMPLES / "notebook" / "everstep.ipynb"
STEPS = '"--steps", "300"'
SHOWS = """
import sys, types

def display(value):
    print(value._repr_html_())

shell = types.ModuleType("IPython.display")
shell.clear_output = lambda wait: None
sys.modules["IPython.display"] = shell
"""
"""What the notebook has of IPython."""


def cells() -> list[str]:
    return [
        "".join(cell["source"])
        for cell in json.loads(PAGE.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.long
def test_every_cell_does_what_the_notebook_says(tmp_path: Path) -> None:
    code = "\n".join(cells())
    assert STEPS in code
    script = tmp_path / "cells.py"
    script.write_text(SHOWS + code.replace(STEPS, '"--steps", "100"'))
    (tmp_path / "notebook").mkdir()
    (tmp_path / "single").symlink_to(EXAMPLES / "single")
    machine = Machine.at(tmp_path / "home")
    # `run` starts a server, and the other cells look for that of this machine.
    env = {name: value for name, value in machine.env.items() if name != "TEMPORAL_ADDRESS"}
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path / "notebook",
        env={**env, "PYTHONPATH": str(EXAMPLES.parent), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=HUNG_S * 2,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "<strong>notebook</strong> running" in ended.stdout
    assert "<strong>notebook</strong> completed" in ended.stdout
    assert "restart 1 of phase main" in ended.stdout
    assert machine.processes() == []


def test_the_notebook_is_kept_without_what_its_cells_printed() -> None:
    of_code = [c for c in json.loads(PAGE.read_text())["cells"] if c["cell_type"] == "code"]
    assert all((cell["outputs"], cell["execution_count"]) == ([], None) for cell in of_code)
