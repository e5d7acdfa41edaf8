"""What is true of nodes and jobs in a simulation, and how it shows: mishaps become faults of the cluster.

A node that is sick stays so until its repair, and every job that trains there meets the
fault again. An operator does what operators do: releases a repaired node, looks at an isolated one, names a
node after a stress test, mends a script. No policy reads anything here, except the oracle.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

from everstep.backends.fake.faults import inject, parse_fault
from everstep.backends.fake.settings import EPOCH
from everstep.backends.fake.simulated import processes
from everstep.backends.fake.simulated.model import Job, Pod
from everstep.backends.fake.simulated.training import Training
from everstep.core.facts import COLLECTIVE
from everstep.simulate.cluster import SimulatedCluster
from everstep.simulate.fault_classes import HOUR_S, MINUTE_S, Effect, row_named
from everstep.simulate.mishaps import Mishap

INSPECT_S = 24 * HOUR_S
"""An operator looks at an isolated node after so long, and releases it if it is sound."""
RESET_S = 10 * MINUTE_S
"""A device of a node without a job is reset after so long, and a wrong report of one is taken back."""
NOTICE_S = HOUR_S
"""Between the notice of a maintenance and its begin."""
MENDED_S = 8 * HOUR_S
"""A person notices after so long that a script fails again and again, and mends it while the job runs."""
COLLECTIVE_S = 31 * MINUTE_S
"""A rank that waits so long for one that hangs ends by itself, where nothing ended it before.

