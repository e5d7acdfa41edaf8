"""The cases of documents: a row is an input, its events, and the expected outcome.

Each is played twice from the same row, on the fake cluster in virtual time and with real processes. The
outcome is what a user can read, and the variables of the script.
"""

from __future__ import annotations

from tests.cases import counting, directories, exits, hardware, manifests, sizes, suspension
from tests.cases.case import Case

CASES: tuple[Case, ...] = (
    *exits.CASES,
    *suspension.CASES,
    *hardware.CASES,
    *counting.CASES,
    *directories.CASES,
    *sizes.CASES,
    *manifests.CASES,
)
