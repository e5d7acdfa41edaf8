"""What PyTorch's `record` and `torchrun` write of a failure is what an agent reads of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from everstep.agent import wire
from everstep.agent.processes.rank_folder import RankFolder
from everstep.processes import free_port
from tests.support.patience import HUNG_S
from tests.torch.ranks import PYTHON

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
from torch.distributed.elastic.multiprocessing.errors import record
class NanError(Exception): pass
@record
def main():
    raise NanError("loss")
main()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "1", "--master-addr", "127.0.0.1")


@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["record", "torchrun"])
def test_the_exception_is_read_as_the_library_wrote_it(
    launcher: tuple[str, ...], tmp_path: Path
) -> None:
    assert PYTHON.exists(), "there is no PyTorch; try: make torch"
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    port = ("--master-port", str(free_port())) if launcher else ()
    env = {**os.environ, wire.LAST_WORDS_FILE: str(tmp_path / wire.LAST_WORDS)}
    command = [str(PYTHON), *launcher, *port, str(script)]
    ended = subprocess.run(command, env=env, capture_output=True, timeout=HUNG_S, check=False)
    assert ended.returncode == 1, ended.stderr
    assert RankFolder(tmp_path).last_words() == "NanError: loss"
