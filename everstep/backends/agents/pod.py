"""A pod of a cluster of agents, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.backends.rules.nodes import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One place of a job on a node, with what the cluster reports of both."""

    uid: str
    job: str
    slot: int
    node: str
    generation: int  # that made it
    devices: tuple[int, ...] = ()
    is_leaving: bool = False  # it was ordered to end
    is_deleted: bool = False  # others than Everstep end it, after the time that it has to
    dead_sidecars: tuple[str, ...] = ()  # containers that failed beside that of the agent
    is_lost: bool = False  # its agent ended, proven
    has_answered: bool = (
        False  # its agent did once, to any worker: its absence is an end, not a late start
    )
    dead_at: float | None = None  # since then no process of it runs, proven
    service: Service = "ready"  # of its node
    since: float | None = None  # when the service of its node changed

    @property
    def is_out(self) -> bool:
        """Whether its agent can never answer again."""
        return self.is_lost or self.service == "down"

    @property
    def cut_off_since(self) -> float | None:
        return self.since if self.service == "cut_off" else None

    def __str__(self) -> str:
        return f"{self.uid} on {self.node}"
