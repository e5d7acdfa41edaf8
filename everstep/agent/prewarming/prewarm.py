"""Prewarm, in the agent: keep one helper that has imported the modules, and start ranks as its forks.

A start never waits for a helper: while none is ready and fits, the rank is started without it, with a note.
Nor does it wait for a fork, which takes 20 ms for a process that holds PyTorch: as many forks stand by as a
start needs. `fork_server` is what the helper runs, `helper` holds its process and its forks.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent.agent import Agent
from everstep.agent.prewarming.heavy_modules import (
    ROOM,
    HeavyModules,
    heavy_modules,
    packages_of,
    prepares_its_imports,
)
from everstep.agent.prewarming.helper import Helper, Standby
from everstep.agent.prewarming.helper_spec import (
    HelperSpec,
    Unfit,
    helper_spec_of,
    order_for,
    script_of,
)
from everstep.agent.processes import proc
from everstep.agent.processes.rank import Rank
from everstep.agent.processes.run import Run
from everstep.free_memory import free_bytes
from everstep.protocol import wire

LOG = "helper.log"
STANDBY_S = 2.0
"""Wait after a start before the forks for the next one are made: the processors are busy until then."""


class Prewarm:
    """The helper of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._helper: Helper | None = None
        self._replaced_in = 0  # the generation in which the helper was last replaced
        self._learned: tuple[list[str], HeavyModules] | None = None  # a command, and what it loads
        self._unfit: list[str] = []  # the command for which that did not work

    def state(self) -> wire.HelperSeen | None:
        return self._helper.state() if self._helper is not None else None

    # -- what to import ---------------------------------------------------------------------------

    def modules_for(self, order: wire.RunOrder) -> list[str]:
        """The modules to import ahead: of the order, or those that its ranks had loaded the last time."""
        if order.prewarm_auto and self._learned is not None and self._learned[0] == order.command:
            return self._learned[1].modules
        return order.prewarm

    def first_step_made(self, run: Run) -> None:
        """Look a little later what a rank has loaded, if the command leaves it to the agent."""
        is_new = not run.order.prewarm and run.order.command != self._unfit
        if run.order.prewarm_auto and is_new:
            self._agent.loop.later(STANDBY_S, partial(self._learn, run))

    def _learn(self, run: Run) -> None:
        """Start a helper with the heavy modules of a rank that trains."""
        living = [rank for rank in run.ranks if rank.is_alive]
        if self._agent.run is not run or not living:
            return
        with contextlib.suppress(Unfit):
            # Unfit: no helper can serve this command, so nothing is learned.
            script = script_of(run.command)
            if script is None or prepares_its_imports(script):
                return
            if heavy := heavy_modules(living[0].pid):
                self._learned = run.order.command, heavy
                run.order = run.command["order"] = run.order._replace(prewarm=heavy.modules)
                self.prepare(run)
                self._agent.publish()

    def _has_other_packages(self, helper: Helper) -> bool:
        """Whether a helper has imported packages from elsewhere than the rank, by another path."""
        if self._learned is None or list(helper.spec.modules) != self._learned[1].modules:
            return False
        return not set(self._learned[1].packages) <= packages_of(helper.pid).keys()

    def _forget_learned(self, helper: Helper) -> bool:
        """Import these modules ahead no more, unless the document lists them. Returns whether it does not."""
        if self._learned is None or list(helper.spec.modules) != self._learned[1].modules:
            return False
        self._unfit, self._learned = self._learned[0], None
        if self._agent.run is not None and self._agent.run.order.prewarm_auto:
            run = self._agent.run
            run.order = run.command["order"] = run.order._replace(prewarm=[])
        return True

    # -- for another pod, and from one -------------------------------------------------------------

    def imported(self) -> dict[str, Any]:
        """The modules of a helper that is ready, as fields of a `PrewarmCommand`; empty: there is none."""
        helper = self._helper
        if helper is None or not helper.is_ready:
            return {}
        packages = [] if self._learned is None else self._learned[1].packages
        return {
            "prewarm": list(helper.spec.modules),
            "packages": [str(package) for package in packages],
            "rss_bytes": helper.rss_bytes,
        }

    def import_ahead(self, command: wire.RunCommand, fields: wire.PrewarmCommand) -> None:
        """Start a helper for a command that another pod runs, if nothing runs here and memory allows it."""
        order, free = command["order"], free_bytes()
        is_short = free is not None and free < ROOM * fields["rss_bytes"]
        if self._agent.run is not None or is_short or order.command == self._unfit:
            return
        with contextlib.suppress(Unfit):
            spec = helper_spec_of(command)
            if order.prewarm_auto:
                packages = [Path(package) for package in fields["packages"]]
                self._learned = order.command, HeavyModules(order.prewarm, packages)
            if self._helper is not None and self._helper.spec != spec:
                self._drop(self._helper)
            if self._helper is None:
                self._launch(spec)
                self._agent.publish()

    # -- a start ----------------------------------------------------------------------------------

    def fork(self, run: Run, rank: Rank) -> bool:
        """Start the rank as a fork of the helper. False if it has to be started without one."""
        if not run.order.prewarm:
            return False
        try:
            self._start_forked(self._fitting_helper(run), run, rank)
        except OSError as why:
            if not run.order.prewarm_auto:
                how = f"generation {run.generation} was started without the helper"
                self._agent.note(f"prewarm: {how}: {why}")
            return False
        return True

    def _start_forked(self, helper: Helper, run: Run, rank: Rank) -> None:
        """Start the rank in a standby fork, else in a new one. Raises OSError if neither works."""
        order = order_for(run, rank)
        while standby := next((one for one in helper.standbys if one.pid), None):
            self._remove(helper, standby)
            if _can_run(standby):
                with contextlib.suppress(OSError):
                    return rank.start_forked(standby.pid, standby.link, order)
            standby.dismiss()
        fork: Standby | None = None
        try:
            fork = Standby(helper)
            fork.receive_pid()
            rank.start_forked(fork.pid, fork.link, order)
        except OSError as error:
            if fork is not None:
                fork.dismiss()
            self._drop(helper)
            raise OSError(f"the helper did not fork: {error}") from None

    def _fitting_helper(self, run: Run) -> Helper:
        """The helper, if the run can be forked from it. Raises Unfit, with the reason."""
        spec, helper = helper_spec_of(run.command), self._helper
        if helper is None:
            raise Unfit("there is no helper yet")
        if helper.spec != spec:
            raise Unfit("the helper is for another command or environment")
        if not helper.is_ready:
            raise Unfit("the helper is not ready yet")
        process = proc.find(helper.pid)
        if process is not None and process.is_stopped:
            self._drop(helper)
            raise Unfit("the helper is stopped")
        return helper

    # -- the helper -------------------------------------------------------------------------------

    def prepare(self, run: Run) -> None:
        """Start a helper for the next start of this command, and end one that is for another command."""
        spec: HelperSpec | None = None
        with contextlib.suppress(Unfit):
            spec = helper_spec_of(run.command) if run.order.prewarm else None
        helper = self._helper
        if helper is not None and helper.spec != spec:
            self._drop(helper)
        if self._helper is None and spec is not None:
            self._launch(spec)
        elif helper is not None:
            self._agent.loop.later(STANDBY_S, partial(self._stand_by, helper))

    def _stand_by(self, helper: Helper) -> None:
        """Fork as many standbys as the next start needs if nothing changes."""
        run = self._agent.run
        if self._helper is not helper or not helper.is_ready or run is None or not run.is_alive:
            return
        while len(helper.standbys) < len(run.ranks):
            try:
                standby = Standby(helper)
            except OSError:
                return  # its error is noted elsewhere
            helper.standbys.append(standby)
            self._agent.loop.watch(
                standby.link.fileno(), partial(self._receive_pid, helper, standby)
            )

    def _receive_pid(self, helper: Helper, standby: Standby) -> None:
        if standby not in helper.standbys:
            return  # dismissed a moment ago
        agent = self._agent
        agent.loop.unwatch(standby.link.fileno())
        try:
            standby.receive_pid()
        except OSError:
            self._remove(helper, standby)
            standby.dismiss()
            return
        agent.spare_child(standby.pid, partial(self._remove, helper, standby))
        agent.publish()

    def _remove(self, helper: Helper, standby: Standby) -> None:
        """Remove a standby fork: it ended, or is about to become a rank."""
        helper.standbys.remove(standby)
        self._agent.forget_child(standby.pid)

    def _dismiss_all(self, helper: Helper) -> None:
        for standby in [*helper.standbys]:
            self._agent.loop.unwatch(standby.link.fileno())
            self._remove(helper, standby)
            standby.dismiss()

    def _launch(self, spec: HelperSpec) -> None:
        agent = self._agent
        try:
            helper = Helper(spec, agent.uid, agent.home / LOG)
        except OSError as error:
            agent.note(f"prewarm: the helper cannot be started: {error}")
            return
        self._helper = helper
        agent.spare_child(helper.pid, partial(self._forget_helper, helper))
        agent.loop.watch(helper.control.fileno(), partial(self._read_messages, helper))
        agent.parts.warden.send_orders()

    def _read_messages(self, helper: Helper) -> None:
        before = helper.state()
        if not helper.read_message():
            self._agent.loop.unwatch(helper.control.fileno())
        if helper.state() != before:
            if helper.is_ready and self._has_other_packages(helper):
                self._forget_learned(helper)
                self._drop(helper)
            self._stand_by(helper)
            self._agent.publish()

    def _drop(self, helper: Helper) -> None:
        """End a helper that serves no further start."""
        self._dismiss_all(helper)
        proc.end_child(helper.pid)  # with whatever it started
        if self._helper is helper:
            self._helper = None

    def _forget_helper(self, helper: Helper) -> None:
        """Clean up after a helper that has ended. If it had been ready, start another one."""
        agent = self._agent
        self._agent.loop.unwatch(helper.control.fileno())
        self._dismiss_all(helper)
        was_ready = helper.is_ready
        while helper.read_message():
            pass
        if self._helper is helper:
            self._helper = None
            if not self._forget_learned(helper):
                agent.note(f"prewarm: the helper is gone: {helper.last_words()}")
                if was_ready:
                    self._replace(helper.spec)
        agent.parts.warden.send_orders()
        helper.close()
        agent.publish()

    def _replace(self, spec: HelperSpec) -> None:
        """Start a new helper, once per generation: what ended this one may end the next one too."""
        run = self._agent.run
        if run is not None and run.is_alive and self._replaced_in != run.generation:
            self._replaced_in = run.generation
            self._launch(spec)


def _can_run(standby: Standby) -> bool:
    """Whether the process of the fork lives, and is not stopped."""
    process = proc.find(standby.pid)
    return process is not None and process.parent == os.getpid() and not process.is_stopped
