"""The processes of a pod are found whatever they did to escape, and no other process is signalled."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everstep.agent.processes import members, proc
from everstep.agent.processes.members import Members
from tests.agent.pod import FOREVER, TELL, Pod, exits, is_running, signal_to, until
from tests.agent.processes.test_warden import warden_of
from tests.support.numbers import stranger_with_number

NO_MAIN_THREAD = f"""{TELL}
import ctypes, threading, time
threading.Thread(target=lambda: [tell("up", os.getpid()), time.sleep(600)]).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""A process whose first thread has ended: the kernel shows a zombie."""

ESCAPED = f"""{TELL}
import sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        source = "import os,time;open('escaped.part','w').write(str(os.getpid())+chr(10));" \
                 "os.rename('escaped.part','escaped');time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", source], {{}})
    os._exit(0)
os.wait()
while True: time.sleep(60)
"""
"""A rank that leaves a process with a session of its own, another parent and no environment."""


def look(pod: Pod) -> members.FoundMembers:
    """As a worker does."""
    return Members(pod.home, pod.uid).find()


def living(pod: Pod) -> set[int]:
    return {process.pid for process in look(pod).living}


def here() -> Path | None:
    try:
        return members._own_cgroup()
    except (OSError, StopIteration, ValueError):
        return None


@contextlib.contextmanager
def in_a_cgroup_without_children() -> Iterator[None]:
    """Where processes started inside get no cgroup of their own."""
    before = here()
    folder = before / f"test-{os.getpid()}-{time.monotonic_ns()}" if before is not None else None
    try:
        if folder is not None:
            folder.mkdir()
            (folder / "cgroup.max.descendants").write_text("0")
            (folder / "cgroup.procs").write_text("0")
    except OSError:  # then nobody gets one
        folder = None
    try:
        yield
    finally:
        if before is not None and folder is not None:
            (before / "cgroup.procs").write_text("0")
            for pid in (folder / "cgroup.procs").read_text().split():
                (before / "cgroup.procs").write_text(pid)
            folder.rmdir()


@pytest.fixture(params=["with a cgroup", "without"])
def any_pod(idle: Pod, request: pytest.FixtureRequest) -> Pod:
    if request.param == "without":
        with in_a_cgroup_without_children():
            idle.start()
    else:
        idle.start()
    written = members.MemberList.of((idle.home / members.FILE).read_text())
    if request.param == "without":
        assert written.cgroups == [""]
    elif written.cgroups == [""]:
        pytest.skip("this machine gives nobody a cgroup of his own")
    return idle


def kill_the_agent_and_let_its_warden_do_nothing(pod: Pod) -> None:
    signal_to(warden_of(pod), signal.SIGSTOP)
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()


def is_found(pod: Pod, pid: int) -> bool:
    """Whether the list names the process. The agent writes it when it looks next, and does not report it."""
    process = proc.find(pid)
    written = members.MemberList.of((pod.home / members.FILE).read_text())
    assert process is not None
    return written.is_in_cgroups or process.identity in written.identities


def test_who_escaped_is_found_when_its_agent_is_gone(any_pod: Pod) -> None:
    pod = any_pod
    pod.runs(ESCAPED)
    escaped = int(pod.file("escaped"))
    assert proc.environment(escaped) == b""
    until(lambda: is_found(pod, escaped), what="its being known")
    mute = warden_of(pod)
    kill_the_agent_and_let_its_warden_do_nothing(pod)
    assert escaped in living(pod)
    pod.start()
    pod.until(lambda state: state["stopped_below"] > 1)
    assert not is_running(escaped)
    assert living(pod) <= {pod.agent.pid, warden_of(pod)}
    signal_to(mute, signal.SIGCONT)  # it leaves the pod to the other agent
    until(lambda: not is_running(mute), what="its end")


def cgroup_of(pod: Pod) -> Path:
    (path,) = members.MemberList.of((pod.home / members.FILE).read_text()).cgroups
    if not path:
        pytest.skip("this machine gives nobody a cgroup of his own")
    return Path(path)


@pytest.mark.parametrize("has_run", [True, False])
def test_the_cgroup_of_a_pod_goes_with_its_agent(pod: Pod, has_run: bool) -> None:
    folder = cgroup_of(pod)
    if has_run:
        pod.runs(FOREVER)
    signal_to(pod.agent.pid, signal.SIGKILL)
    until(lambda: not folder.exists(), what="the removal of its cgroup")


def test_a_warden_waits_for_what_still_ends_in_the_cgroup(pod: Pod) -> None:
    folder, warden = cgroup_of(pod), warden_of(pod)
    with subprocess.Popen(["sleep", "600"]) as late:
        (folder / "cgroup.procs").write_text(str(late.pid))
        signal_to(pod.agent.pid, signal.SIGKILL)
        listed = folder / "cgroup.procs"
        until(lambda: str(warden) not in listed.read_text().split(), what="its leaving")
        assert folder.exists()
        late.kill()
    until(lambda: not folder.exists(), what="the removal of the cgroup")


def test_whoever_removes_a_cgroup_waits_for_what_still_ends_in_it(pod: Pod) -> None:
    """A worker, as it ends the warden with the rest of a pod."""
    folder = cgroup_of(pod)
    pod.end()
    folder.mkdir()
    with subprocess.Popen(["sleep", "600"]) as late, ThreadPoolExecutor() as threads:
        (folder / "cgroup.procs").write_text(str(late.pid))
        removal = threads.submit(members.remove_cgroups, pod.home)
        try:
            with pytest.raises(TimeoutError):
                removal.result(timeout=10 * members.AGAIN_S)
        finally:
            late.kill()
        assert removal.result()
    assert not folder.exists()


def test_warden_ends_who_escaped(any_pod: Pod) -> None:
    pod = any_pod
    pod.runs(ESCAPED)
    escaped = int(pod.file("escaped"))
    until(lambda: is_found(pod, escaped), what="its being known")
    signal_to(pod.agent.pid, signal.SIGKILL)
    pod.agent.wait()
    until(lambda: not is_running(escaped), what="its end")
    until(lambda: not living(pod), what="an empty pod")


def test_a_warden_that_comes_late_leaves_the_next_agent_alone(any_pod: Pod) -> None:
    pod = any_pod
    pod.runs(FOREVER)
    late = warden_of(pod)
    kill_the_agent_and_let_its_warden_do_nothing(pod)
    pod.start()
    pod.until(lambda state: state["stopped_below"] > 1)
    (rank,) = pod.runs(FOREVER, generation=2)
    signal_to(late, signal.SIGCONT)
    until(lambda: not is_running(late), what="the end of the late one")
    assert is_running(rank)
    assert pod.state()["generation"] == 2


def test_a_process_without_its_first_thread_lives(pod: Pod) -> None:
    pod.run(NO_MAIN_THREAD)
    rank = int(pod.file("up"))
    until(lambda: "Z" in Path(f"/proc/{rank}/stat").read_text(), what="the end of its first thread")
    assert is_running(rank)
    assert exits(pod.state()) == []
    assert rank in living(pod)
    pod.stopped(2)
    assert not is_running(rank)


def test_a_stray_without_its_first_thread_is_known_by_its_mark(tmp_path: Path) -> None:
    env = {**os.environ, "HOMEDIR": str(tmp_path), proc.POD: "stray"}
    with subprocess.Popen([sys.executable, "-c", NO_MAIN_THREAD], env=env) as stray:
        until(
            lambda: "Z" in Path(f"/proc/{stray.pid}/stat").read_text(),
            what="its first thread's end",
        )
        try:
            assert [s.pid for s in Members(tmp_path, "stray").find().living] == [stray.pid]
        finally:
            stray.kill()


UNREADABLE = """
import ctypes, os, sys, time
os.setsid()
ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: nobody but root may look at it
print("up", flush=True)
time.sleep(600)
"""


def test_who_may_not_be_asked_is_unknown_and_not_absent() -> None:
    """Only root, who may read every process, can make one: the look is then another user's."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    with subprocess.Popen(
        ["/usr/bin/env", "-i", "python3", "-I", "-c", UNREADABLE],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
        user=65534,
        cwd="/",
    ) as hidden:
        assert hidden.stdout is not None
        assert hidden.stdout.readline() == b"up\n"
        try:
            with tempfile.TemporaryDirectory(dir="/tmp") as home:  # that anybody may enter
                Path(home).chmod(0o755)
                since = proc.find(hidden.pid)
                assert since is not None
                (Path(home) / members.FILE).write_text(f"boot here {since.started}\ncgroup \n")
                assert _exit_code_of_search(Path(home), hidden.pid) == 0
                (Path(home) / members.FILE).write_text(f"boot here {since.started + 1}\ncgroup \n")
                assert _exit_code_of_search(Path(home), hidden.pid) == 4, "it is older than the pod"
        finally:
            hidden.kill()


