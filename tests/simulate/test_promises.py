"""The promises hold over many seeds, and once the faults stop the job finishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from everstep.simulate.fault_classes import FALSE_ALARMS, Effect
from everstep.simulate.jobs import JobNumbers
from everstep.simulate.mishaps import Mishap, drawn
from tests.simulate.promises import (
    NODES,
    NUMBERS,
    PROFILE,
    SURVIVORS,
    Broken,
    check,
    mishaps_of,
    problem_of,
    scenario,
    shrunken,
)
from tests.support.playing.scenario import read

QUICK, THOROUGH, BLOCK = range(20), range(500), 25


def holds(seed: int, numbers: JobNumbers = NUMBERS) -> None:
    mishaps, checked = mishaps_of(seed), partial(check, numbers=numbers)
    problem = problem_of(mishaps, checked)
    if problem is not None:
        fewest = shrunken(mishaps, checked)
        pytest.fail(f"seed {seed}: {problem}\n\n{scenario(fewest, problem, numbers)}")


@pytest.mark.parametrize("seed", QUICK)
def test_the_promises_hold_and_the_job_finishes(seed: int) -> None:
    holds(seed)


@pytest.mark.parametrize("seed", QUICK[:4])
def test_they_hold_where_ranks_outlive_faults(seed: int) -> None:
    holds(seed, SURVIVORS)


@pytest.mark.long
@pytest.mark.parametrize("first", THOROUGH[::BLOCK])
def test_they_hold_over_five_hundred_seeds(first: int) -> None:
    for seed in range(first, first + BLOCK):
        holds(seed)
        holds(seed, SURVIVORS)


def test_the_mishaps_of_a_seed_are_many_and_of_most_classes() -> None:
    names = {mishap.name for seed in QUICK for mishap in mishaps_of(seed)}
    assert len(names) >= 11
    assert min(len(mishaps_of(seed)) for seed in QUICK) > 3


def test_a_job_that_only_cannot_be_reached_for_a_while_is_never_restarted() -> None:
    silences = replace(PROFILE, rows=(), false_rows=FALSE_ALARMS[1:], false_rate=16_000.0)
    for seed in range(4):
        mishaps = drawn(silences, nodes=NODES, days=0.25, seed=seed)
        assert len(mishaps) > 2
        check(mishaps)


# -- what is printed of a seed that fails ---------------------------------------------------------


def breaks_at_two_users(mishaps: Sequence[Mishap]) -> None:
    if sum(mishap.effect is Effect.USER for mishap in mishaps) >= 2:
        raise Broken("two faults of the script")


def test_a_seed_that_fails_shrinks_to_the_mishaps_that_matter() -> None:
    mishaps = mishaps_of(1) + tuple(replace(m, effect=Effect.USER) for m in mishaps_of(2)[:3])
    fewest = shrunken(mishaps, breaks_at_two_users)
    assert [mishap.effect for mishap in fewest] == [Effect.USER, Effect.USER]


def test_it_is_printed_as_a_scenario_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "found.txt"
    path.write_text(scenario(mishaps_of(3), "an example"))
    example = read(path)
    assert example.nodes == 7
    assert len(example.faults) > 3
