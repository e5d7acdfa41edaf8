"""Whatever of this machine is killed, at whatever moment: the same weights, and no restart too many.

Only here all of it is there to be killed: server, worker, agents and ranks.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.local.killtable import SEED, Table, cases
from tests.support.machine import undisturbed

CASES = 30


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_no_kill_costs_a_bit_of_the_weights_or_a_restart_too_many(tmp_path: Path) -> None:
    sys.stdout.write(f"\nseed {SEED}\n")
    table = cases(SEED)
    assert len(table) == CASES
    random.Random(SEED).shuffle(table)
    rows = await Table(folder=tmp_path, expected=undisturbed(tmp_path / "alone")).run(table)
    wrong = "\n".join(f"{case}: {problems}" for case, problems in rows.items())
    assert not rows, f"seed {SEED}\n{wrong}"
