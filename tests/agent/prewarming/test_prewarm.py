"""Ranks forked from a helper: like plainly started ones in everything, only sooner.

Only real forks show what they have of their helper.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.prewarming.helper_spec import parse_python_command
from everstep.protocol import rank_memory, wire
from tests.agent.pod import Pod, exits, is_running, signal_to, until
from tests.agent.prewarming.warm import MODULES, Warm, is_prewarmed, is_stopped

# -- Like a plain start -----------------------------------------------------------------------------

SELF = """
    import __main__, json, os, signal, sys
    def where(path):
        return path.replace(os.environ["HOMEDIR"], "HOME")
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\\n").split(":\\t", 1) for line in file)
    is_ours = os.getppid() == int(open(os.environ["HOMEDIR"] + "/pid").read().split()[0])
    print(json.dumps({
        "main": sorted(vars(__main__).keys() - {"file"}),
        "named": [__name__, where(__file__), __package__, type(__loader__).__name__],
        "spec": __spec__ and __spec__.name,
        "is main": __main__ is sys.modules["__main__"] and vars(__main__) is globals(),
        "argv": [[where(word) for word in words] for words in (sys.argv, sys.orig_argv)],
        "path": [where(entry) for entry in sys.path],
        "interpreter": [sys.executable, sys.prefix, list(sys.flags)],
        "cwd": where(os.getcwd()),
        "env": {k: where(v) for k, v in sorted(os.environ.items())},
        "place": [os.getpid() == os.getsid(0) == os.getpgrp(), is_ours],
        "signals": [status[k] for k in ("SigIgn", "SigCgt", "SigBlk")] + [status["Threads"]],
        "files": sorted(os.listdir("/proc/self/fd"))[:3],
        "stdin": sys.stdin.read(),
        "streams": [
            [each.encoding, each.errors, each.line_buffering, each.write_through]
            for each in (sys.stdout, sys.stderr)
        ],
        "name": status["Name"],
    }))
