"""One run: the ranks of one generation, and how it goes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from everstep.agent import clock
from everstep.agent.observing import losses, steps
from everstep.agent.observing.stillness import Still
from everstep.agent.processes.rank import Rank, RankFolder
from everstep.protocol import rank_memory, wire


def kept_rank_mismatch(expected_ranks: list[int], living: list[int]) -> str | None:
    """Why those that live cannot go on as the ranks that were kept, if they cannot."""
    if sorted(expected_ranks) == sorted(living):
        return None
    expected, live = (
        ", ".join(map(str, sorted(ranks))) or "none" for ranks in (expected_ranks, living)
    )
    return f"ranks that were to go on: {expected}; those that live: {live}"


class Run:
    """The newest run of this agent. Ranks that go on are taken over from the run before."""

    def __init__(
        self,
        command: wire.RunCommand,
        home: Path,
        going_on: Iterable[Rank] = (),
        *,
        ordered_at: float,
    ) -> None:
        self.command, self.order = command, command["order"]
        self.ordered_at = ordered_at  # when the command came
        self.generation = command["generation"]
        self.still_s = self.order.still_s
        self.requests_prewarm = bool(self.order.prewarm)
        self.started_at: float | None = None
        self.failed: str | None = None
        self.checkpoint: wire.SavedState | None = None
        self.saved_at: float | None = None
        self.save_every_s: float | None = None
        self.free_bytes: int | None = None
        self.unrecognised: wire.Unrecognised | None = None
        self.has_folder = False  # of checkpoints: it was seen
        self.storage_was_checked = False  # for a fault that explains an exit: once in a run
        self.steps = steps.Steps(command["pace_s"])
        self.moved_at: float | None = None
        self.watched_since: float | None = None
        self.io = Still()
        self.device_use = Still()
        self.devices_shown: list[wire.DeviceUse] = []
        self.search = steps.Search(steps.pattern(self.order.log_pattern))
        self.loss_search = losses.LossSearch(self.order.loss_pattern)
        self.has_wrong_loss = False  # of any rank: it was reported
        kept_ranks = {rank.number: rank for rank in going_on}
        self.ranks = [
            kept_ranks.get(plan["rank"]) or self._rank(plan, home) for plan in command["ranks"]
        ]
        for rank in kept_ranks.values():
            rank.reader = self._reader()

    def _rank(self, plan: wire.RankPlan, home: Path) -> Rank:
        log = log_path(home / wire.LOGS, self.generation, plan["rank"])
        return Rank(
            plan,
            log,
            RankFolder(home / wire.RANKS / log.stem),
            self._reader(),
            incarnation=self.generation,
        )

    def _reader(self) -> steps.StepReader:
        return steps.StepReader(self.search, losses.Losses(self.loss_search))

    @property
    def is_alive(self) -> bool:
        return any(rank.is_alive for rank in self.ranks)

    @property
    def ends_by_command(self) -> bool:
        return any(rank.ends_by_command for rank in self.ranks)

    @property
    def outlives_ends(self) -> bool:
        """Whether the living ranks can go on after the end of another one, if they are ordered to."""
        return all(rank_memory.REBUILD in rank.folder.can for rank in self.going_on)

    @property
    def going_on(self) -> list[Rank]:
        """Living ranks that are not being ended."""
        return [rank for rank in self.ranks if rank.is_alive and not rank.is_to_end]

    def admit(self, generation: int) -> list[int]:
        """Move the ranks that go on to this generation, whose start is still to come."""
        left = self.going_on
        if left:
            self.generation, self.ranks = generation, left
            self.started_at, self.steps = None, steps.Steps(self.command["pace_s"])
        return [rank.number for rank in left]

    def instruct_ranks(self) -> None:
        """Instruct kept ranks to rebuild; make the message folders of the others. Raises OSError."""
        for plan, rank in zip(self.command["ranks"], self.ranks):
            if rank.number in self.command["keep"]:
                env = {**self.command["rebuild"], **plan["env"]}
                rank.folder.instruct({"generation": self.generation, "do": "rebuild", "env": env})
                rank.order({"generation": self.generation, "do": "rebuild"})
            else:
                rank.folder.make()

    @property
    def prewarmed(self) -> bool | None:
        """Whether every rank was forked from the helper; None if the run did not request it."""
        if not self.requests_prewarm:
            return None
        return all(rank.is_forked for rank in self.ranks)

    def living_with_pid(self, pid: int) -> Rank | None:
        """The living rank with this PID. An orphan may have the PID of a rank that has ended."""
        return next((rank for rank in self.ranks if rank.is_alive and rank.pid == pid), None)

    def moved(self) -> None:
        self.moved_at = clock.now()

    def state(self) -> wire.RunSeen:
        wrote = [rank.wrote_at for rank in self.ranks if rank.wrote_at is not None]
        moved = [at for at in (self.moved_at, self.steps.at, *wrote) if at is not None]
        # Once the search for steps was given up, any sign of life counts as one.
        stepped = max(moved) if self.search.is_given_up and self.steps.at else self.steps.at
        progress = wire.RunProgress(
            generation=self.generation,
            phase=self.command["phase"],
            started_at=self.started_at,
            failed=self.failed,
            stopped=self.ends_by_command,
            step=self.steps.newest,
            step_at=stepped,
            first_step_at=self.steps.first_at,
            longest_gap_s=self.steps.longest_gap_s,
            moved_at=max(moved, default=None),
            output_at=max(wrote, default=None),
            io_at=self.io.changed_at,
            busy_at=self.device_use.changed_at,
            watched_since=self.watched_since,
            saved_at=self.saved_at,
            save_every_s=self.save_every_s,
            free_bytes=self.free_bytes,
            unmatched_since=self._unmatched_since(),
            unread=self.search.is_given_up,
            steps_from=self.search.taken_from,
            counts=self.command["counts"],
            prewarmed=self.prewarmed,
        )
        return {
            **progress._asdict(),
            "ranks": [self._rank_state(rank) for rank in self.ranks if rank.pid],
            "devices": self.devices_shown,
            "checkpoint": self.checkpoint,
            "unrecognised": self.unrecognised if self.checkpoint is None else None,
        }

    def _rank_state(self, rank: Rank) -> wire.RankSeen:
        state = rank.state()
        state["recent_steps"] = self.steps.recent(rank.number, time.monotonic())
        return state

    def _unmatched_since(self) -> float | None:
        if self.order.log_pattern is None or self.steps.newest is not None:
            return None
        wrote = [rank.first_wrote_at for rank in self.ranks if rank.first_wrote_at is not None]
        return min(wrote, default=None)


def log_path(logs: Path, generation: int, rank: int) -> Path:
    return logs / f"g{generation}-r{rank}.log"