The default time-out of a collective operation in MindCluster is 30 minutes, then all ranks end.
"""
SLOWER = 0.1

HEALS_CODE, FATAL_CODE = "sim-heals", "sim-fatal"
"""Codes that no catalogue has: a fault means what its severity says."""


@dataclass(slots=True, kw_only=True, eq=False)
class Cause:
    """The cause of a mishap, as long as it is there."""

    mishap: Mishap
    node: str = ""  # none: the script's
    step: int = 0  # at which a script fails, whenever it comes there
    times: int = 0  # that a node failed a run again

    def again_at(self, training: Training) -> float:
        """When it ends this run too: a script before the same step is completed, a node by chance."""
        assert training.first_at is not None
        if not self.node:
            step = max(self.step, training.resume + 1)
            return training.time_of(step) - training.script.step_s / 2
        self.times += 1
        if self.times == 1:
            return training.first_at + self.mishap.again_s
        chance = Random(f"{self.mishap.at_s}/{self.times}")  # no secret
        return training.first_at + chance.expovariate(1 / row_named(self.mishap.name).again_s)


class World:
    """The truth about one cluster."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        mishaps: tuple[Mishap, ...],
        *,
        release: Callable[[str], None],
        has_true_facts: bool = False,
        releases: bool = True,
        probation_s: float | None = None,
    ) -> None:
        """`release` lifts an isolation. `has_true_facts`: facts are true, complete and at once."""
        self._cluster = cluster
        self._release = release
        self._has_true_facts = has_true_facts
        self._releases = releases
        self._probation_s = probation_s
        self.lines: list[str] = []  # what happened, as lines of a scenario
        self.sick: dict[str, Cause] = {}  # by node
        self.bugs: dict[str, Cause] = {}  # by job
        self._nodes_shown: dict[str, set[str]] = {}  # by job: nodes that ended a run of it
        self.causes_shown: dict[str, list[Mishap]] = {}  # by job: since its last steps began
        self.slow_s: dict[str, float] = {}  # by job: time lost to slow nodes
        self.healthy_isolated_s = 0.0
        self._isolated_at: dict[str, float] = {}  # sound nodes alone
        cluster.state.steps_began = self._steps_began
        for mishap in mishaps:
            self._at(mishap.at_s, partial(self._happen, mishap))

    def _at(self, at_s: float, do: Callable[[], None]) -> None:
        self._cluster.state.time.at(EPOCH + at_s, do)

    def _fault(self, line: str) -> None:
        """Carry out a fault line. One that finds its rank gone does nothing."""
        self._note_line(line)
        with suppress(ValueError):
            inject(self._cluster.state, parse_fault(line))

    def _note_line(self, line: str) -> None:
        self.lines.append(f"at {self._cluster.now_s:.6f}s {line}")

    # -- isolation: what it costs -----------------------------------------------------------------

    def note_isolated(self, name: str) -> None:
        """Note that a node, or a device of it, was isolated."""
        node = name.partition("/")[0]
        if node not in self.sick:
            self._isolated_at.setdefault(node, self._cluster.now_s)
        if self._probation_s is not None:
            self._at(self._cluster.now_s + self._probation_s, partial(self._let_back, node))
        self._at(self._cluster.now_s + INSPECT_S, partial(self._inspect, node))

    def note_released(self, name: str) -> None:
        self._count_isolated(name.partition("/")[0])

    def _count_isolated(self, node: str) -> None:
        since = self._isolated_at.pop(node, None)
        if since is not None:
            self.healthy_isolated_s += self._cluster.now_s - since

    def end(self) -> None:
        """Count what is still isolated at the end."""
        for node in tuple(self._isolated_at):
            self._count_isolated(node)

    def healthy_isolated(self) -> int:
        """How many sound nodes are isolated now."""
        return len(self._isolated_at)

    def _inspect(self, node: str) -> None:
        if self._releases and node not in self.sick and self._is_isolated(node):
            self._let_back(node)

    def _let_back(self, node: str) -> None:
        """An operator, or the end of a probation, lifts the isolation of the node and its devices."""
        names = [n for n in self._cluster.state.isolated if n.partition("/")[0] == node]
        for name in names:
            self._note_line(f"release {name}")
            self.note_released(name)
            self._release(name)

    def _is_isolated(self, node: str) -> bool:
        return any(name.partition("/")[0] == node for name in self._cluster.state.isolated)

    # -- nodes ------------------------------------------------------------------------------------

    def _sicken(self, node: str, mishap: Mishap) -> None:
        """The node is sick until its repair; one that is sick already stays so until the later end."""
        before = self.sick.get(node)
        self._count_isolated(node)
        cause = Cause(mishap=mishap, node=node)
        until_s = max(mishap.sound_s, 0.0) + mishap.at_s
        if before is not None and before.mishap.at_s + before.mishap.sound_s > until_s:
            return
        self.sick[node] = cause
        self._at(max(until_s, self._cluster.now_s), partial(self._repaired, cause))

    def _repaired(self, cause: Cause) -> None:
        if self.sick.get(cause.node) is not cause:
            return
        del self.sick[cause.node]
        self._fault(f"clear {cause.node}")
        if self._is_isolated(cause.node):
            if self._releases:
                self._let_back(cause.node)
            else:
                self._isolated_at.setdefault(cause.node, self._cluster.now_s)

    # -- mishaps --------------------------------------------------------------------------------

    def _happen(self, mishap: Mishap) -> None:
        EFFECTS[mishap.effect](self, mishap)

    def _note_shown(self, mishap: Mishap, nodes: tuple[str, ...]) -> None:
        for job in self._jobs():
            if any(pod.node.name in nodes for pod in job.pods.values()):
                self.causes_shown.setdefault(job.id, []).append(mishap)

    def _jobs(self) -> list[Job]:
        return [job for job in self._cluster.state.jobs.values() if job.pods]

    def device(self, mishap: Mishap) -> None:
        (node,) = mishap.nodes
        if node in self.sick:
            return
        if mishap.is_cured:
            self._stop_on(node, mishap)
            self._later(mishap, partial(self._report_device, node, heals=True))
            self._at(self._cluster.now_s + RESET_S, partial(self._no_longer, node))
            return
        self._sicken(node, mishap)
        self._stop_on(node, mishap)
        if not mishap.is_hidden or self._has_true_facts:
            severity_heals = mishap.name == "node_selfheal_hw"
            report = partial(self._report_device, node, heals=False, tries=severity_heals)
            self._later(mishap, partial(self._if_sick, node, report))

    def _if_sick(self, node: str, do: Callable[[], None]) -> None:
        if node in self.sick:
            do()

    def _later(self, mishap: Mishap, do: Callable[[], None]) -> None:
        delay_s = 0.0 if self._has_true_facts else mishap.detect_s
        self._at(self._cluster.now_s + delay_s, do)

    def _report_device(self, node: str, *, heals: bool, tries: bool = False) -> None:
        code, severity = (HEALS_CODE, "major") if heals or tries else (FATAL_CODE, "critical")
        self._fault(f"device {node} 0 {code} {severity} {'heals' if heals else 'no-heals'}")

    def _stop_on(self, node: str, mishap: Mishap) -> None:
        """The ranks on the node fail: their process ends, or (seen by a monitor) stands still until then."""
        for job, pod in tuple(self._cluster.state.jobs_on(self._cluster.state.nodes[node])):
            self.causes_shown.setdefault(job.id, []).append(mishap)
            if mishap.effect is Effect.LINK:
                self._cut(pod)
            elif mishap.is_hidden:
                self._crash(pod)
            elif pod.ranks:
                # A hang: without one of its ranks the job makes no step. All views stay alike.
                self._note_line(f"hang {job.id} {pod.ranks[0]}")
                self._halt(job)

    def _halt(self, job: Job) -> None:
        if job.training is not None:
            processes.halt(self._cluster.state, job, job.training)
            self._cluster.state.touch(job)

    def _cut(self, pod: Pod) -> None:
        """An error of the network in a rank: it ends, or waits where ranks outlive such an error."""
        training = pod.job.training
        if training is None or "guard" not in training.script.can or not pod.ranks:
            self._crash(pod, "RuntimeError: NCCL error")
            return
        self._halt(pod.job)
        where = f"rank={pod.ranks[0]} slot={pod.slot} node={pod.node.name}"
        self._fault(f"fact {pod.job.id} {COLLECTIVE} {where}")

    def _crash(self, pod: Pod, exception: str = "RuntimeError: CUDA error") -> None:
        if pod.ranks:
            options = shlex.quote(f"exception={exception}")
            self._fault(f"kill {pod.job.id} {pod.ranks[0]} exit 1 {options}")

    def reboot(self, mishap: Mishap) -> None:
        (node,) = mishap.nodes
        if node in self.sick:
            return
        self._sicken(node, mishap)
        self._note_shown(mishap, mishap.nodes)
        self._fault(f"node-down {node}")

    def link(self, mishap: Mishap) -> None:
        (node,) = mishap.nodes
        if node in self.sick:
            return
        if not mishap.is_cured:
            self._sicken(node, mishap)
            if self._has_true_facts:
                self._report_device(node, heals=False)
        self._stop_on(node, mishap)

    def switch(self, mishap: Mishap) -> None:
        self._note_shown(mishap, mishap.nodes)
        for node in mishap.nodes:
            if node not in self.sick:
                self._sicken(node, mishap)
                self._fault(f"node-down {node} partition")

    def hang(self, mishap: Mishap) -> None:
        place = self._place(mishap)
        if place is None:
            return
        job, pod = place
        self.causes_shown.setdefault(job.id, []).append(mishap)
        if mishap.is_users:
            self._bug(job, mishap)
        elif not mishap.is_cured:
            self._sicken(pod.node.name, mishap)
        self._hang(pod, mishap)

    def _hang(self, pod: Pod, mishap: Mishap) -> None:
        if not self._has_true_facts:
            if pod.ranks and (training := pod.job.training) is not None:
                option = "" if mishap.is_hidden else " idle"
                self._fault(f"hang {pod.job.id} {pod.ranks[0]}{option}")
                out = partial(self._time_out, pod, training)
                self._at(self._cluster.now_s + COLLECTIVE_S, out)
        elif mishap.is_users or mishap.is_cured:
            self._crash(pod, self._exception(mishap))
        else:
            self._report_device(pod.node.name, heals=False)

    def _time_out(self, hung: Pod, training: Training) -> None:
        """A rank that still waits for the one that hangs fails: the first one beside it."""
        job = hung.job
        if job.training is training and hung.slot in training.hangs:
            pods = sorted(job.pods.values(), key=lambda pod: (pod is hung, pod.slot))
            for pod in pods[:1]:
                self._crash(pod, TIMED_OUT)

    def user(self, mishap: Mishap) -> None:
        place = self._place(mishap)
        if place is not None:
            job, pod = place
            self.causes_shown.setdefault(job.id, []).append(mishap)
            self._bug(job, mishap)
            self._crash(pod, self._exception(mishap))

    def _exception(self, mishap: Mishap) -> str:
        if mishap.is_users:
            return USERS_FAULT if self._has_true_facts else "ValueError: the script's own"
        return "RuntimeError: NCCL error"

    def _bug(self, job: Job, mishap: Mishap) -> None:
        step = 0 if job.training is None else job.training.step_at(self._cluster.state.now) + 1
        cause = Cause(mishap=mishap, step=step)
        self.bugs[job.id] = cause
        self._at(self._cluster.now_s + MENDED_S, partial(self.mend, job.id, cause))

    def mend(self, job: str, cause: Cause | None = None) -> None:
        """The script of this job is mended."""
        if cause is None or self.bugs.get(job) is cause:
            self.bugs.pop(job, None)

    def hunted(self, job: str) -> tuple[str, ...]:
        """The nodes that a person who looks for what ended this job finds."""
        return tuple(sorted(self._nodes_shown.pop(job, set()) & self.sick.keys()))

    def _place(self, mishap: Mishap) -> tuple[Job, Pod] | None:
        pods = [(job, job.pods[slot]) for job in self._jobs() for slot in sorted(job.pods)]
        return pods[int(mishap.place * len(pods))] if pods else None

    def numbers(self, mishap: Mishap) -> None:
        """The node computes wrong numbers; a stress test names it after eight hours."""
        (node,) = mishap.nodes
        if node in self.sick:
            return
        self._sicken(node, mishap)
        for _, pod in tuple(self._cluster.state.jobs_on(self._cluster.state.nodes[node])):
            self._show_numbers(pod, mishap)

    def _show_numbers(self, pod: Pod, mishap: Mishap) -> None:
        self.causes_shown.setdefault(pod.job.id, []).append(mishap)
        if self._has_true_facts:
            self._report_device(pod.node.name, heals=False)
        else:
            self._fault(f"fact {pod.job.id} numeric.nan rank={pod.ranks[0] if pod.ranks else 0}")

    def slow(self, mishap: Mishap) -> None:
        """The job is slower until an operator names the node, or the job leaves it."""
        (node,) = mishap.nodes
        if node in self.sick:
            return
        self._sicken(node, mishap)
        delay_s = 4 * MINUTE_S if self._has_true_facts else mishap.detect_s
        for job, pod in tuple(self._cluster.state.jobs_on(self._cluster.state.nodes[node])):
            self.slow_s[job.id] = self.slow_s.get(job.id, 0.0) + SLOWER * min(
                delay_s, mishap.sound_s
            )
            name = partial(self._name_slow, job, pod, mishap)
            self._at(self._cluster.now_s + min(delay_s, mishap.sound_s), name)

    def _name_slow(self, job: Job, pod: Pod, mishap: Mishap) -> None:
        if pod.node.name in self.sick and job.pods.get(pod.slot) is pod:
            self.causes_shown.setdefault(job.id, []).append(mishap)
            self._fault(
                f"fact {job.id} node.unhealthy node={pod.node.name} slot={pod.slot} message=slow"
            )

    def maintenance(self, mishap: Mishap) -> None:
        (node,) = mishap.nodes
        if node in self.sick:
            return
        self._note_shown(mishap, mishap.nodes)
        self._fault(f"maintenance {node}")
        self._at(self._cluster.now_s + NOTICE_S, partial(self._serviced, mishap))

    def _serviced(self, mishap: Mishap) -> None:
        (node,) = mishap.nodes
        if node not in self.sick:
            self._note_shown(mishap, mishap.nodes)
            self._fault(f"node-down {node}")
            self._at(self._cluster.now_s + mishap.sound_s, partial(self._in_service, node))

    def _in_service(self, node: str) -> None:
        if node not in self.sick:
            self._fault(f"clear {node}")
            if self._releases and self._is_isolated(node):
                self._let_back(node)

    def false_device(self, mishap: Mishap) -> None:
        (node,) = mishap.nodes
        if node not in self.sick and not self._has_true_facts:
            self._note_shown(mishap, mishap.nodes)
            self._report_device(node, heals=False)
            self._at(self._cluster.now_s + RESET_S, partial(self._no_longer, node))

    def _no_longer(self, node: str) -> None:
        if node not in self.sick:
            self._fault(f"clear {node} 0")

    def false_silence(self, mishap: Mishap) -> None:
        (node,) = mishap.nodes
        if node not in self.sick and not self._has_true_facts:
            self._note_shown(mishap, mishap.nodes)
            self._fault(f"silence {node}")
            self._at(
                self._cluster.now_s + mishap.sound_s, partial(self._fault, f"unsilence {node}")
            )

    # -- what shows again -------------------------------------------------------------------------

    def _steps_began(self, job: Job) -> None:
        self._cluster.note_steps(job)
        self.causes_shown[job.id] = []
        training = job.training
        assert training is not None
        for pod in job.pods.values():
            cause = self.sick.get(pod.node.name)
            if cause is not None and cause.mishap.effect in AGAIN:
                self._set_again(job, training, pod, cause)
        if (bug := self.bugs.get(job.id)) is not None:
            self._set_again(job, training, job.pods[min(job.pods)], bug)

    def _set_again(self, job: Job, training: Training, pod: Pod, cause: Cause) -> None:
        again = partial(self._show_again, job, training, pod, cause)
        self._at(cause.again_at(training) - EPOCH, again)

    def _show_again(self, job: Job, training: Training, pod: Pod, cause: Cause) -> None:
        is_there = (
            self.bugs.get(job.id) is cause if not cause.node else self.sick.get(cause.node) is cause
        )
        if not is_there or job.training is not training or not training.is_stepping:
            return
        mishap = cause.mishap
        self.causes_shown.setdefault(job.id, []).append(mishap)
        if cause.node:
            self._nodes_shown.setdefault(job.id, set()).add(cause.node)
        if mishap.effect is Effect.HANG:
            self._hang(pod, mishap)
        elif mishap.effect is Effect.NUMBERS:
            self._show_numbers(pod, mishap)
        elif mishap.effect is Effect.LINK:
            self._cut(pod)
        else:
            self._crash(pod, self._exception(mishap))


USERS_FAULT = "EverstepOracle: the script is wrong"
"""The exception by which the oracle recognises a fault of the script."""
TIMED_OUT = "RuntimeError: a collective operation timed out"
AGAIN = frozenset({Effect.DEVICE, Effect.LINK, Effect.HANG, Effect.NUMBERS})
"""A node that is sick in this way lets pods start, and then fails them again."""

EFFECTS: Mapping[Effect, Callable[[World, Mishap], None]] = {
    effect: getattr(World, str(effect)) for effect in Effect
}
