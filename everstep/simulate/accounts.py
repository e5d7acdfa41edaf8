"""Where the time of a simulated job went, from its trainings and its restarts; seconds of the run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from everstep.backends.fake.settings import EPOCH
from everstep.backends.fake.simulated.training import Training

CAUSES = (
    "checkpoints",  # they are written
    "snapshots",  # the same
    "detect",  # until the first fact is reported
    "decide",  # from there to the first decision
    "place",  # a node is waited for
    "isolation",  # the same, while sound nodes are isolated
    "restart",
    "lost_steps",  # done again
    "slow",  # a node is
    "ended",  # until the job ran again, after it had ended without need
)
"""Why time is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartNote:
    """A restart of a simulated job, when it was decided, and whether anything was wrong."""

    at_s: float
    level: str
    fault_class: str
    is_false: bool
    is_hindered: bool  # sound nodes were isolated then
    reported_s: float  # when the first fact of it was reported


@dataclass(frozen=True, slots=True, kw_only=True)
class EndNote:
    """An end of a job before the end of the simulation."""

    at_s: float
    until_s: float  # submitted again
    reason: str
    is_wrong: bool  # though the cause was not the script's


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The time of one job, or of several."""

    total_s: float = 0.0  # without the time in which the script was mended
    useful_s: float = 0.0  # steps that count, without writes of checkpoints and snapshots
    lost_s: Mapping[str, float] = field(default_factory=dict)  # by CAUSES
    levels: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    false_kills: int = 0
    ended_wrongly: int = 0
    ended_by_script: int = 0
    healthy_isolated_h: float = 0.0

    @property
    def ettr(self) -> float:
        return self.useful_s / self.total_s if self.total_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLife:
    """Everything noted of one job."""

    trainings: Sequence[Training]
    restarts: Sequence[RestartNote]
    ends: Sequence[EndNote]
    waits: Sequence[tuple[float, float]]  # for places
    slow_s: float
    write_share: float  # of the time of a step, for writes of checkpoints
    snapshot_share: float  # the same for snapshots
    horizon_s: float


def account(life: JobLife) -> Account:
    """Divide the time of a job, from its first step to the end of the simulation."""
    trainings = life.trainings
    if not trainings:
        return Account(total_s=life.horizon_s, lost_s={"restart": life.horizon_s})
    began_s = _first_s(trainings[0])
    lost: defaultdict[str, float] = defaultdict(float)
    for training, following in pairwise(trainings):
        _add_gap(lost, life, _halted_s(training, life), _first_s(following))
        again = max(training.step_at(life.horizon_s + EPOCH) - following.resume, 0)
        useful_share = 1 - life.write_share - life.snapshot_share
        lost["lost_steps"] += again * training.script.step_s * useful_share
    if trainings[-1].halted_at is not None:
        _add_gap(lost, life, _halted_s(trainings[-1], life), life.horizon_s)
    stepping_s = sum(_halted_s(one, life) - _first_s(one) for one in trainings)
    lost["checkpoints"] = stepping_s * life.write_share
    lost["snapshots"] = stepping_s * life.snapshot_share
    lost["slow"] = life.slow_s
    away_s = sum(_overlap(e.at_s, e.until_s, life) for e in life.ends if not e.is_wrong)
    overhead = ("checkpoints", "snapshots", "lost_steps", "slow")
    useful_s = stepping_s - sum(lost[cause] for cause in overhead)
    return Account(
        total_s=life.horizon_s - began_s - away_s,
        useful_s=useful_s,
        lost_s={cause: lost[cause] for cause in CAUSES},
        levels=Counter(restart.level for restart in life.restarts),
        restarts=len(life.restarts),
        false_kills=sum(restart.is_false for restart in life.restarts),
        ended_wrongly=sum(end.is_wrong for end in life.ends),
        ended_by_script=sum(not end.is_wrong for end in life.ends),
    )


def _first_s(training: Training) -> float:
    assert training.first_at is not None
    return training.first_at - training.script.step_s - EPOCH


def _halted_s(training: Training, life: JobLife) -> float:
    halted_s = life.horizon_s if training.halted_at is None else training.halted_at - EPOCH
    return max(min(halted_s, life.horizon_s), _first_s(training))


def _overlap(since_s: float, until_s: float, life: JobLife) -> float:
    return max(min(until_s, life.horizon_s) - since_s, 0.0)


def _add_gap(lost: defaultdict[str, float], life: JobLife, since_s: float, until_s: float) -> None:
    """Add the time between two trainings by what it was needed for."""
    left_s = until_s - since_s
    for end in life.ends:
        if since_s <= end.at_s < until_s:
            ended_s = min(end.until_s, until_s) - end.at_s
            lost["ended"] += ended_s if end.is_wrong else 0.0
            left_s -= ended_s
    decided = [one for one in life.restarts if since_s <= one.at_s <= until_s]
    decided_s = (decided[0].at_s if decided else until_s) - since_s
    decided_s = min(max(decided_s, 0.0), left_s)
    reported_s = decided[0].reported_s - since_s if decided else decided_s
    detect_s = min(max(reported_s, 0.0), decided_s)
    is_hindered = any(one.is_hindered for one in decided)
    waited_s = sum(_within(wait, since_s, until_s) for wait in life.waits)
    waited_s = min(waited_s, left_s - decided_s)
    lost["detect"] += detect_s
    lost["decide"] += decided_s - detect_s
    lost["isolation" if is_hindered else "place"] += waited_s
    lost["restart"] += left_s - decided_s - waited_s


def _within(wait: tuple[float, float], since_s: float, until_s: float) -> float:
    return max(min(wait[1], until_s) - max(wait[0], since_s), 0.0)


def total(accounts: Iterable[Account]) -> Account:
    """The sum of several: of jobs, or of seeds."""
    every = list(accounts)
    levels: Counter[str] = Counter()
    for one in every:
        levels.update(one.levels)
    return Account(
        total_s=sum(one.total_s for one in every),
        useful_s=sum(one.useful_s for one in every),
        lost_s={c: sum(one.lost_s.get(c, 0.0) for one in every) for c in CAUSES},
        levels=dict(levels),
        restarts=sum(one.restarts for one in every),
        false_kills=sum(one.false_kills for one in every),
        ended_wrongly=sum(one.ended_wrongly for one in every),
        ended_by_script=sum(one.ended_by_script for one in every),
        healthy_isolated_h=sum(one.healthy_isolated_h for one in every),
    )
