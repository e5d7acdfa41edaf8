"""Fixtures for every test: one real Temporal server per test process, one namespace per test."""

from __future__ import annotations

import everstep.startup  # noqa: F401  # fewer collections from here on

# isort: split
import contextlib
import gc
import importlib
import os
import re
import signal
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Generator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from temporalio.client import Client

from everstep.agent.build import build
from tests.support import seconds
from tests.support.child import die_with_parent
from tests.support.devserver import ONE_PARTITION, ONE_PROCESSOR, DevServer
from tests.support.shards import Shard, current_commit

# How long something takes is for benchmarks to say: no test fails because a machine is slow.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-scenarios",
        action="store_true",
        help="write the transcripts of tests/scenarios anew instead of comparing them",
    )
    parser.addoption("--shard", metavar="K/N", help="only share K of N, by test name and commit")
    parser.addoption(
        "--all-plays",
        action="store_true",
        help="play what others cover too (tests/plays); a test that is named or matched by -k always is",
    )
    parser.addoption("--shard-commit", metavar="SHA", help="the commit for --shard; default: HEAD")


SHARD = pytest.StashKey[Shard]()


def pytest_configure(config: pytest.Config) -> None:
    if share := config.getoption("shard"):
        # Kept as an option, since processes of pytest-xdist get the options: all take the same share.
        config.option.shard_commit = config.option.shard_commit or current_commit()
        try:
            config.stash[SHARD] = Shard.parse(share, commit=config.option.shard_commit)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
    # A shell starts a background command with SIGINT ignored, and children inherit that: what is to
    # be shown of Ctrl-C would then wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    if hasattr(config, "workerinput"):
        # A process of pytest-xdist finishes its test first when the main one is killed.
        die_with_parent()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import a share of the test files, where each of several processes is going to import all of them.

    A process reads what another one has compiled. In a fresh clone each would compile every file, at once.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    root, elsewhere = session.config.rootpath, session.config.getini("norecursedirs")
    names = (path.relative_to(root).with_suffix("") for path in root.glob("tests/**/test_*.py"))
    here = sorted(name for name in names if "/".join(name.parts[:2]) not in elsewhere)
    for name in here[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception):  # the collection reports it
            importlib.import_module(".".join(name.parts))


END_S = "EVERSTEP_TEST_END_S"
"""The variable with the seconds that a terminated run has to end in order."""


def _interrupt(*_: object) -> None:
    """End the run as Ctrl-C does, so that fixtures end what they started; once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill = partial(os.kill, os.getpid(), signal.SIGKILL)
    guard = threading.Timer(float(os.environ.get(END_S, "60")), kill)
    guard.daemon = True
    guard.start()
    signal.raise_signal(signal.SIGINT)


def pytest_report_header(config: pytest.Config) -> str | None:
    return str(config.stash[SHARD]) if SHARD in config.stash else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what other plays cover, and what is not in the requested share.

    Files that take long, or have a test that may, come first: at the end one process would be busy alone.
    """
    if not (config.option.all_plays or config.option.keyword or "::" in str(config.args)):
        covered = [item for item in items if item.get_closest_marker("covered") is not None]
        items[:] = [item for item in items if item.get_closest_marker("covered") is None]
        config.hook.pytest_deselected(items=covered)
    timeouts_s = {item.nodeid: _own_timeout_s(item) for item in items}
    measured_s = seconds.read()
    if SHARD in config.stash:
        share = config.stash[SHARD].of(timeouts_s, measured_s)
        items[:] = [item for item in items if item.nodeid in share]
    longest_s: dict[Path, float] = defaultdict(float)
    total_s: dict[Path, float] = defaultdict(float)
    for item in items:
        longest_s[item.path] = max(longest_s[item.path], timeouts_s[item.nodeid])
        total_s[item.path] += measured_s.get(item.nodeid, UNMEASURED_S)
    items.sort(key=lambda item: (-longest_s[item.path], -total_s[item.path]))


UNMEASURED_S = 0.1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays for the whole run: no garbage collection looks through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _own_timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None else 0.0


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent as one file."""
    return build(tmp_path_factory.mktemp("agent") / "agent.pyz")


@pytest.fixture(scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevServer]:
    """A tuned server in memory. A test that kills its server starts one of its own."""
    log = tmp_path_factory.mktemp("temporal") / "temporal.log"
    async with await DevServer.start(
        log=log, settings=ONE_PARTITION, environment=ONE_PROCESSOR
    ) as running:
        yield running


@pytest.fixture
async def namespace(server: DevServer, request: pytest.FixtureRequest) -> str:
    """The name of a new namespace with our search attributes, called after the test."""
    hint = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:60].strip("-")
    return await server.new_namespace(hint)


@pytest.fixture
async def client(server: DevServer, namespace: str) -> Client:
    """A client of the test's own namespace."""
    return await server.connect(namespace)
