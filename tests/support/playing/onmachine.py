"""Plays the course of a scenario on this machine, with the local backend."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client

from everstep.backends.agents.client.link import NoAnswer
from everstep.backends.fake import faults as fake_faults
from everstep.backends.fault_lines import FaultLine
from everstep.backends.local import clock
from everstep.backends.local.database import identity, placing, pods
from everstep.backends.local.database.placing import Transaction
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.faults import LocalScene, carry_out, parse_fault, ranks_of_all
from everstep.backends.local.reconciling.agents import AgentFolder, kill_agent
from everstep.backends.local.reconciling.liveness import Life, shut, sweep
from everstep.backends.local.settings import LocalSettings
from everstep.core.seeing.hang import FLOOR_S
from everstep.protocol import wire
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.playing.course import Course, UnstartedPod
from tests.support.playing.doors import held
from tests.support.playing.on_processes import EVERY, SCRIPT, STILL_S, OnProcesses
from tests.support.playing.scenario import JOB, Scenario
from tests.support.workerproc import WorkerProcess

REQUEUE_S = 1_800.0  # the longest limit: half an hour for a place


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast the job goes here, and how long it waits for things; nothing of it is compared."""

    step_s: float = 0.01
    time_scale: float
    limits: Mapping[str, float]

    @classmethod
    def of(cls, scenario: Scenario, course: Course) -> Pace:
        spec, limits = scenario.document["spec"], {}
        nodes = spec["nodes"]["wanted"] if isinstance(spec["nodes"], dict) else spec["nodes"]
        if scenario.nodes <= nodes:
            limits["spare_s"] = 2.0  # there is no spare, or only one that is broken
        if hang_s := spec.get("limits", {}).get("hang_s"):
            # Ranks stand at gates while we break things, which takes its time on a busy machine.
            return cls(time_scale=hang_s / STILL_S, limits=limits)
        broken = " ".join(fault.text for fault in scenario.faults)
        if " silence " in broken and " hang " in broken:
            # That an agent of which nothing is expected fell silent is noticed after some seconds.
            return cls(time_scale=1.0, limits={**limits, "unreachable_s": 15.0})
        if " silence " in broken:
            # The others have to go on for longer than this, as they do on the fake cluster; so much
            # time, too, has whoever wants to see the job before it notices.
            step_s = STILL_S / 60
            return cls(step_s=step_s, time_scale=1.0, limits={**limits, "unreachable_s": STILL_S})
        if " hang " in broken:
            return cls(time_scale=FLOOR_S / STILL_S, limits=limits)
        # Nobody hangs here but whoever stands at a gate until we have done what we came for.
        scale = REQUEUE_S / STILL_S if course.ends_long_after else 10.0
        return cls(time_scale=scale, limits={**limits, "hang_s": scale * HUNG_S})


