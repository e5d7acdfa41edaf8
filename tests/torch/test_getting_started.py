"""The page for PyTorch, followed command by command with real PyTorch: a rank is killed and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.following import follow
from tests.support.machine import Machine
from tests.support.pages import ROOT, Page
from tests.torch.ranks import PYTHON


@pytest.mark.timeout(600)
def test_each_command_of_the_page_works_as_it_stands(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    page = Page.read(ROOT / "docs" / "getting-started" / "pytorch.md")
    path = f"{PYTHON.parent}:{machine.env['PATH']}"
    # On a busy machine the log of the new start still ends with lines of PyTorch.
    shows = {"everstep logs first --tail 5": "step "}
    printed = follow(page, folder, machine, path=path, shows=shows)
    assert "named    crash" in printed["everstep why first 1"]
    assert "step " in printed["everstep logs first --tail 5"]
    assert (folder / "first.html").stat().st_size > 0