"""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("train.py", "--lr", "3e-4", "-m"), "train.py"),
        pytest.param(("-u", "./sub/train.py"), "sub/train.py", marks=pytest.mark.long),
        (("-m", "sub.train", "--lr"), "sub/train.py"),
        pytest.param(("-B", "-m", "train"), "train.py", marks=pytest.mark.long),
    ],
    ids=["script", "deeper script", "deeper module", "module"],
)
def test_a_fork_finds_itself_where_a_plain_start_would(
    pod: Pod, command: tuple[str, ...], name: str
) -> None:
    (pod.home / "sub").mkdir()
    warm = Warm(pod, *command)
    warm.write(SELF, name)
    env = {"EVERSTEP_GENERATION": "7", "WORLD_SIZE": "1", "LR": "3e-4", "ODD": "a=b\n\udcff"}
    states = []
    for _ in range(2):
        warm.start(env=env)
        warm.ended()
        warm.ready()
        states.append(json.loads(warm.log()))
    assert is_prewarmed(pod.state())
    words = [one["env"].pop(wire.LAST_WORDS_FILE) for one in states]
    assert words == ["HOME/ranks/g1-r0/error.json", "HOME/ranks/g2-r0/error.json"]
    folders = [one["env"].pop(wire.RANK_FOLDER) for one in states]
    assert folders == ["HOME/ranks/g1-r0", "HOME/ranks/g2-r0"], "each process has its own"
    tokens = {one["env"].pop(rank_memory.TOKEN) for one in states}
    assert len(tokens) == 2, "each process has its own"
    assert states[1] == states[0]
    assert states[1]["place"] == [True, True]


ENDINGS = {
    "returns": "print('done')",
    "code": "import sys; print('out'); sys.exit(3)",
    "text": "import sys; sys.exit('why it ends')",
    "exception": "def deeper(): raise ValueError('no such thing')\ndeeper()",
    "exception with a cause": "try: 1/0\nexcept ZeroDivisionError as e: raise KeyError(2) from e",
    "own hook": "import sys\nsys.excepthook = lambda k, e, t: print('hook', k, t.tb_lineno)\n1/0",
    "no Python": "def f(:\n",
    "interrupted": "raise KeyboardInterrupt",
    # The sleep is where the signal finds it.
    "interrupted by a signal": "import os; os.kill(os.getpid(), 2); import time; time.sleep(9)",
    "killed": "import os; print('last', flush=True); os.kill(os.getpid(), 9)",
    "at once": "import os; os._exit(7)",
    "what is left to do": (  # the thread sleeps so that it ends after the script does
        "import atexit, threading, time\natexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("text", ENDINGS.values(), ids=ENDINGS)
def test_a_fork_ends_like_a_plain_start(warm: Warm, text: str) -> None:
    states = []
    for _ in range(2):
        warm.write(text)
        warm.start()
        state = warm.ended()
        warm.ready()
        assert state["run"] is not None
        details = exits(state)[-1]["details"]
        states.append((details["code"], details["signal"], details["exception"], warm.log()))
    assert is_prewarmed(warm.pod.state())
    assert states[1] == states[0]


@pytest.mark.long
def test_a_folder_that_is_gone_is_told_like_a_command_that_cannot_be_run(warm: Warm) -> None:
    place = warm.pod.home / "place"
    place.mkdir()
    warm.command = [sys.executable, str(warm.pod.home / "train.py")]
    warm.start(workdir=str(place))
    warm.ready()
    place.rmdir()
    warm.generation += 1
    warm.pod.run(warm.command, workdir=str(place), prewarm=warm.modules, generation=warm.generation)
    state = warm.pod.until(lambda s: s["run"] and s["run"]["failed"])
    assert state["run"] is not None
    assert state["run"]["failed"] == f"{place}: No such file or directory"


# -- What it is for ---------------------------------------------------------------------------------


def test_the_second_start_imports_nothing_anew(warm: Warm) -> None:
    warm.modules = ["slow"]
    # An import that takes a second; a rank that works until it is ended.
    warm.write("import time\nprint('imported')\ntime.sleep(1.0)\nDEEP = [0]", "slow.py")
    warm.write("import slow\nprint('step 1', flush=True)\nimport time\ntime.sleep(600)")
    took = []
    for _ in range(2):
        warm.start()
        run = warm.pod.until(stepped)["run"]
        assert run is not None
        took.append((run["first_step_at"] or 0.0) - (run["started_at"] or 0.0))
        warm.ready()
    helper = warm.ready()
    assert took[0] > 1.0 > took[1]
    assert warm.log() == "step 1\n"
    assert helper["modules"] == ["slow"]
    assert helper["rss_bytes"] > 1e6
    assert (warm.pod.home / "helper.log").read_text() == "imported\n"


def stepped(state: wire.AgentState) -> bool:
    return state["run"] is not None and state["run"]["step"] == 1


@pytest.mark.long
def test_several_ranks_are_forked_from_one_helper(warm: Warm) -> None:
    text = "import os\nprint(os.environ['RANK'])"
    warm.start(ranks=3)
    warm.forked(text, ranks=3)
    warm.ended()
    logs = [warm.pod.log(rank, generation=2) for rank in range(3)]
    assert logs == ["0\n", "1\n", "2\n"]


@pytest.mark.long
def test_helper_stays_ready_for_one_start_after_the_other(warm: Warm) -> None:
    helpers = set()
    for _ in range(5):
        warm.forked()
        helpers.add(warm.ready()["pid"])
    assert len(helpers) == 1


@pytest.mark.long
def test_forks_draw_different_numbers(warm: Warm) -> None:
    warm.modules = ["random", "tempfile", "multiprocessing"]
    text = (
        "import random, multiprocessing as m\nprint(random.random(), m.current_process().authkey)"
    )
    for _ in range(2):
        warm.forked(text, ranks=2)
        warm.ended()
    drawn = {warm.pod.log(rank, generation=g) for rank in range(2) for g in (2, 3)}
    assert len(drawn) == 4


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_fork_has_children_of_its_own(warm: Warm, method: str) -> None:
    warm.modules = ["multiprocessing"]
    warm.forked(f"""
        import multiprocessing
        def twice(n): return 2 * n
        if __name__ == "__main__":
            multiprocessing.set_start_method({method!r})
            with multiprocessing.Pool(2) as pool:
                print(pool.map(twice, range(4)))
    """)
    state = warm.ended()
    assert state["run"] is not None
    assert (state["run"]["ranks"][0]["code"], warm.log()) == (0, "[0, 2, 4, 6]\n")


@pytest.mark.long
def test_what_modules_put_into_the_environment_stays_there(warm: Warm) -> None:
    warm.modules = ["odd"]
    warm.write("import os\nos.environ['SET'] = '1'\ndel os.environ['UNSET']", "odd.py")
    warm.start(env={"UNSET": "1"})
    text = "import os\nprint(os.environ['SET'], 'UNSET' in os.environ)"
    warm.forked(text, env={"UNSET": "1"})
    warm.ended()
    assert warm.log() == "1 False\n"


@pytest.mark.long
def test_what_changed_on_the_disk_is_what_runs(warm: Warm) -> None:
    warm.write("WORD = 'old'", "own.py")
    warm.forked("import own\nprint(own.WORD)")
    warm.write("WORD = 'newer'", "own.py")
    warm.write("X = 1", "fresh.py")
    warm.forked("import own, fresh\nprint(own.WORD)")
    warm.ended()
    assert warm.log() == "newer\n"


def shown_by_ps(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 .").decode()


@pytest.mark.long
def test_a_fork_looks_like_its_command(warm: Warm) -> None:
    (rank,) = warm.forked()
    assert shown_by_ps(rank) == " ".join(warm.command)


def test_ps_shows_the_helper_with_its_modules_not_with_its_text(warm: Warm) -> None:
    warm.start()
    assert shown_by_ps(warm.ready()["pid"]) == f"everstep-prewarm {' '.join(MODULES)}"


# -- Falling back -----------------------------------------------------------------------------------


@pytest.mark.long
def test_first_start_does_not_wait_for_a_helper(warm: Warm) -> None:
    state = warm.start()
    assert is_prewarmed(state) is False
    assert state["helper"] is not None
    assert (
        "prewarm: generation 1 was started without the helper: there is no helper yet"
        in state["notes"]
    )


UNFIT = {
    "missing": ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "dies": ("import os; os.write(2, b'told\\n'); os.abort()", "told"),
    "thread": (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "the modules started a thread",
    ),
    "process": ("import subprocess\nCHILD = subprocess.Popen(['sleep', '600'])", "a process"),
}


@pytest.mark.long
@pytest.mark.parametrize(("text", "why"), UNFIT.values(), ids=UNFIT)
def test_modules_that_cannot_be_forked_are_noted(warm: Warm, text: str, why: str) -> None:
    warm.modules = ["odd"]
    warm.write(text, "odd.py")
    warm.start()
    warm.pod.until(lambda s: any(why in note for note in s["notes"]))
    warm.pod.until(lambda s: s["helper"] is None)
    assert is_prewarmed(warm.start()) is False
    until(lambda: len(warm.pod.marked()) == 1, what="the end of what the helper left")


@pytest.mark.long
def test_thread_that_comes_later_ends_the_forking(warm: Warm) -> None:
    warm.modules = ["odd"]
    warm.write(
        "import os\nos.register_at_fork(after_in_parent=lambda: start())\n" + LATER, "odd.py"
    )
    state = warm.start()  # and the first fork, made for the next one, makes the thread
    warm.pod.until(lambda s: any("started a thread" in note for note in s["notes"]))
    assert state["run"] is not None
    assert is_running(state["run"]["ranks"][0]["pid"])
    assert is_prewarmed(warm.start()) is False


LATER = """
def start():
    import threading, time
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["-c", "import time; time.sleep(600)"], "neither"),  # it works until it is ended
        (["-X", "dev", "train.py"], "neither"),
        (["__pycache__"], "no file of Python source"),
        (["no-such-script.py"], "no file of Python source"),
    ],
)
def test_other_commands_are_started_plainly(pod: Pod, command: list[str], why: str) -> None:
    state = pod.run([sys.executable, *command], prewarm=["json"])
    assert is_prewarmed(state) is False
    assert any(why in note for note in state["notes"])
    assert state["helper"] is None


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [{"env": {"OMP_NUM_THREADS": "2"}}, {"prewarm": ["json"]}, {"workdir": "/"}],
    ids=["environment", "modules", "folder"],
)
def test_other_start_is_plain_and_gets_another_helper(warm: Warm, change: dict[str, Any]) -> None:
    warm.command = [sys.executable, str(warm.pod.home / "train.py")]
    (rank,) = warm.forked()
    first = warm.ready()["pid"]
    assert is_prewarmed(warm.start(**change)) is False
    until(lambda: not is_running(first) and not is_running(rank), what="the end of the old ones")
    assert warm.ready()["pid"] != first
    assert is_prewarmed(warm.start(**change))


