"""The hang rule of MindCluster's device plugin: four signs at once, five looks in a row."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from everstep.agent.observing.npu_hang import HangWatch, NpuSample, Thresholds
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.faults.catalogue import look_up

STILL = NpuSample(
    pids=frozenset({7, 8}), ai_core_percent=4.9, hbm_used=30.0, packets=1_000.0, cpu_s=50.0
)


def watched(samples: Iterable[NpuSample], limits: Thresholds | None = None) -> list[int]:
    """The number of still looks in a row after each sample."""
    watch, facts = HangWatch(), []
    for sample in samples:
        watch = watch.after(sample, limits or Thresholds())
        facts.append(watch.still)
    return facts


def test_the_first_look_is_what_later_ones_are_compared_with() -> None:
    assert watched([STILL] * 7) == [0, 1, 2, 3, 4, 5, 6]


def test_a_device_is_hung_at_the_fifth_still_look_in_a_row() -> None:
    watch = HangWatch()
    hung = []
    for _ in range(7):
        watch = watch.after(STILL)
        hung.append(watch.is_hung)
    assert hung == [False] * 5 + [True] * 2


@pytest.mark.parametrize(
    ("sign", "change"),
    [
        ("the AI cores work", {"ai_core_percent": 5.0}),
        ("memory grows", {"hbm_used": 30.1}),
        ("there is traffic", {"packets": 1_100.0}),
        ("the processes work", {"cpu_s": 55.0}),
        ("other processes", {"pids": frozenset({7, 9})}),
        ("no processes", {"pids": frozenset()}),
        ("AI cores unknown", {"ai_core_percent": None}),
        ("memory unknown", {"hbm_used": None}),
        ("traffic unknown", {"packets": None}),
        ("processor time unknown", {"cpu_s": None}),
        ("a counter that began anew", {"packets": 0.0}),
    ],
)
def test_one_sign_of_life_begins_the_row_again(sign: str, change: dict[str, object]) -> None:
    moved = STILL._replace(**change)  # type: ignore[arg-type]
    assert watched([STILL] * 5 + [moved])[-1] == 0, sign


@pytest.mark.parametrize(
    "change",
    [{"ai_core_percent": 0.0}, {"hbm_used": 29.0}, {"packets": 1_099.0}, {"cpu_s": 54.9}],
)
def test_just_below_its_limit_no_sign_is_one_of_life(change: dict[str, float]) -> None:
    moved = STILL._replace(**change)  # type: ignore[arg-type]
    assert watched([STILL] * 4 + [moved])[-1] == 4


def test_a_sign_that_is_never_known_never_makes_a_hang() -> None:
    assert watched([STILL._replace(packets=None)] * 20) == [0] * 20


def test_limits_may_be_others_and_negative_ones_are_the_defaults() -> None:
    assert Thresholds(-1, -1, -1, -1).without_negatives() == Thresholds()
    busy = STILL._replace(ai_core_percent=30.0)
    assert watched([busy] * 3, Thresholds(ai_core_percent=40.0)) == [0, 1, 2]


def test_its_code_is_noted_unless_its_level_is_raised() -> None:
    assert look_up("200001002").level == "NotHandleFault"
    policy = mindcluster(fault_scheduling="force")
    assert policy.repeat_rule("200001002") == policy.repeats[-1]
