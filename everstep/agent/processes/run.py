"""One run: the ranks of one generation, and how it goes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everstep.agent import clock, wire
from everstep.agent.observing import logs, steps
from everstep.agent.observing.stillness import Still
from everstep.agent.processes.rank import Rank

_NEEDED: tuple[tuple[str, Any], ...] = (
    ("generation", int),
    ("command", list),
    ("env", dict),
    ("workdir", str),
    ("ranks", list),
)
_DEFAULTS: dict[str, Any] = {
    "phase": "",
    "keep": [],
    "stop_siblings": True,
    "log_pattern": None,
    "checkpoints_path": None,
    "checkpoints_format": "auto",
    "model_dir": None,
    "run": "",
    "cluster": "",
    "fence_s": wire.FENCE_S,
    "counts": {},
    "prewarm": [],
    "devices": [],
    "metrics": None,
    "accelerator": "none",
    "still_s": None,
}


class BadCommand(ValueError):
    """The command cannot be carried out by anybody; the message names the field."""


def run_command(told: dict[str, Any]) -> wire.RunCommand:
    """The command, complete and with everything in it of the right kind."""
    for name, kind in _NEEDED:
        if not isinstance(told.get(name), kind):
            raise BadCommand(f"{name}: a {kind.__name__} is needed")
    whole = {**_DEFAULTS, **told}
    _need(whole["command"] and _are_texts(whole["command"]), "command: a list of texts is needed")
    _need(_is_environment(whole["env"]), "env: texts are needed")
    _need(bool(whole["ranks"]), "ranks: at least one is needed")
    for plan in whole["ranks"]:
        _need(
            isinstance(plan, dict)
            and isinstance(plan.get("rank"), int)
            and isinstance(plan.get("local_rank"), int)
            and _is_environment(plan.get("env")),
            "ranks: each needs rank, local_rank and env",
        )
    _need(isinstance(whole["fence_s"], (int, float)), "fence_s: a number is needed")
    _need(_are_texts(whole["prewarm"]), "prewarm: a list of texts is needed")
    _need(_are_numbers(whole["keep"]), "keep: a list of ranks is needed")
    _need(_are_numbers(whole["devices"]), "devices: a list of numbers is needed")
    _need(isinstance(whole["metrics"], (str, type(None))), "metrics: a path is needed")
    _need(isinstance(whole["accelerator"], str), "accelerator: a name is needed")
    _need(_is_time(whole["still_s"]), "still_s: a number above 0 is needed")
    try:
        steps.pattern(whole["log_pattern"])
    except (steps.BadPattern, AttributeError) as error:
        raise BadCommand(str(error)) from None
    command: wire.RunCommand = whole  # type: ignore[assignment]  # looked at above
    return command


def _need(holds: object, otherwise: str) -> None:
    if not holds:
        raise BadCommand(otherwise)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and "\0" not in v for v in value)


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(v, int) for v in value)


def _is_time(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value is None or (is_number and value > 0)  # type: ignore[operator]  # looked at before


def _is_environment(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(v, str) and k and "=" not in k and "\0" not in k + v for k, v in value.items()
    )


class Run:
    """The newest run of this agent. Ranks that go on come from the one before, as they are."""

    def __init__(
        self, command: wire.RunCommand, folder: Path, going_on: Iterable[Rank] = ()
    ) -> None:
        self.command = command
        self.generation = command["generation"]
        self.still_s = command["still_s"]
        self.started_at: float | None = None
        self.failed: str | None = None
        self.checkpoint: wire.SavedState | None = None
        self.saved_at: float | None = None
        self.save_every_s: float | None = None
        self.free_bytes: int | None = None
        self.steps = steps.Steps()
        self.moved_at: float | None = None
        self.io = Still()
        self.use = Still()
        self.search = steps.Search(steps.pattern(command["log_pattern"]))
        known = {rank.number: rank for rank in going_on}
        self.ranks = [
            known.get(plan["rank"]) or self._rank(plan, folder) for plan in command["ranks"]
        ]
        for rank in known.values():
            rank.reader = steps.Reader(self.search)

    def _rank(self, plan: wire.RankPlan, folder: Path) -> Rank:
        return Rank(
            plan,
            log_path(folder, self.generation, plan["rank"]),
            steps.Reader(self.search),
            incarnation=self.generation,
            tells=logs.share(len(self.command["ranks"])),
        )

    @property
    def is_alive(self) -> bool:
        return any(rank.is_alive for rank in self.ranks)

    @property
    def stopped(self) -> bool:
        return any(rank.stopped for rank in self.ranks)

    @property
    def going_on(self) -> list[Rank]:
        """Those that nobody ends."""
        return [rank for rank in self.ranks if rank.is_alive and not rank.killed]

    def admit(self, generation: int) -> list[int]:
        """Who is left is of this generation from now on."""
        left = self.going_on
        if left:
            self.generation, self.ranks = generation, left
        return [rank.number for rank in left]

    @property
    def prewarmed(self) -> bool | None:
        """Whether no rank had to import anything; None if that was not asked for."""
        if not self.command["prewarm"]:
            return None
        return all(rank.is_forked for rank in self.ranks)

    def with_pid(self, pid: int) -> Rank | None:
        return next((rank for rank in self.ranks if rank.pid == pid), None)

    def moved(self) -> None:
        self.moved_at = clock.now()

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()

    def seen(self) -> wire.RunSeen:
        wrote = [rank.wrote_at for rank in self.ranks if rank.wrote_at is not None]
        moved = [at for at in (self.moved_at, self.steps.at, *wrote) if at is not None]
        # Steps that nobody reads any more are no sign of a hang: then any sign of life counts as one.
        stepped = max(moved) if self.search.is_given_up and self.steps.at else self.steps.at
        return {
            "generation": self.generation,
            "phase": self.command["phase"],
            "started_at": self.started_at,
            "failed": self.failed,
            "ranks": [rank.seen() for rank in self.ranks if rank.pid],
            "stopped": self.stopped,
            "step": self.steps.newest,
            "step_at": stepped,
            "first_step_at": self.steps.first_at,
            "longest_gap_s": self.steps.longest_gap_s,
            "moved_at": max(moved, default=None),
            "io_at": self.io.since,
            "busy_at": self.use.since,
            "checkpoint": self.checkpoint,
            "saved_at": self.saved_at,
            "save_every_s": self.save_every_s,
            "free_bytes": self.free_bytes,
            "unmatched_since": self._unmatched_since(),
            "unread": self.search.is_given_up,
            "counts": self.command["counts"],
            "prewarmed": self.prewarmed,
        }

    def _unmatched_since(self) -> float | None:
        if self.command["log_pattern"] is None or self.steps.newest is not None:
            return None
        wrote = [rank.first_wrote_at for rank in self.ranks if rank.first_wrote_at is not None]
        return min(wrote, default=None)


def log_path(logs: Path, generation: int, rank: int) -> Path:
    return logs / f"g{generation}-r{rank}.log"
