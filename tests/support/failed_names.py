"""A plugin of pytest that writes the names of failed tests to a file, a line each.

Unlike what pytest keeps for `--last-failed` it has those too whose process died: pytest-xdist runs
such a test again in a new process, and where it passes there, pytest forgets that it failed.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failed-names", metavar="FILE", type=Path, help="write failed tests' names here"
    )


class Names:
    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._file.open("a") as out:
                out.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption("failed_names")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Names(file))
