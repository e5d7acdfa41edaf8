"""One real agent in a folder of the test's own, and a plain client for it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everstep.agent.processes import proc
from everstep.agent.processes.members import Members, remove_cgroups
from everstep.protocol import wire
from tests.support.marks import marked
from tests.support.patience import HUNG_S

PYTHON = os.environ.get("AGENT_PYTHON", sys.executable)
"""The interpreter of the agent: `make test-agent39` has another one."""
LIBRARIES = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
"""Where it finds its libraries: it also takes the first steps of each rank, in the environment of that."""

TOKEN = "secret"

POLL_S = 20.0
"""How long an undisturbed poll takes: an answer that comes sooner was woken."""


def until(
    holds: Callable[[], bool], *, what: str = "it", within_s: float = HUNG_S, look_s: float = 0.01
) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(look_s)  # neither a process nor a file tells; it is looked at again soon


def is_running(pid: int) -> bool:
    """Whether any code of it can still be carried out: one that is ending has no memory any more."""
    process = proc.find(pid)
    return process is not None and process.is_alive and _has_memory(pid)


def _has_memory(pid: int) -> bool:
    """Any thread of it: the first one may have ended before the others."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if not (thread / "statm").read_text().startswith("0 "):
                    return True
    return False


class Refused(Exception):
    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class Connection(http.client.HTTPConnection):
    """A connection over a unix socket."""

    def __init__(self, home: Path) -> None:
        super().__init__("agent", timeout=HUNG_S + 10)
        self.home = home

    def connect(self) -> None:
        handle = os.open(self.home, os.O_PATH | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{handle}/{wire.SOCKET}")
        finally:
            os.close(handle)


class Pod:
    """A pod's folder, and the agents that were started in it."""

    def __init__(self, pyz: Path, home: Path, uid: str) -> None:
        self.pyz = pyz
        self.home = home
        self.uid = uid
        self.agents: list[subprocess.Popen[bytes]] = []
        home.mkdir(parents=True, exist_ok=True)
        (home / wire.TOKEN).write_text(TOKEN)

    # -- the agent --------------------------------------------------------------------------------

    def launch(self, *more: str, flags: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """`more` are arguments of the agent, `flags` some of its interpreter."""
        arguments = ("--home", str(self.home), "--job", "demo", "--slot", "0", "--node", "n0")
        with (self.home / "agent.log").open("ab") as log:
            agent = subprocess.Popen(
                [PYTHON, "-I", "-S", *flags, str(self.pyz), *arguments, "--uid", self.uid, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.agents.append(agent)
        return agent

    def start(self, *more: str) -> Pod:
        agent = self.launch(*more)
        until(lambda: self.answers() or agent.poll() is not None, what="an answer")
        assert agent.poll() is None, self.log_text()
        return self

    @property
    def agent(self) -> subprocess.Popen[bytes]:
        return self.agents[-1]

    def log_text(self) -> str:
        return (self.home / "agent.log").read_text()

    def answers(self) -> bool:
        try:
            self.state()
        except OSError:
            return False
        return True

    def end(self) -> None:
        """Nothing of it is left, whatever the test did."""
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
            agent.wait()
        # Its warden is no child of ours and carries no mark; it ends once it has nothing to guard.
        until(lambda: not self.left(), what="the end of everything")
        until(lambda: remove_cgroups(self.home), what="the removal of its cgroups")

    def left(self) -> list[proc.Process]:
        processes = Members(self.home, self.uid).find().living
        proc.kill(processes)
        return processes

    def marked(self) -> list[int]:
        """Every running process that carries the pod's mark."""
        return marked(self.uid)

    # -- requests ---------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = TOKEN,
        raw: bytes | None = None,
    ) -> Any:
        connection = Connection(self.home)
        try:
            payload = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            answer = json.loads(response.read())
        except http.client.HTTPException as error:
            raise OSError(repr(error)) from None
        finally:
            connection.close()
        if response.status != 200:
            raise Refused(response.status, answer)
        return answer

    def state(self, since: int = -1, wait_s: float = 0.0) -> wire.AgentState:
        state: wire.AgentState = self.ask("GET", f"{wire.STATE}?since={since}&wait_s={wait_s}")
        return state

    def quietly(self, since: int, *, quiet_s: float) -> wire.AgentState:
        """Poll a state that reports progress of training only after this time."""
        path = f"{wire.STATE}?since={since}&wait_s=25&quiet_s={quiet_s}"
        state: wire.AgentState = self.ask("GET", path)
        return state

    def until(
        self, holds: Callable[[wire.AgentState], object], *, within_s: float = HUNG_S
    ) -> wire.AgentState:
        """The first state that is so, by long polls."""
        deadline = time.monotonic() + within_s
        state = self.state()
        while not holds(state):
            left = deadline - time.monotonic()
            assert left > 0, f"did not come true: {json.dumps(state, indent=1)[-3000:]}"
            state = self.state(state["version"], min(left, POLL_S))
        return state

    def run(
        self,
        script: str | Sequence[str],
        *,
        generation: int = 1,
        ranks: int = 1,
        env: dict[str, str] | None = None,
        **more: Any,
    ) -> wire.AgentState:
        """Run Python source (or a command) once per rank."""
        command = [sys.executable, "-c", script] if isinstance(script, str) else list(script)
        environment = {
            **LIBRARIES,
            "PATH": os.environ["PATH"],
            "PYTHONUNBUFFERED": "1",
            "HOMEDIR": str(self.home),
            "EVERSTEP_POD": self.uid,
            "EVERSTEP_GENERATION": str(generation),
            **(env or {}),
        }
        body = {
            "generation": generation,
            "phase": "main",
            "command": command,
            "env": environment,
            "workdir": str(self.home),
            "ranks": [{"rank": n, "local_rank": n, "env": {"RANK": str(n)}} for n in range(ranks)],
            "stop_siblings": True,
            "counts": {"schedule_count": 1},
            **more,
        }
        state: wire.AgentState = self.ask("POST", wire.RUN, body)
        return state

    def runs(self, script: str | Sequence[str], *, generation: int = 1, **more: Any) -> list[int]:
        """Started: the pids of the ranks. The answer to a command may still show an older run."""
        self.run(script, generation=generation, **more)
        state = self.until(lambda s: is_up(s["run"], generation))
        assert state["run"] is not None
        assert state["run"]["failed"] is None
        return [rank["pid"] for rank in state["run"]["ranks"]]

    def stop(
        self,
        generation: int,
        *,
        grace_s: float = 0.0,
        evidence: bool = False,
        keep: Sequence[int] = (),
        hold_s: float = 0.0,
    ) -> wire.AgentState:
        body = {"generation": generation, "grace_s": grace_s, "evidence": evidence}
        command = {**body, "keep": [*keep], "hold_s": hold_s}
        state: wire.AgentState = self.ask("POST", wire.STOP, command)
        return state

    def stopped(
        self, generation: int, *, grace_s: float = 0.0, evidence: bool = False
    ) -> wire.AgentState:
        """Stopped, and proven."""
        self.stop(generation, grace_s=grace_s, evidence=evidence)
        return self.until(lambda state: state["stopped_below"] >= generation)

    def file(self, name: str) -> str:
        """What a rank wrote into a file of this name, once it has."""
        path = self.home / name
        until(lambda: path.exists() and path.read_text().endswith("\n"), what=name)
        return path.read_text().strip()

    def log(self, rank: int = 0, *, offset: int = 0, generation: int = 1) -> str:
        path = f"{wire.LOG}?rank={rank}&generation={generation}&offset={offset}"
        return str(self.ask("GET", path)["text"])


def is_up(run: wire.RunSeen | None, generation: int) -> bool:
    return (
        run is not None
        and run["generation"] == generation
        and (run["started_at"] is not None or run["failed"] is not None)
    )


def exits(state: wire.AgentState) -> list[wire.FactSeen]:
    return [fact for fact in state["facts"] if fact["kind"] == "process.exit"]


def signal_to(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


FOREVER = "import time\nwhile True: time.sleep(60)\n"
"""A rank that lives until it is ended."""

TELL = """
import os
def tell(name, text):
    path = os.path.join(os.environ["HOMEDIR"], name)
    with open(path + ".part", "w") as file:
        file.write(str(text) + "\\n")
    os.rename(path + ".part", path)
"""

DAEMON = f"""{TELL}
import time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        tell("escaped", os.getpid())
        while True: time.sleep(60)
    os._exit(0)
os.wait()
while True: time.sleep(60)
"""
"""A rank that lives on, with a process of a session of its own, whose parent is gone."""
