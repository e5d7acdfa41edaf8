"""Processes that carry the mark of a pod."""

from __future__ import annotations

from everstep.agent.processes import namespace, proc


def marked(uid: str) -> list[int]:
    """Those that run."""
    mark = f"{proc.POD}={uid}".encode()
    living = [pid for pid, process in proc.all_processes().items() if process.is_alive]
    return sorted(pid for pid in living if mark in (proc.environment(pid) or b"").split(b"\0"))


def process_of(uid: str, number: int) -> int | None:
    """The process of the pod that has this number where the pod sees it; None if it does not run."""
    inside = {namespace.number_inside(pid): pid for pid in marked(uid)}
    return inside.get(number)
