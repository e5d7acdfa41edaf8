"""The pages of docs/getting-started and the symptoms of troubleshooting, followed command by command.

Real processes, of which one is killed, as on the pages. That of PyTorch is in tests/torch.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.following import follow
from tests.support.machine import Machine
from tests.support.pages import ROOT, Page

DOCS = ROOT / "docs"
PAGES = DOCS / "getting-started"
JOBS = {"modelarts": "arts", "mindcluster": "chips", "cerebras": "wafers"}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", JOBS)
def test_each_command_of_a_page_works_as_it_stands(
    name: str, machine: Machine, tmp_path: Path
) -> None:
    folder, job = tmp_path / "here", JOBS[name]
    folder.mkdir()
    page = Page.read(PAGES / f"{name}.md")
    printed = follow(page, folder, machine, path=machine.env["PATH"])
    assert "named    crash" in printed[f"everstep why {job} 1"]
    assert (folder / f"{job}.html").read_text().startswith("<!doctype html>")
    assert "stopped" in printed[f"everstep watch {job}"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_command_of_troubleshooting_works(machine: Machine, tmp_path: Path) -> None:
    """The page names them in sentences: they are given to a job that was stopped."""
    troubles = Page.read(DOCS / "operations" / "troubleshooting.md").mentioned
    meant = [re.sub(r"\b(ID|JOB)\b", "arts", line).replace("NODE", "n0") for line in troubles]
    assert {line.split()[1] for line in meant} >= {"doctor", "status", "why", "events", "nodes"}
    folder = tmp_path / "here"
    folder.mkdir()
    page = Page.read(PAGES / "modelarts.md")
    isolated = (*page.commands, "everstep isolate n0")
    mentioned = tuple(line for line in meant if line not in GIVEN_OTHERWISE)
    page = replace(page, commands=isolated, mentioned=mentioned)
    printed = follow(page, folder, machine, path=machine.env["PATH"])
    assert "may be used again" in printed["everstep release n0"]


GIVEN_OTHERWISE = frozenset(("everstep dev", "everstep stop arts", "everstep adopt arts"))
"""The first two are commands of the page that is followed; an adoption is in tests/local/guarded."""


def test_every_page_is_followed_and_shows_no_command_that_is_not_run() -> None:
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert pages == {*JOBS, "pytorch"}
    for name in sorted(pages):
        kinds = set(re.findall(r"^```(\w+)", (PAGES / f"{name}.md").read_text(), re.MULTILINE))
        assert kinds <= {"sh", "json", "yaml", "python"}
