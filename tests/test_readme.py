"""Every command of README and of the page about jobs is run, in order, against the demo of that page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.dialects.registry import validate
from everstep.processes import free_port
from tests.support.patience import HUNG_S

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
JOBS = ROOT / "docs" / "operations" / "jobs.md"

NOT_HERE = {
    "make demo": "the same demo with --keep is run here, and by test_demo.py as it is",
    "make test": "it is what runs this test",
}
KEEP = "make demo ARGS=--keep"
EXPORT = "export "
LAST = "Ctrl-C ends it all."


def blocks(page: Path, kind: str = "sh") -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(*pages: Path) -> list[str]:
    """A line each, continued lines joined."""
    lines = (
        "\n".join(block for page in pages for block in blocks(page))
        .replace("\\\n", " ")
        .splitlines()
    )
    return [re.sub(r"  +", " ", line).strip() for line in lines if line.strip()]


@pytest.fixture(scope="module")
def printed() -> Iterator[list[str]]:
    """The last lines of a demo that stays. `make demo` itself would look after .venv first."""
    demo = subprocess.Popen(
        [sys.executable, "examples/demo.py", "--keep"],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield [line for line in _until_last(demo) if line.startswith(EXPORT)]
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=HUNG_S)


def _until_last(demo: subprocess.Popen[str]) -> list[str]:
    assert demo.stdout is not None
    lines: list[str] = []
    for line in demo.stdout:
        lines.append(line.rstrip("\n"))
        if LAST in line:
            return lines
    raise AssertionError("\n".join(lines))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_command_of_the_readme_works(printed: list[str], tmp_path: Path) -> None:
    # Until the README names a server there is none, and the state directory is not the user's own.
    settings = {
        "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",
        "EVERSTEP_HOME": str(tmp_path / "home"),
    }
    exports: list[str] = []  # what somebody who follows it has typed
    for line in commands(README, JOBS):
        if line in NOT_HERE:
            continue
        if line == KEEP:
            exports = [*printed]
        elif line.startswith(EXPORT):
            exports = exports or [line]
            assert _name(line) in {_name(each) for each in exports}, "the demo does not print it"
        else:
            ended = _run("\n".join([*exports, line]), settings)
            assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
            assert ended.stdout, f"{line} prints nothing"


def _name(export: str) -> str:
    return export.removeprefix(EXPORT).partition("=")[0]


SETTINGS = {"EVERSTEP_ALLOW_OTHER_USERS": "true"}
"""A reader who is root beside other users has to confirm that."""


def _run(line: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    variables = {
        k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "EVERSTEP_"))
    }
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=ROOT,
        env={**variables, "TEMPORAL_CONFIG_FILE": os.devnull, **SETTINGS, **settings},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )


def test_every_example_in_the_readme_is_run() -> None:
    """Other fences would be commands without a test. Those of Python are lines of examples, as below."""
    fences = re.findall(r"^```(\w*)$", README.read_text() + JOBS.read_text(), re.MULTILINE)
    assert set(fences[::2]) == {"sh", "python"}
    assert set(NOT_HERE) | {KEEP} <= set(commands(README, JOBS))


def test_the_lines_for_kubernetes_are_those_of_its_page() -> None:
    """Tests of a cluster run that page."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    section = README.read_text().partition("## Kubernetes\n")[2].partition("\n## ")[0]
    lines = [
        part.strip()
        for line in re.findall(r"^    (.*)$", section, re.MULTILINE)
        for part in line.split(" && ")
    ]
    assert len(lines) == 6
    assert [line for line in lines if line not in page] == []


def test_the_readme_can_be_read_in_a_few_minutes() -> None:
    assert len(README.read_text().split()) <= 700


DOCUMENTS = [path for path in sorted((ROOT / "examples").glob("*.*")) if path.suffix != ".py"]


@pytest.mark.parametrize("example", DOCUMENTS, ids=lambda path: path.name)
def test_every_example_is_valid_and_named_on_a_page(example: Path) -> None:
    verdict = validate(example.read_text())
    assert verdict.ok, verdict.errors
    assert f"examples/{example.name}" in README.read_text() + JOBS.read_text()


def test_what_changes_in_a_script_is_a_line_of_an_example() -> None:
    examples = [ROOT / "examples" / name for name in ("transformers", "lightning", "torch_ddp")]
    lines = "".join(blocks(README, "python")).splitlines()
    assert len(lines) == len(examples)
    for line, example in zip(lines, examples, strict=True):
        assert blocks(example / "README.md", "python") == [f"{line}\n"]
        assert line in [line.strip() for line in (example / "train.py").read_text().splitlines()]
