"""`everstep` on a real terminal, narrow and wide, and where there is none: pages that need no server."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.cells import cell_len

from everstep.processes import free_port
from tests.support.machine import EVERSTEP, ROOT
from tests.support.patience import HUNG_S

STYLE = re.compile(r"\x1b\[[0-9;]*m")
PAGES = (
    ("explain", "examples/two_phases.yaml"),
    ("explain", "--code", "XID 79", "examples/two_phases.yaml"),
    ("doctor",),
    ("run", "--help"),
)


def settings(tmp_path: Path, **more: str) -> dict[str, str]:
    foreign = ("TEMPORAL_", "EVERSTEP_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    settings = {
        "HOME": str(tmp_path),
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",  # nobody is there
        "TERM": "xterm-256color",
    }
    return {**variables, **settings, **more}


ONE_BY_ONE = """
import fcntl, json, os, struct, sys, termios
from everstep.cli.main import main
for words, columns, env in json.loads(sys.argv[1]):
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.environ.pop("NO_COLOR", None)
    os.environ.update(env)
    main(words)
    print(end="\f", flush=True)
"""
"""Several commands in one process: what takes a second is to load what they are made of."""

Screen = tuple[tuple[str, ...], int, dict[str, str]]
"""A command, the width of its terminal, and variables."""
RUNS: list[Screen] = [
    *((words, columns, {}) for columns in (80, 200) for words in PAGES),
    *((words, 80, {"NO_COLOR": "1"}) for words in (PAGES[0], PAGES[-1])),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What appears on a terminal, page by page as in `PAGES`."""
    return on_a_terminal(RUNS, settings(tmp_path_factory.mktemp("home")))


def on_a_terminal(screens: Sequence[Screen], env: dict[str, str]) -> list[str]:
    our_end, their_end = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-c", ONE_BY_ONE, json.dumps(screens)],
        env=env,
        cwd=ROOT,
        stdin=their_end,
        stdout=their_end,
        stderr=their_end,
    )
    os.close(their_end)
    output = b""
    try:
        while part := os.read(our_end, 1 << 16):
            output += part
    except OSError:  # so ends a terminal that nobody writes to any more
        pass
    finally:
        os.close(our_end)
        command.wait(HUNG_S)
    printed = output.decode().replace("\r\n", "\n").split("\f")[:-1]
    assert len(printed) == len(screens)
    return printed


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_runs_over_the_edge(
    pages: list[str], columns: int, subtests: pytest.Subtests
) -> None:
    for (words, width, env), page in zip(RUNS, pages, strict=True):
        if width == columns and not env:
            lines = STYLE.sub("", page).splitlines()
            with subtests.test(" ".join(words)):
                assert len(lines) > 5
                assert [line for line in lines if cell_len(line) > columns] == []


def test_no_color_leaves_no_escape_on_a_terminal(pages: list[str]) -> None:
    plain = {words: page for (words, _, env), page in zip(RUNS, pages, strict=True) if env}
    colored = [
        page
        for (words, columns, env), page in zip(RUNS, pages, strict=True)
        if words in plain and columns == 80 and not env
    ]
    assert len(plain) == len(colored) == 2
    assert all("\x1b" in page for page in colored)
    assert not [words for words, page in plain.items() if "\x1b" in page]


def captured(tmp_path: Path, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command that ran without a terminal."""
    return subprocess.run(
        argv,
        env=settings(tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )


def test_without_a_terminal_there_is_no_escape(tmp_path: Path) -> None:
    ended = captured(tmp_path, [*EVERSTEP, *PAGES[0]])
    assert "\x1b" not in ended.stdout
    assert len(ended.stdout.splitlines()) > 5


ALL_CLOSED = "<&- >&- 2>&-"
CLOSED = [ALL_CLOSED, *(pytest.param(e, marks=pytest.mark.long) for e in ALL_CLOSED.split())]


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize(("words", "code"), [(("explain", PAGES[0][1]), 0), (("status", "x"), 4)])
def test_a_closed_stream_changes_no_exit_code(
    tmp_path: Path, words: tuple[str, ...], code: int, closed: str
) -> None:
    """As a cron job or a daemon may have it. What is opened next must not get its number either.

    The long rows close one stream and leave the others open.
    """
    ended = captured(tmp_path, ["sh", "-c", f'"$@" {closed}', "sh", *EVERSTEP, *words])
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
