"""Nothing of a run is left when the agent says so, whatever its processes did to escape."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from everstep.agent.processes import proc
from tests.agent.pod import DAEMON, FOREVER, TELL, Pod, exits, is_running, signal_to, until
from tests.support.patience import HUNG_S

GRANDCHILD = f"""{TELL}
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild == 0:
        tell("escaped", os.getpid())
        while True: os.system("sleep 60")
    os.wait()
os.wait()
"""

NAMELESS_DAEMON = f"""{TELL}
import sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.pop("EVERSTEP_POD")
        source = "import os,time;open('escaped.part','w').write(str(os.getpid())+chr(10));" \
                 "os.rename('escaped.part','escaped');time.sleep(600)"
        os.execv(sys.executable, [sys.executable, "-c", source])
    os._exit(0)
os.wait()
while True: time.sleep(60)
"""
"""As `DAEMON`, without the variable that names its pod; it and its rank sleep until they are ended."""


@pytest.mark.parametrize(
    "script", [GRANDCHILD, DAEMON, NAMELESS_DAEMON], ids=["grandchild", "daemon", "no mark"]
)
def test_whoever_escapes_is_ended_with_the_rank(pod: Pod, script: str) -> None:
    (rank,) = pod.runs(script)
    escaped = int(pod.file("escaped"))
    pod.stopped(2)
    assert not is_running(escaped)
    assert not is_running(rank)


def test_orphan_of_a_rank_that_ended_is_ended_too(pod: Pod) -> None:
    pod.run(DAEMON.replace("os.wait()\nwhile True: time.sleep(60)", "sys.exit(0)", 1))
    escaped = int(pod.file("escaped"))
    pod.until(exits)
    assert is_running(escaped)
    pod.stopped(2)
    assert not is_running(escaped)


def test_loader_that_keeps_forking_is_ended(pod: Pod) -> None:
    # Its short sleeps are the pace of the forks, the long one keeps them from filling the machine.
    pod.runs(
        f"""{TELL}
import time
def spread():
    while True:
        if os.fork() == 0:
            time.sleep(0.02)
            if os.fork():
                os._exit(0)
        else:
            time.sleep(0.01)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]: pass
            except ChildProcessError: pass
            if len(os.listdir("/proc")) > 4000: time.sleep(1)
            tell("spreads", 1) if not os.path.exists("spreads") else None
if os.fork() == 0:
    for _ in range(6): os.fork()
    while True:
        if os.fork() == 0: os._exit(0)
        os.wait()
        tell("spreads", 1) if os.getpid() % 50 == 0 else None
while True: time.sleep(60)
"""
    )
    until(lambda: len(pod.marked()) > 60, what="a crowd")
    pod.stopped(2)
    assert pod.marked() == []


def test_zombies_of_ranks_do_not_stay(pod: Pod) -> None:
    pod.run("import os\nfor _ in range(20):\n    if os.fork() == 0: os._exit(0)\nos._exit(0)")
    pod.until(exits)

    def children() -> str:
        return subprocess.run(
            ["ps", "--ppid", str(pod.agent.pid), "-o", "stat="],
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    until(lambda: "Z" not in children(), what="no zombie")


def test_ignored_sigterm_ends_after_the_grace(pod: Pod) -> None:
    script = f"{TELL}\nimport signal, time\nsignal.signal(15, signal.SIG_IGN)\ntell('up', 1)\n"
    (rank,) = pod.runs(script + FOREVER)
    pod.file("up")
    before = time.monotonic()
    state = pod.stop(2, grace_s=0.5)
    assert state["stopped_below"] < 2
    assert is_running(rank)
    state = pod.until(lambda s: s["stopped_below"] == 2)
    assert time.monotonic() - before > 0.45
    assert not is_running(rank)
    assert state["run"] is not None
    assert state["run"]["stopped"]
    assert exits(state) == []


SAVES_AT_THE_FILE = f"""{TELL}
import json, os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
request = pathlib.Path(os.environ["EVERSTEP_RANK_FOLDER"], "instruction.json")
tell("up", request.exists())
while not request.exists(): time.sleep(0.01)
tell("saved", request.read_text())
"""


def test_a_file_beside_the_signal_asks_a_script_to_save(pod: Pod) -> None:
    """A script whose libraries take the signal for themselves looks at the file, and gets its time."""
    pod.runs(SAVES_AT_THE_FILE)
    assert pod.file("up") == "False"
    pod.stopped(2, grace_s=HUNG_S)
    assert json.loads(pod.file("saved")) == {"generation": 1, "do": "save", "grace_s": HUNG_S}


def test_without_grace_no_file_asks(pod: Pod) -> None:
    (rank,) = pod.runs(SAVES_AT_THE_FILE)
    pod.file("up")
    pod.stopped(2)
    assert not is_running(rank)
    assert not (pod.home / "saved").exists()


def test_grace_ends_as_soon_as_the_ranks_did(pod: Pod) -> None:
    script = (
        f"{TELL}\nimport signal, sys, time\n"
        "def save(*_):\n    tell('saved', 1)\n    sys.exit(0)\n"
        "signal.signal(15, save)\ntell('up', 1)\nwhile True: time.sleep(60)"
    )
    pod.runs(script)
    pod.file("up")
    before = time.monotonic()
    state = pod.stopped(2, grace_s=HUNG_S)
    assert time.monotonic() - before < HUNG_S
    assert pod.file("saved")
    assert state["run"] is not None
    assert state["run"]["ranks"][0]["code"] == 0


def test_grace_reaches_the_command_of_a_shell(pod: Pod) -> None:
    script = (
        f"{TELL}\nimport signal, sys, time\n"
        "def save(*_):\n    time.sleep(0.2)\n    tell('saved', 1)\n    sys.exit(0)\n"
        "signal.signal(15, save)\ntell('up', 1)\nwhile True: time.sleep(60)"
    )
    (pod.home / "train.py").write_text(script)
    pod.runs(["/bin/sh", "-c", f"{sys.executable} train.py; true"])
    pod.file("up")
    pod.stopped(2, grace_s=30.0)
    assert pod.file("saved")


def test_data_loaders_are_not_told_of_the_end_before_their_rank(pod: Pod) -> None:
    script = (
        f"{TELL}\nimport signal, sys, time\n"
        "loader = os.fork()\n"
        "if loader == 0:\n    time.sleep(60)\n    os._exit(0)\n"
        "def save(*_):\n    time.sleep(0.1)\n"
        "    tell('loader', os.waitpid(loader, os.WNOHANG)[0])\n    os.kill(loader, 9)\n    sys.exit(0)\n"
        "signal.signal(15, save)\ntell('up', 1)\nwhile True: time.sleep(60)"
    )
    pod.runs(script)
    pod.file("up")
    pod.stopped(2, grace_s=30.0)
    assert pod.file("loader") == "0"


OWN_SESSION = f"""{TELL}
import signal, subprocess, sys, time
child = os.fork()
if child == 0:
    os.setsid()
    def save(*_):
        tell("saved", 1)
        os._exit(0)
    signal.signal(15, save)
    tell("up", 1)
    while True: time.sleep(60)
