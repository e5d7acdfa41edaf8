"""The expected share of useful time by formula, to check the simulation against.

For faults that come at random, also during a recovery, and that a restart cures (Daly, 2006).
"""

from __future__ import annotations

from math import exp


def expected_ettr(
    *, between_faults_s: float, recovery_s: float, checkpoint_s: float, write_s: float
) -> float:
    """The share of time that is useful. A checkpoint follows each `checkpoint_s` of training."""
    m = between_faults_s
    return checkpoint_s / (m * exp(recovery_s / m) * (exp((checkpoint_s + write_s) / m) - 1))
