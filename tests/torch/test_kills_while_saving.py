"""Real libraries killed in the middle of saving: what an agent chooses is what they can load.

Only their own writers leave what they leave, and in their own order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine import ROOT
from tests.torch.ranks import PYTHON

SEED = 60
KILLS = {"torch": 20, "dcp": 15, "transformers": 50, "lightning": 50}
"""Enough for several kills in a save: of 50, 33 are with `torch`, 49 with `dcp`, 6 with `transformers`."""

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


@pytest.mark.parametrize("library", KILLS)
def test_what_is_chosen_after_a_kill_while_saving_loads(library: str, tmp_path: Path) -> None:
    script = ROOT / "tests" / "torch" / "saving.py"
    ended = subprocess.run(
        [PYTHON, "-P", script, library, tmp_path / "saves", str(SEED), str(KILLS[library])],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    sys.stdout.write(f"\n{ended.stdout}")
