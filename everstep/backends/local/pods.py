"""The local cluster's pods as a port: agents in folders of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from everstep.backends.agents.client.link import Link
from everstep.backends.agents.commands import ranks
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import Pods
from everstep.backends.local.reconciling import liveness
from everstep.backends.local.reconciling.liveness import Life
from everstep.backends.local.settings import HOST, LocalSettings
from everstep.processes import free_port
from everstep.protocol import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPods(Pods):
    """The pods of this machine, each with its agent in a folder."""

    settings: LocalSettings
    cut_off: Callable[[str], bool]  # whether an operator cut off the node of this pod

    def link(self, uid: str) -> Link:
        return self.settings.folder(uid).link()

    def is_gone(self, uid: str) -> bool:
        return self.settings.folder(uid).life() is Life.GONE

    def is_cut_off(self, uid: str) -> bool:
        return self.cut_off(uid)

    async def have_ended(self, pod: Pod) -> bool:
        return liveness.of_processes(self.settings.folder(pod.uid).path) is Life.GONE

    async def end(self, pod: Pod) -> bool:
        return liveness.sweep(self.settings.folder(pod.uid).path) is Life.GONE

    def host(self, _pod: Pod | None) -> str:
        return HOST

    def address(self, pod: Pod) -> str | None:
        return f"unix:{self.settings.folder(pod.uid).path}"

    def check_hosts(self, _pods: Sequence[Pod]) -> tuple[str, ...]:
        return ("localhost", HOST)

    def free_port(self) -> int:
        return free_port()

    def place(self, pod: Pod, accelerator: str) -> ranks.RunPlace:
        return ranks.RunPlace(
            uid=pod.uid,
            agent=str(self.settings.folder(pod.uid).path / wire.SOCKET),
            devices=pod.devices,
            accelerator=self.settings.kind(accelerator),
            metrics=str(self.settings.metrics(pod.node)),
        )

    def accelerator(self, requested: str) -> str:
        return self.settings.accelerator if requested == "simulated" else requested