@pytest.mark.long
def test_a_run_without_prewarm_ends_the_helper(warm: Warm) -> None:
    warm.forked()
    pids = [warm.ready()["pid"], *warm.standing_by()]
    state = warm.start(prewarm=[])
    assert is_prewarmed(state) is None
    until(lambda: not any(map(is_running, pids)))
    assert warm.pod.until(lambda s: s["helper"] is None)


@pytest.mark.long
def test_what_belongs_to_a_start_needs_no_other_helper(warm: Warm) -> None:
    warm.start(env={"MASTER_PORT": "1", "WORLD_SIZE": "2", "TRACEPARENT": "of the first"})
    env = {"WORLD_SIZE": "3", "TRACEPARENT": "of the second"}
    warm.forked("import os\nprint(os.environ['WORLD_SIZE'], os.environ['TRACEPARENT'])", env=env)
    warm.ended()
    assert warm.log() == "3 of the second\n"


@pytest.mark.long
def test_killed_helper_is_replaced_while_its_run_goes_on(warm: Warm) -> None:
    (rank,) = warm.forked()
    first = warm.ready()["pid"]
    signal_to(first, signal.SIGKILL)
    warm.pod.until(lambda s: s["helper"] and s["helper"]["pid"] != first and s["helper"]["ready"])
    assert is_running(rank)
    warm.forked()


