"""What the files of a test run cost in processor time: `make test ARGS="-p tests.support.costs"`.

Wall-clock time measures the machine's load as well; this is the time of the test process and of its
children: servers, agents, ranks. A process whose parent ended is not counted.
What a shared fixture costs is part of the first file that uses it.

With `--update-seconds` the real time of each test that ran is written to the table of `seconds`.
Both are kept as each file ends, so a run that SIGTERM or Ctrl-C ends early says what it measured; of one
that SIGKILL ended the table of `seconds` has the files that were through.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import seconds

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STARTING = "(imports and collection)"
LINES_SHOWN = 60

# Of a file, in seconds: the test process, its children, real time; and the number of its tests.
Cost = list[float]
NOTHING: Cost = [0.0, 0.0, 0.0, 0.0]


class Costs:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._files: dict[str, Cost] = defaultdict(lambda: [*NOTHING])
        self._mark = [0.0, 0.0, time.monotonic()]
        self._tests = 0.0
        self._is_last = False
        self._real_s: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self) -> None:
        self._add(STARTING, self._spent())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[Any]:
        self._tests += 1
        self._is_last = nextitem is None or nextitem.path != item.path
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """The report of a file's last test carries the file's cost to the main process."""
        report = yield
        if self._is_last and call.when == "teardown":
            vars(report)["cost_of_file"] = self._spent()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._real_s[report.nodeid] += report.duration
        if (cost := getattr(report, "cost_of_file", None)) is not None:
            self._add(report.nodeid.partition("::")[0], cost)
            self._write_seconds()

    def pytest_sessionfinish(self) -> None:
        if (sent := getattr(self._config, "workeroutput", None)) is not None:
            sent["cost_of_start"] = self._files[STARTING]
        else:
            self._write_seconds()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._add(STARTING, getattr(node, "workeroutput", {}).get("cost_of_start", NOTHING))

    def _spent(self) -> Cost:
        """What was spent since the last call."""
        mark = [time.process_time(), _children_s(), time.monotonic()]
        spent = [max(0.0, now - before) for now, before in zip(mark, self._mark, strict=True)]
        cost = [*spent, self._tests]
        self._mark, self._tests = mark, 0.0
        return cost

    def _add(self, file: str, cost: Cost) -> None:
        self._files[file] = [a + b for a, b in zip(self._files[file], cost, strict=True)]

    def _write_seconds(self) -> None:
        if self._config.getoption("update_seconds") and not hasattr(self._config, "workerinput"):
            seconds.update(self._real_s)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows = sorted(self._files.items(), key=lambda row: -row[1][0] - row[1][1])
        # Nothing is charged yet where a run is interrupted before the first file has ended.
        total = [sum(column) for column in zip(NOTHING, *self._files.values(), strict=True)]
        terminalreporter.section("processor time: here, children; real time; tests")
        for file, (here, children, real, tests) in [("all", total), *rows[:LINES_SHOWN]]:
            terminalreporter.line(f"{here:8.1f} {children:8.1f} {real:8.1f} {tests:6.0f}  {file}")


def _children_s() -> float:
    """The processor time of all that descend from this process, those that ended included."""
    parents: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended
            parents[int(stat[1])].append(int(folder.name))
            ticks[int(folder.name)] = sum(map(int, stat[11:15]))
    me = os.getpid()
    family = list(parents[me])
    for pid in family:
        family += parents[pid]
    ended = os.times()
    return (
        ended.children_user
        + ended.children_system
        + sum(ticks[pid] for pid in family) / TICKS_PER_S
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-seconds", action="store_true", help="measure tests/seconds.json anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config))
    if not hasattr(config, "workerinput"):
        # What a time limit ends prints its table, as after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