"""
LOADER_LEFT_BEHIND = f"""{TELL}
import time
if os.fork() == 0:
    tell("up", 1)
    while True: time.sleep(60)
while True: time.sleep(60)
"""


@pytest.mark.parametrize(
    "script",
    [
        OWN_SESSION + "while True: time.sleep(60)",
        OWN_SESSION + "signal.signal(15, signal.SIG_IGN)\nos.waitpid(child, 0)",
        LOADER_LEFT_BEHIND,
    ],
    ids=["its rank ends first", "its rank waits for it", "a loader left behind"],
)
def test_grace_is_not_lived_out_by_who_would_have_ended(pod: Pod, script: str) -> None:
    pod.runs(script)
    pod.file("up")
    pod.stopped(2, grace_s=1000 * HUNG_S)
    if "saved" in script:
        assert pod.file("saved")


def test_what_a_rank_starts_to_save_is_not_asked_to_end(pod: Pod) -> None:
    save = f"{TELL}\nimport time\ntime.sleep(0.5)\ntell('saved', 1)"
    (pod.home / "save.py").write_text(save)
    trap = f"trap '{sys.executable} save.py' TERM; echo up > up; sleep 600; true"
    (shell,) = pod.runs(["/bin/sh", "-c", trap])
    pod.file("up")
    until(
        lambda: any(process.parent == shell for process in proc.all_processes().values()),
        what="sleep",
    )
    pod.stopped(2, grace_s=1000 * HUNG_S)
    assert pod.file("saved")


def test_stop_without_grace_hastens_one_with_grace(pod: Pod) -> None:
    script = f"{TELL}\nimport signal\nsignal.signal(15, signal.SIG_IGN)\ntell('up', 1)\n"
    pod.runs(script + FOREVER)
    pod.file("up")
    pod.stop(2, grace_s=60.0)
    pod.stopped(2)


def test_stopped_rank_is_ended(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    os.kill(rank, signal.SIGSTOP)
    pod.stopped(2)
    assert not is_running(rank)


def test_stop_where_nothing_runs_is_proven_at_once(pod: Pod) -> None:
    assert pod.stop(5)["stopped_below"] == 5
    assert pod.stop(5)["stopped_below"] == 5


def test_ranks_die_with_their_agent(pod: Pod) -> None:
    pids = pod.runs(GRANDCHILD)
    escaped = int(pod.file("escaped"))
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    until(lambda: not is_running(pids[0]) and not is_running(escaped), what="their end")


def test_agent_told_to_leave_by_a_signal_ends_its_ranks_first(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    signal_to(pod.agent.pid, signal.SIGTERM)
    assert pod.agent.wait(HUNG_S) == 0
    assert not is_running(rank)


def test_agent_that_nobody_asks_leaves_with_its_ranks(idle: Pod) -> None:
    pod = idle.start("--orphan-s", "1.5")
    (rank,) = pod.runs(FOREVER)
    assert pod.agent.wait(HUNG_S) == 0
    assert not is_running(rank)