@pytest.mark.long
def test_killed_helper_falls_back(warm: Warm) -> None:
    warm.forked("print('done')")
    warm.ended()  # where nothing runs it is not replaced before the next start
    signal_to(warm.ready()["pid"], signal.SIGKILL)
    state = warm.pod.until(lambda s: s["helper"] is None)
    assert any("the helper is gone" in note for note in state["notes"])
    assert is_prewarmed(warm.start()) is False
    warm.forked()


@pytest.mark.long
def test_stopped_helper_falls_back(warm: Warm) -> None:
    warm.forked()
    helper = warm.ready()["pid"]
    os.kill(helper, signal.SIGSTOP)
    until(lambda: is_stopped(helper))
    state = warm.start()
    assert is_prewarmed(state) is False
    assert any("the helper is stopped" in note for note in state["notes"])
    until(lambda: not is_running(helper))
    warm.forked()


@pytest.mark.long
def test_helper_that_does_not_answer_falls_back(warm: Warm) -> None:
    warm.modules = ["odd"]
    # A fork that never comes. The first one is the helper's own, before it is ready.
    warm.write(
        "import itertools, os, time\n"
        "forks = itertools.count()\n"
        "os.register_at_fork(before=lambda: next(forks) and time.sleep(600))",
        "odd.py",
    )
    warm.start(ranks=2)
    helper = warm.ready()["pid"]
    state = warm.start(ranks=2)
    assert is_prewarmed(state) is False
    assert any("the helper did not fork" in note for note in state["notes"])
    until(lambda: not is_running(helper))
    warm.pod.stopped(9)
    assert not set(warm.pod.marked()) - {(state["helper"] or {"pid": 0})["pid"]}


# -- Commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py", (("python",), "train.py", None, ("train.py",))),
        ("/usr/bin/python3.11 -u a.py -m x", (("/usr/bin/python3.11", "-u"), "a.py", None, None)),
        ("python -u -B -m pkg.mod --x", (("python", "-u", "-B"), None, "pkg.mod", ("-m", "--x"))),
        ("python", None),
        ("python -m", None),
        ("python -c pass", None),
        ("python -", None),
        ("python -um train", None),
        ("torchrun train.py", None),
        ("pythonw.sh train.py", None),
    ],
)
def test_commands_are_taken_apart(command: str, expected: tuple[Any, ...] | None) -> None:
    python = parse_python_command(command.split())
    if expected is None:
        assert python is None
        return
    assert python is not None
    interpreter, script, module, argv = expected
    assert (python.interpreter, python.script, python.module) == (interpreter, script, module)
    assert argv in (None, python.argv)