def _exit_code_of_search(home: Path, expected_pid: int) -> int:
    """Return 0 if another user finds that process as unknown, and no process of the pod; else what failed."""
    looker = os.fork()
    if looker == 0:
        code = 3
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setuid(65534)
            members = Members(home, "somebody").find()
            unknown = [process.pid for process in members.unknown]
            code = 0 if members.members == [] and expected_pid in unknown else 4
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(looker, 0)[1])


def test_who_is_in_the_session_of_a_stranger_is_none_of_ours() -> None:
    this_process = proc.find(os.getpid())
    assert this_process is not None
    leader = this_process._replace(pid=1, session=1)
    child = this_process._replace(session=1)
    alone = this_process._replace(session=this_process.pid)
    table = {1: leader, this_process.pid: child}
    assert not members._may_belong(child, table, set())
    assert members._may_belong(alone, {this_process.pid: alone}, set())


def test_what_cannot_be_looked_at_is_not_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "PROC", tmp_path / "nothing")
    with pytest.raises(OSError, match="nothing"):
        Members(tmp_path, "somebody").find()


@pytest.mark.parametrize("number", [errno.ENODEV, errno.ENOENT])
def test_a_cgroup_that_is_removed_as_we_look_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def read(*_: object) -> str:
        raise OSError(number, os.strerror(number))

    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(Path, "read_text", read)
    assert [*members._in_cgroup(str(tmp_path))] == []


