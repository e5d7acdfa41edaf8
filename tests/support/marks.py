"""Processes that carry the mark of a pod."""

from __future__ import annotations

from everstep.agent.processes import proc


def marked(uid: str) -> list[int]:
    """Those that run."""
    mark = f"{proc.POD}={uid}".encode()
    living = [pid for pid, seen in proc.everybody().items() if seen.is_alive]
    return sorted(pid for pid in living if mark in (proc.environment(pid) or b"").split(b"\0"))
