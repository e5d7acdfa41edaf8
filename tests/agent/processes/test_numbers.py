"""The kernel gives the number of a process that has ended to another one."""

from __future__ import annotations

from pathlib import Path

from everstep.agent import commands
from everstep.agent.processes.run import Run

RANKS = [{"rank": rank, "local_rank": rank, "env": {}} for rank in range(2)]
COMMAND = {"generation": 1, "command": ["true"], "workdir": "/", "ranks": RANKS}


def test_an_orphan_with_the_number_of_a_rank_that_has_ended_is_not_that_rank(
    tmp_path: Path,
) -> None:
    """Its exit code would count as that of the rank, and restart the others, which train."""
    run = Run(commands.run_command(COMMAND), tmp_path, ordered_at=0.0)
    first, second = run.ranks
    first.pid, second.pid = 100, 101
    assert run.living_with_pid(100) is first
    first.exited_at = 5.0
    assert run.living_with_pid(100) is None
    assert run.living_with_pid(101) is second
