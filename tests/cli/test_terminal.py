"""`everstep` on a real terminal, narrow and wide, and where there is none: pages that need no server."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
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


def on_a_terminal(words: tuple[str, ...], columns: int, env: dict[str, str]) -> str:
    """What appears on a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = subprocess.Popen(
        [*EVERSTEP, *words], env=env, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs
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
    return seen.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_no_line_runs_over_the_edge(tmp_path: Path, words: tuple[str, ...], columns: int) -> None:
    seen = on_a_terminal(words, columns, settings(tmp_path))
    lines = STYLE.sub("", seen).splitlines()
    assert len(lines) > 5
    assert [line for line in lines if cell_len(line) > columns] == []


@pytest.mark.parametrize("words", [PAGES[0], PAGES[-1]], ids=" ".join)
def test_no_color_leaves_no_escape_on_a_terminal(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert "\x1b" not in on_a_terminal(words, 80, settings(tmp_path, NO_COLOR="1"))


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
