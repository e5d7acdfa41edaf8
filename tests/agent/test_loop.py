"""The loop goes on, whatever one of its calls does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.patience import HUNG_S

SCRIPT = """
import os, signal, sys
from everstep.agent.loop import Loop

loop = Loop()

def fails():
    raise RuntimeError("of ours")

def leave():
    sys.stdout.flush()
    os._exit(0)

loop.later(0.0, fails)
loop.later(0.0, fails)
loop.later(0.01, lambda: print("went on"))
loop.later(0.02, leave)
loop.run()
"""


def test_fault_of_ours_is_written_down_once_and_the_loop_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=HUNG_S, check=True
    )
    assert done.stdout == "went on\n"
    assert done.stderr.count("RuntimeError: of ours") == 1


def test_a_fault_in_the_archive_is_logged_with_its_source_lines(pyz: Path, tmp_path: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(pyz)!r})\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=True,
    )
    (place,) = (line for line in done.stderr.splitlines() if "loop.py" in line)
    assert place.startswith('  File "everstep/agent/loop.py", line ')
    assert "\n    do()\n" in done.stderr


BUSY = """
import os, time
from everstep.agent.loop import Loop

loop = Loop()

def again():
    loop.later(0.001, again)
    time.sleep(0.01)

again()
loop.hand_over(lambda: os.write(1, b"called"))
loop.hand_over(lambda: os._exit(0))
loop.run()
"""
"""What comes again and again takes longer than its pause."""


def test_a_timer_that_takes_longer_than_its_pause_holds_up_nobody() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=HUNG_S, check=True
    )
    assert done.stdout == "called"


LATE = """
import os, threading
from everstep.agent import loop as loops

loops.CALL_S = 0.01
loop, goes_on = loops.Loop(), threading.Event()

def request():
    try:
        loop.call(lambda: os.write(1, b"carried out late "))
    except OSError as error:
        os.write(1, str(error).encode())
    loop.hand_over(lambda: os._exit(0))
    goes_on.set()

loop.hand_over(goes_on.wait)
threading.Thread(target=request, daemon=True).start()
loop.run()
"""
"""The loop stands still for longer than a request waits."""


def test_a_command_that_was_refused_as_the_loop_is_busy_is_not_carried_out_later() -> None:
    """Its sender has gone on: the fence that was read before the start of a rank may be newer by then."""
    done = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, timeout=HUNG_S, check=True
    )
    assert done.stdout == "the agent is busy"
