"""What will go wrong and when, drawn from a profile and a seed. The same seed, the same mishaps.

Everything about a mishap is drawn beforehand, so that every policy meets the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from everstep.simulate.fault_classes import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    NODE_REPAIR,
    Effect,
    FaultClassRow,
    Lasting,
    Profile,
)

OF_JOBS = frozenset({Effect.HANG, Effect.USER})
"""They begin in the rank of a job; others begin on a node, whatever runs there."""
SWITCH_NODES = 32
TOGETHER_S = 5 * MINUTE_S
SILENT_S = (30.0, 300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """One mishap, `at_s` after the beginning."""

    at_s: float
    name: str  # of its class
    effect: Effect
    nodes: tuple[str, ...] = ()  # none: the rank at `place` of all jobs
    place: float = 0.0  # 0 to 1 over the nodes of all jobs
    detect_s: float = 0.0
    sound_s: float = 0.0  # from the beginning until the node is sound again
    again_s: float = 0.0  # how long the next run goes well on a node that is still sick
    is_cured: bool = False  # by a restart in place
    is_hidden: bool = False
    is_users: bool = False


def drawn(profile: Profile, *, nodes: int, days: float, seed: int) -> tuple[Mishap, ...]:
    """All mishaps of a cluster of so many nodes, in the order of their times."""
    weights = _weights(profile, nodes, Random(f"{seed}/weights"))  # no secret
    mishaps: list[Mishap] = []
    for rows, rate in ((profile.rows, profile.rate), (profile.false_rows, profile.false_rate)):
        for row in rows:
            chance = Random(f"{seed}/{row.name}")  # no secret
            per_s = row.share * rate * nodes / 1_000 / DAY_S
            for at_s in _times(per_s, days * DAY_S, chance):
                mishaps += _mishaps(row, at_s, weights, profile.together, chance)
    return tuple(sorted(mishaps, key=lambda one: (one.at_s, one.name)))


def _times(per_s: float, until_s: float, chance: Random) -> Iterator[float]:
    at_s = 0.0
    while per_s > 0:
        at_s += chance.expovariate(per_s)
        if at_s >= until_s:
            return
        yield at_s


def _weights(profile: Profile, nodes: int, chance: Random) -> Sequence[float]:
    """How likely each node is the faulty one: some break again and again."""
    return [chance.lognormvariate(0.0, profile.bursts_sigma) for _ in range(nodes)]


def _mishaps(
    row: FaultClassRow, at_s: float, weights: Sequence[float], together: float, chance: Random
) -> Iterator[Mishap]:
    node = chance.choices(range(len(weights)), weights)[0]
    yield on_node(row, at_s, node, chance, nodes=len(weights))
    if chance.random() < together and not row.is_false and row.effect not in OF_JOBS:
        later_s = at_s + chance.uniform(0.0, TOGETHER_S)
        yield on_node(row, later_s, (node + 1) % len(weights), chance, nodes=len(weights))


def on_node(
    row: FaultClassRow,
    at_s: float,
    node: int,
    chance: Random,
    *,
    nodes: int,
    sound_s: float | None = None,
) -> Mishap:
    """A mishap of this class on this node. `sound_s`: known from a trace, else drawn."""
    is_cured = chance.random() < row.cured
    mishap = Mishap(
        at_s=at_s,
        name=row.name,
        effect=row.effect,
        place=chance.random(),
        detect_s=row.detect_s,
        sound_s=_drawn_time(row.repair, chance) if sound_s is None else sound_s,
        again_s=chance.expovariate(1 / row.again_s),
        is_cured=is_cured,
        is_hidden=chance.random() < row.hidden,
        is_users=not is_cured and chance.random() < row.users,
    )
    if row.effect in OF_JOBS:
        return mishap
    if row.effect is Effect.SWITCH:
        first = node - node % SWITCH_NODES
        numbers = range(first, min(first + SWITCH_NODES, nodes))
        return replace(mishap, nodes=tuple(f"n{number}" for number in numbers))
    if row.effect is Effect.FALSE_SILENCE:
        mishap = replace(mishap, sound_s=chance.uniform(*SILENT_S))
    return replace(mishap, nodes=(f"n{node}",))


def _drawn_time(lasting: Lasting, chance: Random) -> float:
    if not lasting.median_s:
        return 0.0
    return min(chance.lognormvariate(math.log(lasting.median_s), lasting.sigma), lasting.most_s)


REPAIR_S = 129 * HOUR_S
"""The mean of `NODE_REPAIR` with its upper bound."""


def spares_for(profile: Profile, nodes: int) -> int:
    """The number of spare nodes that is enough 99 % of the time, if each comes back after its repair."""
    lost = sum(
        row.share * (1 - row.cured) * (1 - row.users)
        for row in profile.rows
        if row.repair is NODE_REPAIR
    )
    mean = nodes * profile.rate * lost / 1_000 * REPAIR_S / DAY_S
    return max(poisson_quantile(mean, 0.99), 1)


def poisson_quantile(mean: float, share: float) -> int:
    """The smallest number that is not exceeded with this probability."""
    number, term = 0, math.exp(-mean)
    total = term
    while total < share:
        number += 1
        term *= mean / number
        total += term
    return number