def test_a_cgroup_that_has_lost_its_files_but_not_yet_its_folder_is_empty(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "going").mkdir()
    assert [*members._in_cgroup(str(tmp_path / "going"))] == []


def test_a_cgroup_that_cannot_be_seen_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / members.FILE).write_text(f"boot here 0\ncgroup {tmp_path}/elsewhere\n")
    with pytest.raises(FileNotFoundError, match="cannot be seen"):
        Members(tmp_path, "somebody").find()


# -- Strangers ----------------------------------------------------------------------------------


@pytest.fixture
def stranger() -> Iterator[proc.Process]:
    """Another user's process, the leader of its session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        proc_entry = proc.find(process.pid)
        assert proc_entry is not None
        yield proc_entry
        process.kill()


def earlier(process: proc.Process) -> proc.Process:
    """Who had its number before."""
    return process._replace(started=process.started - 100)


@pytest.mark.parametrize("to_group", [False, True])
def test_a_signal_reaches_nobody_who_has_the_number_now(
    stranger: proc.Process, to_group: bool
) -> None:
    proc.send(earlier(stranger), signal.SIGKILL, to_group=to_group)
    proc.kill([earlier(stranger)])
    assert is_running(stranger.pid)
    proc.send(stranger, signal.SIGKILL, to_group=to_group)
    until(lambda: not is_running(stranger.pid), what="its end")


def test_who_has_a_written_number_now_is_no_member(stranger: proc.Process, tmp_path: Path) -> None:
    before = earlier(stranger)
    boot = members.numbering()
    (tmp_path / members.FILE).write_text(f"boot {boot} 0\n{before.pid} {before.started}\n")
    assert Members(tmp_path, "somebody").find().members == []
    (tmp_path / members.FILE).write_text(f"boot {boot} 0\n{stranger.pid} {stranger.started}\n")
    assert [s.pid for s in Members(tmp_path, "somebody").find().members] == [stranger.pid]


def test_a_group_whose_leader_is_a_stranger_is_not_signalled() -> None:
    """One of ours was started, and has no session of its own yet."""
    source = "import subprocess;print(subprocess.Popen(['sleep','600']).pid,flush=True);input()"
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        child = proc.find(int(leader.stdout.readline()))
        assert child is not None
        assert child.group == leader.pid
        proc.kill([child])
        until(lambda: not is_running(child.pid), what="its end")
        assert leader.poll() is None
        leader.kill()


ONE_ENDS_WELL = f"""{TELL}
import signal, sys, time
if os.environ["RANK"] == "0":
    time.sleep(1)
    sys.exit(0)
signal.signal(15, signal.SIG_IGN)
tell("up", 1)
while True: time.sleep(60)
"""


def pod_with_a_stranger(pod: Pod, generation: int) -> tuple[int, int, subprocess.Popen[bytes]]:
    """Its other rank, its warden, and who has the number of the rank that ended well, and a session of it."""
    (pod.home / "up").unlink(missing_ok=True)
    first, second = pod.runs(ONE_ENDS_WELL, ranks=2, generation=generation)
    pod.file("up")
    signal_to(pod.agent.pid, signal.SIGSTOP)  # what it knows of its ranks is old from now on
    until(lambda: not is_running(first), what="the end of the first rank")
    warden = warden_of(pod)
    signal_to(pod.agent.pid, signal.SIGCONT)
    until(lambda: proc.find(first) is None, what="its being waited for")
    stranger = stranger_with_number(first)
    if stranger is not None:
        return second, warden, stranger
    pod.stopped(generation + 1)
    return pod_with_a_stranger(pod, generation + 1)


def test_who_got_the_number_of_a_rank_is_spared_by_agent_and_warden(pod: Pod) -> None:
    rank, warden, stranger = pod_with_a_stranger(pod, 1)
    try:
        pod.stopped(1000, grace_s=0.2)
        assert not is_running(rank)
        assert stranger.poll() is None, "the agent"
        signal_to(pod.agent.pid, signal.SIGKILL)
        pod.agent.wait()
        until(lambda: not is_running(warden), what="the end of the warden")
        assert stranger.poll() is None, "the warden"
    finally:
        stranger.kill()
        stranger.wait()
