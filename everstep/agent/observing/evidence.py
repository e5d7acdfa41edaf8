"""What is kept of a run before its processes are ended: the stack of each rank, and its last lines.

py-spy reads the stack, if it is installed. Without it the process may print the stack itself: on the signal
named in EVERSTEP_STACK_SIGNAL, or on SIGABRT before a kill, if it has a handler for that (faulthandler).
Stopped processes are left alone: they cannot answer, and reading them would take for ever.
Where a rank is a shell, it is the script below it that is looked at.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

from everstep.agent.agent import EVIDENCE, Agent
from everstep.agent.future import in_thread
from everstep.agent.observing.hardware import which
from everstep.agent.processes import proc
from everstep.agent.processes.rank import Rank
from everstep.agent.processes.run import Run
from everstep.agent.processes.tool import ask
from everstep.agent.storage import files, permissions

KEPT_S = 0.9
"""Time limit of stacks before a kill."""
STACKS_S = 5.0
"""Time limit of stacks that a person wants to read."""
QUIET_S = 0.1
"""After this time without output a process has printed its stack."""
POLL_S = 0.01
SIGNAL = "EVERSTEP_STACK_SIGNAL"
PY_SPY = "py-spy"


class EvidenceCollector:
    """Looks at the ranks of an agent. Each look has a thread of its own."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def keep(self, run: Run, grace_s: float, then: Callable[[], None]) -> None:
        """Write stacks and last lines into the agent's folder; afterwards the loop calls `then`."""

        def work() -> None:
            path = self._keep(run, may_end=grace_s <= 0)
            self._agent.loop.hand_over(lambda: finish(path))

        def finish(path: str | None) -> None:
            self._agent.evidence = path or self._agent.evidence
            then()

        threading.Thread(target=work, daemon=True).start()

    def _keep(self, run: Run, *, may_end: bool) -> str | None:
        home = self._agent.home
        folder = home / EVIDENCE / f"g{run.generation}"
        lines_by_rank = {rank.number: rank.log.recent_lines() for rank in run.ranks}
        try:
            permissions.ensure_below(home, folder)
            for number, lines in lines_by_rank.items():
                files.replace(folder / f"r{number}.log", "\n".join(lines) + "\n", within=home)
            ending = [rank for rank in run.ranks if rank.is_alive and rank.is_to_end]
            stacks = self._stacks(run, ending, KEPT_S, may_end=may_end)
            for rank in ending:
                text = stacks.get(rank.number) or _without_stack(rank)
                files.replace(folder / f"r{rank.number}.stacks", text, within=home)
        except OSError:
            return str(folder) if folder.is_dir() else None
        return str(folder)

    def stacks(self, run: Run, within_s: float) -> dict[int, str]:
        """Stack traces of the living ranks that can be read, collected from all of them at once."""
        living = [rank for rank in run.ranks if rank.is_alive]
        return self._stacks(run, living, within_s, may_end=False)

    def _stacks(
        self, run: Run, ranks: list[Rank], within_s: float, *, may_end: bool
    ) -> dict[int, str]:
        """`may_end`: the ranks are killed next, so that a signal may be used which could end them."""
        requests = {
            rank.number: in_thread(partial(self._stack, run, rank, within_s, may_end=may_end))
            for rank in ranks
        }
        deadline, texts = time.monotonic() + within_s, {}
        for number, request in requests.items():
            # It fails, or takes too long: no stack of that rank.
            with contextlib.suppress(Exception):
                texts[number] = request.result(max(0.0, deadline - time.monotonic()))
        return {number: text for number, text in texts.items() if text}

    def _stack(self, run: Run, rank: Rank, within_s: float, *, may_end: bool) -> str:
        process = proc.script_of(rank.pid)
        if process is None or not process.is_alive:
            return ""
        if process.is_stopped:
            return f"process {process.pid} is stopped\n"
        spy = which(PY_SPY, path=run.command["env"].get("PATH")) or which(PY_SPY)
        if spy is not None and (text := _by_spy(spy, process.pid, within_s)):
            return text
        number = _signal_of(run, rank, process.pid, may_end=may_end)
        if number == signal.SIGABRT:
            _prevent_core(process.pid)
        return self._by_signal(rank, process, number, within_s) if number is not None else ""

    def _by_signal(self, rank: Rank, process: proc.Process, number: int, within_s: float) -> str:
        """What the process writes after the signal, until it has been quiet for a moment."""
        before, signalled_at = rank.log.written, time.monotonic()
        proc.send(process, number)
        written, changed = before, signalled_at
        while time.monotonic() - signalled_at < within_s - POLL_S:
            time.sleep(POLL_S)
            if rank.log.written != written:
                written, changed = rank.log.written, time.monotonic()
            elif written != before and time.monotonic() - changed > QUIET_S:
                break
        return rank.log.newest(written - before).decode(errors="replace")


def _prevent_core(pid: int) -> None:
    """The signal would write the memory of the process to disk."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def _without_stack(rank: Rank) -> str:
    """What is known of a rank whose stack cannot be read."""
    pid, where = rank.pid, ""
    with contextlib.suppress(OSError):
        script = proc.script_of(pid)
        pid = pid if script is None else script.pid
        where = (proc.PROC / str(pid) / "wchan").read_text().strip("0\n")
    waits = f", which waits in the kernel's {where}" if where else ""
    return (
        f"no stack of process {pid}{waits}: install py-spy where it runs, or have its Python"
        " code call faulthandler.enable()\n"
    )


def _by_spy(spy: str, pid: int, within_s: float) -> str:
    with contextlib.suppress(OSError):
        return ask((spy, "dump", "--pid", str(pid)), within_s=within_s, running=set()).stdout
    return ""


def _signal_of(run: Run, rank: Rank, pid: int, *, may_end: bool) -> int | None:
    """The signal that makes this process of the rank print its stacks, if it has a handler for it."""
    name = {**run.command["env"], **rank.env}.get(SIGNAL)
    if name is not None:
        number = getattr(signal, name, None)
        return number if number is not None and proc.has_handler(pid, number) else None
    return signal.SIGABRT if may_end and proc.has_handler(pid, signal.SIGABRT) else None
