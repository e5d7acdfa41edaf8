"""`everstep` on a real terminal, narrow and wide, and where there is none: pages that need no server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
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
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    own = {
        "HOME": str(tmp_path),
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",  # nobody is there
        "TERM": "xterm-256color",
    }
    return {**kept, **own, **more}


ONE_BY_ONE = """
import json, sys
from everstep.cli.main import main
for words in json.loads(sys.argv[1]):
    main(words)
    print(end="\f", flush=True)
"""
"""Several commands in one process: what takes a second is to load what they are made of."""


def on_a_terminal(
    pages: Sequence[tuple[str, ...]], columns: int, env: dict[str, str]
) -> dict[str, str]:
    """What appears on a terminal of this width, page by page."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = subprocess.Popen(
        [sys.executable, "-c", ONE_BY_ONE, json.dumps(pages)],
        env=env,
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 1 << 16):
            seen += part
    except OSError:  # so ends a terminal that nobody writes to any more
        pass
    finally:
        os.close(ours)
        command.wait(HUNG_S)
    shown = seen.decode().replace("\r\n", "\n").split("\f")
    return {" ".join(words): page for words, page in zip(pages, shown[:-1], strict=True)}


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_runs_over_the_edge(
    tmp_path: Path, columns: int, subtests: pytest.Subtests
) -> None:
    seen = on_a_terminal(PAGES, columns, settings(tmp_path))
    for name, page in seen.items():
        lines = STYLE.sub("", page).splitlines()
        with subtests.test(name):
            assert len(lines) > 5
            assert [line for line in lines if cell_len(line) > columns] == []


def test_no_color_leaves_no_escape_on_a_terminal(tmp_path: Path) -> None:
    plain, colored = (
        on_a_terminal([PAGES[0], PAGES[-1]], 80, settings(tmp_path, **more))
        for more in ({"NO_COLOR": "1"}, {})
    )
    assert all("\x1b" in page for page in colored.values())
    assert not [name for name, page in plain.items() if "\x1b" in page]


def test_without_a_terminal_there_is_no_escape(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*EVERSTEP, *PAGES[0]],
        env=settings(tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert "\x1b" not in ended.stdout
    assert len(ended.stdout.splitlines()) > 5
