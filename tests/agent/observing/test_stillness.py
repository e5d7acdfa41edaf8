"""What no change means, sample by sample."""

from __future__ import annotations

import pytest

from everstep.agent.observing.stillness import MISSES, Band, Still

# samples, and at which of them the use changed
SAMPLES: tuple[tuple[str, tuple[float, ...], tuple[int, ...]], ...] = (
    ("the first one is a change from not knowing", (37,), (0,)),
    ("a constant", (37, 37, 37, 37), (0,)),
    ("a flicker by one, up and down", (37, 38, 37, 36, 37, 38, 36), (0,)),
    ("two points are still one band", (36, 38, 36, 38), (0,)),
    ("three are none", (36, 39, 39), (0, 1)),
    ("a slow drift is a change in the end", (10, 11, 12, 13, 14, 15, 16), (0, 3, 6)),
    ("up and back again", (0, 90, 0), (0, 1, 2)),
    ("fractions", (99.2, 100.0, 98.9), (0,)),
)


@pytest.mark.parametrize(
    ("values", "changes"), [row[1:] for row in SAMPLES], ids=[row[0] for row in SAMPLES]
)
def test_a_sample_outside_of_the_band_is_a_change(
    values: tuple[float, ...], changes: tuple[int, ...]
) -> None:
    band = Band()
    changed_numbers = [number for number, value in enumerate(values) if band.add(value)]
    assert changed_numbers == list(changes)


def test_after_forgetting_every_value_is_a_change() -> None:
    band = Band()
    assert band.add(37)
    band.forget()
    assert band.add(37)


# changes told at 0, 1, 2 ... (None: the sample told nothing), since when it is still
STRETCHES: tuple[tuple[str, tuple[bool | None, ...], float | None], ...] = (
    ("nothing was ever seen", (None, None), None),
    ("from the first sample on", (False, False), 0.0),
    ("from the newest change on", (False, True, False), 1.0),
    ("a sample that tells nothing ends nothing", (True, *[None] * (MISSES - 1), False), 0.0),
    ("too many of them do", (True, *[None] * MISSES), None),
    ("it begins anew once something is known", (True, *[None] * MISSES, False), MISSES + 1.0),
)


@pytest.mark.parametrize(
    ("samples", "changed_at"), [row[1:] for row in STRETCHES], ids=[row[0] for row in STRETCHES]
)
def test_still(samples: tuple[bool | None, ...], changed_at: float | None) -> None:
    still = Still()
    for at, changed in enumerate(samples):
        still.saw(changed, float(at))
    assert still.changed_at == changed_at
