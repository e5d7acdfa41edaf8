"""Signs of life between the steps: I/O and CPU time of every process of the run, and the use of its devices.

The agent's loop calls `Samples.poll` once a second. It compares each counter with its value at the sample
before, and writes into the `Run` when something last moved, did I/O or used a device. Throughout, `still_s`
is the run's limit of a time without I/O and device use, after which it counts as suspended; None: it has
none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from everstep.agent import clock
from everstep.agent.agent import Agent
from everstep.agent.observing import device_tool, devices
from everstep.agent.observing.saves import Saves
from everstep.agent.processes import proc
from everstep.agent.processes.run import Run

SAMPLE_S = 1.0
SAMPLE_S_LEAST = 0.2
TOOL_S = 10.0
"""Least time between two runs of a vendor's tool: it is slow, and keeps the driver busy."""
SHOWN_S = 30.0
"""Least time between two of its runs where they only show people the use of devices."""
STILL_S = 60.0
"""Least time without I/O after which a run is judged, unless its command sets another."""
SAMPLES = 4
"""Least number of looks in the time after which a run counts as suspended."""
AWAY_S = 10.0
"""After so long without a look this process, or the machine, stood still: what happened then is unknown."""
SHARE = 50
"""Samples take at most one part in so many of a processor, unless that were too few to judge a run by."""


def sample_s(still_s: float | None) -> float:
    """The time from one look to the next."""
    return SAMPLE_S if still_s is None else min(SAMPLE_S, max(SAMPLE_S_LEAST, still_s / SAMPLES))


def rest_s(worked_s: float, still_s: float | None) -> float:
    """Least time until the next sample, after one that took `worked_s` of processor time.

    On a machine with very many processes a sample is much work and taken seldomer. Time that a sample waited,
    for the disk or for a processor, does not count.
    """
    rest = SHARE * worked_s
    return rest if still_s is None else min(rest, max(sample_s(still_s), still_s / (2 * SAMPLES)))


class Activity(NamedTuple):
    """The activity of the processes since the previous look."""

    anything: bool  # I/O, use of the processor, a new process
    io: bool | None  # None: not known of all


class Samples:
    """Looks once a second at what the newest run does."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._saves = Saves(agent)
        self._published: object = None  # the signs of life in the newest state

        # The sample before: of each process its processor time and its bytes of I/O, of each device its use.
        self._counters: dict[int, tuple[int, int | None]] = {}
        self._shown_devices: Mapping[int, Any] = {}
        self._run: Run | None = None  # the run of that sample
        self._use = devices.Use((), None)
        self._tools: dict[str, device_tool.Tool | None] = {}  # by kind of accelerator

        # Times: of calls of `look`, and of samples. Not every call takes a sample.
        self._called_at = self._watched_since = clock.now()
        self._sampled_at: float | None = None  # of this run
        self._next_sample = 0.0
        self._next_extra_poll = 0.0  # between two seconds

    def prepare(self, run: Run) -> None:
        """Look at the checkpoints that are there before the ranks of the run begin."""
        self._saves.follow(run)

    def poll_now(self) -> None:
        """Look although the last look is recent: a request is about to judge the run by it."""
        self._next_sample = 0.0
        self.poll()

    def poll(self) -> None:
        """Take a sample if it is due, and publish the signs of life if they have changed."""
        now, called_before = clock.now(), self._called_at
        self._called_at = now
        if now - called_before > AWAY_S:
            self._watched_since = now
        run = self._agent.run
        if run is None:
            return
        run.watched_since = self._watched_since
        begun, worked_s = time.monotonic(), time.thread_time()
        if begun >= self._next_sample and run.is_alive:
            self._sample(run)
            self._next_sample = begun + rest_s(time.thread_time() - worked_s, run.still_s)
        self._saves.follow(run)
        run_state = run.state()
        signs = [
            run_state[name] for name in ("moved_at", "io_at", "busy_at", "watched_since", "devices")
        ]
        if signs != self._published:
            self._published = signs
            self._agent.publish(only_progress=True)
        self._poll_sooner(run)

    def _poll_sooner(self, run: Run) -> None:
        """Look again within the second if `still_s`, the time by which the run is judged, is short."""
        every_s = sample_s(run.still_s)
        if run.is_alive and every_s < SAMPLE_S and time.monotonic() >= self._next_extra_poll:
            self._next_extra_poll = time.monotonic() + every_s
            self._agent.loop.later(every_s, self.poll)

    def _sample(self, run: Run) -> None:
        """Read processes and devices, and record in the run which of them moved."""
        activity = self._sample_processes()
        shown_before, readings = self._shown_devices, devices.simulated(run.command["metrics"])
        self._shown_devices = devices.utilisation(readings, run.command["devices"])
        if activity.anything or devices.have_moved(shown_before, self._shown_devices):
            run.moved()
        if run is not self._run:
            self._follow(run)
        now, sampled_before = clock.now(), self._sampled_at
        # No sample for a while (this process or the machine was stopped): that time is unknown.
        missed = sampled_before is not None and now - sampled_before > (run.still_s or STILL_S) / 2
        self._sampled_at = now
        run.io.saw(_changed_or_missed(activity.io, missed), now)
        if run.still_s is not None:
            self._sample_devices(run, run.still_s, readings, activity, missed=missed)
        self._show_devices(run)

    def _sample_devices(
        self,
        run: Run,
        still_s: float,
        readings: Mapping[str, Any] | None,
        activity: Activity,
        *,
        missed: bool,
    ) -> None:
        """Sample the use of the devices; only for a run that is judged by it, as that costs."""
        now = clock.now()
        self._use.run_tool(every_s=max(sample_s(still_s), min(TOOL_S, still_s / SAMPLES)))
        view = None if readings is None else self._shown_devices
        if self._use.has_news(view):
            changed = self._use.changed(view, works=activity.io)
            run.device_use.saw(_changed_or_missed(changed, missed), now)

    def _show_devices(self, run: Run) -> None:
        """Note what the devices of the run show now of their use and their memory."""
        indices = run.command["devices"]
        if not indices:
            return
        tool = self._tools[run.command["accelerator"]]
        if tool is not None:
            tool.sample(indices, every_s=SHOWN_S)
        run.devices_shown = devices.shown_use(indices, run.command["metrics"], tool)

    def _follow(self, run: Run) -> None:
        """Begin with a new run: its samples are not compared with those of the run before."""
        self._run, self._sampled_at = run, None
        kind = run.command["accelerator"]
        if kind not in self._tools:
            self._tools[kind] = device_tool.of(self._agent, kind)
        if run.still_s is None:
            return
        self._use = devices.Use(run.command["devices"], self._tools[kind])

    def _sample_processes(self) -> Activity:
        processes = self._agent.population.sample()
        if self._agent.save_watch is not None:
            self._agent.save_watch.saw(processes)
        counters = {
            process.pid: (process.cpu, proc.io_bytes(process.pid))
            for process in processes
            if process.is_alive
        }
        before, self._counters = self._counters, counters
        io_bytes = [(before.get(pid, (0, 0))[1], io) for pid, (_, io) in counters.items()]
        did_io = any(now is not None and now != then for then, now in io_bytes)
        is_complete = all(now is not None for _, now in io_bytes)
        return Activity(
            anything=any(before.get(pid) != now for pid, now in counters.items()),
            io=did_io if did_io or is_complete else None,
        )


def _changed_or_missed(changed: bool | None, missed: bool) -> bool | None:
    """Count a gap in observation as a change. Unknown stays unknown."""
    return None if changed is None else changed or missed