class OnMachine(OnProcesses):
    """Plays on real processes with one state directory."""

    cluster_name = "local"

    def __init__(self, server: DevServer, client: Client, home: Path) -> None:
        super().__init__(server, client, home)
        self.settings = LocalSettings(home=home)
        self.store = Store(self.settings.database)
        self.held: dict[Path, int] = {}

    def _worker(self, scenario: Scenario, course: Course) -> WorkerProcess:
        return WorkerProcess(
            address=self.server.address,
            namespace=self.client.namespace,
            home=self.home,
            backend="local",
            env={
                "EVERSTEP_NODES": str(scenario.nodes),
                "EVERSTEP_DEVICES": str(scenario.devices),
                "EVERSTEP_TIME_SCALE": str(Pace.of(scenario, course).time_scale),
                "EVERSTEP_JANITOR": "false",
            },
        )

    async def _prepare(self, scenario: Scenario) -> None:
        self.cluster = await self.store.run(identity.identity)
        await self._shorten_heals(scenario)

    def _spec(self, scenario: Scenario, course: Course) -> Mapping[str, Any]:
        pace = Pace.of(scenario, course)
        model_dir = self.home / "out"
        env = {
            "CONTROL": str(self.control),
            "CHECKPOINTS": str(model_dir / "ckpt"),
            "CHECKPOINT_EVERY": str(EVERY),
            "STEP_S": str(pace.step_s),
        }
        return {
            "command": [sys.executable, "-I", "-S", str(SCRIPT)],
            "model_dir": str(model_dir),
            "checkpoints": {"path": str(model_dir / "ckpt")},
            "env": env,
            "limits": {**pace.limits, **scenario.document["spec"].get("limits", {})},
        }

    async def _newest_saved(self) -> Sequence[int | None]:
        return [await self._saved(uid) for uid in await self._uids()]

    async def _saved(self, uid: str) -> int | None:
        try:
            state = await self.settings.folder(uid).request(
                "GET", f"{wire.STATE}?since=-1&wait_s=0"
            )
        except NoAnswer:
            return None
        saved = state["run"] and state["run"]["checkpoint"]
        return int(saved["step"]) if saved else None

    async def _uids(self) -> list[str]:
        job_pods = await self.store.run(lambda db: pods.of_job(db, JOB))
        return [pod.uid for pod in job_pods]

    async def _is_placed(self, pod: UnstartedPod) -> bool:
        return self._uid(pod) in await self._uids()

    def _uid(self, pod: UnstartedPod) -> str:
        return f"{placing.pod_name(JOB, pod.slot, pod.generation)}-{self.cluster}"

    async def _hold(self, unstarted: tuple[UnstartedPod, ...]) -> None:
        """No agent begins in these pods."""
        for pod in unstarted:
            folder = self.settings.folder(self._uid(pod)).path
            if folder not in self.held:
                self.held[folder] = held(folder)

    async def _let_in(self, unstarted: tuple[UnstartedPod, ...]) -> None:
        for pod in unstarted:
            lock = self.held.pop(self.settings.folder(self._uid(pod)).path, None)
            if lock is not None:
                os.close(lock)

    async def _happen(self, faults: Sequence[FaultLine]) -> None:
        """All at one moment: in one transaction of the books, whatever is done to processes besides."""
        unscripted = [fault for fault in faults if _has_no_word(fault)]
        rest = [
            parse_fault(_without_time(fault.line)) for fault in faults if fault not in unscripted
        ]
        offset = await self.store.run(clock.anchor)
        ranks = await ranks_of_all(self.settings, await self._uids())

        def work(db: Db) -> None:
            moment = Transaction(db=db, settings=self.settings, now=clock.now(offset))
            for fault in rest:
                carry_out(LocalScene(transaction=moment, ranks=ranks), fault)

        if rest:
            await self.store.run(work)
        for fault in unscripted:
            await (self._exit(fault) if fault.name == "kill" else self._silence(fault))

    async def _silence(self, fault: FaultLine) -> None:
        """The agents of this node are unreachable from now on; they and their ranks go on.

        Without the token no request is sent over a connection that is open already.
        """
        for pod in await self.store.run(lambda db: pods.of_job(db, JOB)):
            if pod.node == fault.words[0]:
                for way in (wire.SOCKET, wire.TOKEN):
                    there = self.settings.folder(pod.uid).path / way
                    away = there.with_name(f"{way}.away")
                    ways = (there, away) if fault.name == "silence" else (away, there)
                    ways[0].rename(ways[1])

    async def _shorten_heals(self, scenario: Scenario) -> None:
        faults = [fake_faults.parse_fault(fault.text) for fault in scenario.faults]
        words = {fault.words[:2] for fault in faults if fault.name == "heal-takes"}
        broken = {fault.words[:2] for fault in faults if fault.name == "device"} - words
        await self._break([f"heal-takes {node} {index} 0.2s" for node, index in sorted(broken)])

    async def _left(self) -> Sequence[str]:
        return await self.store.run(_still_there)

    async def _clean_up(self) -> None:
        for lock in self.held.values():
            os.close(lock)
        self.store.close()
        for path in self.settings.agents.glob("*"):
            folder = AgentFolder(path=path)
            shut(folder.path)
            while {folder.life(), sweep(path)} != {Life.GONE}:
                kill_agent(folder)


def _still_there(db: Db) -> list[str]:
    """Reachable pods."""
    return [pod.uid for pod in pods.all_pods(db) if pod.service != "cut_off"]


def _has_no_word(fault: FaultLine) -> bool:
    """What `everstep fault` does not do: an exit of a rank's own, an agent that falls silent."""
    return "exit" in fault.options or fault.name in ("silence", "unsilence")


def _without_time(line: str) -> str:
    words = line.split()
    if words[:2] == ["at", "step"]:
        return " ".join(words[5:])
    return " ".join(words[2:]) if words[0] == "at" else line
