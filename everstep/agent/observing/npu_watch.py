"""Applies MindCluster's rule for a hung NPU to the devices of a pod, and reports what it finds.

What a device shows of its cores, memory and traffic is read from the file of `devices.hang_signs`; its
processes and their processor time are those of the pod. A device that the file lacks is not watched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from everstep.agent import clock
from everstep.agent.agent import Agent
from everstep.agent.observing import devices
from everstep.agent.observing.devices import HangSigns
from everstep.agent.observing.npu_hang import CODE, DEFAULTS, HangWatch, NpuSample
from everstep.agent.processes.run import Run

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class NpuWatch:
    """Looks at every device of the newest run, as often as its command says."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._watches: Mapping[str, HangWatch] = {}
        self._polled_at = time.monotonic()
        self._next = 0.0

    def poll(self) -> None:
        run, now = self._agent.run, time.monotonic()
        if run is None or now < self._next:
            return
        self._next = now + run.command["npu_look_s"]
        node_signs = devices.hang_signs(run.command["metrics"])
        indices = [str(index) for index in run.command["devices"]]
        pod_signs = {index: node_signs[index] for index in indices if index in node_signs}
        before, self._watches = self._watches, self._after(run, pod_signs, now - self._polled_at)
        self._polled_at = now
        self._report(before)

    def _after(
        self, run: Run, pod_signs: Mapping[str, HangSigns], elapsed_s: float
    ) -> Mapping[str, HangWatch]:
        """The watches after one more sample of each device."""
        if not pod_signs:
            return {}
        pids = frozenset(rank.pid for rank in run.ranks if rank.is_alive)
        cpu_s = sum(process.cpu for process in self._agent.population.sample()) / TICKS_A_SECOND
        limits = DEFAULTS.within(elapsed_s)
        return {
            index: self._watches.get(index, HangWatch()).after(
                NpuSample(
                    pids=pids,
                    ai_core_percent=signs.ai_core_percent,
                    hbm_used=signs.memory_mb,
                    packets=signs.packets,
                    cpu_s=cpu_s,
                ),
                limits,
            )
            for index, signs in pod_signs.items()
        }

    def _report(self, before: Mapping[str, HangWatch]) -> None:
        """A fact for each device that hangs since this look, and for each that does no more."""
        hung, was_hung = _hung(self._watches), _hung(before)
        for index in sorted(hung - was_hung):
            self._report_fact("device.fault", index, "shows no work five times in a row")
        for index in sorted(was_hung - hung):
            self._report_fact("device.healed", index, "works again")
        if hung != was_hung:
            self._agent.save_state()
            self._agent.publish()

    def _report_fact(self, kind: str, index: str, message: str) -> None:
        text = f"{self._agent.node}/{index} {message}"
        self._agent.add_fact(kind, text, at=clock.now(), device=int(index), code=CODE)


def _hung(watches: Mapping[str, HangWatch]) -> set[str]:
    return {index for index, watch in watches.items() if watch.is_hung}
