"""What PyTorch's `record` and `torchrun` write is what an agent reads and reports."""

from __future__ import annotations

import json
import os
import subprocess
from typing import NamedTuple

import pytest

from everstep.agent.processes.rank import RankFolder
from everstep.backends.agents.commands.ranks import Meeting, RankSettings, RunPlace, run_command
from everstep.core.world import JobRef, SlotStart, StartOrder
from everstep.processes import free_port
from everstep.protocol import wire
from everstep.protocol.wire import RunOrder
from tests.torch.ranks import PYTHON, WITHIN_S

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SCRIPT = """
import json, os
from torch.distributed.elastic.multiprocessing.errors import record
class NanError(Exception): pass
@record
def main():
    print(json.dumps(dict(os.environ)), flush=True)
    raise NanError("loss")
main()
"""
LAUNCHERS = {
    "record": (),
    "torchrun": ("-m", "torch.distributed.run", "--nproc-per-node", "1", "--rdzv-id", "demo"),
}


class Failed(NamedTuple):
    """The script, under a launcher."""

    words: str | None
    variables: dict[str, str]  # the variables that it found and the launcher did not


@pytest.fixture(scope="module", params=LAUNCHERS)
def failed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Failed:
    assert PYTHON.exists(), "there is no PyTorch; try: make torch"
    folder = tmp_path_factory.mktemp(request.param)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    env = {**os.environ, wire.LAST_WORDS_FILE: str(folder / wire.LAST_WORDS)}
    port = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    launcher = LAUNCHERS[request.param]
    command = [str(PYTHON), *launcher, *(port if launcher else ()), str(script)]
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert ended.returncode == 1, ended.stderr
    result = json.loads(ended.stdout)
    changed = {name: value for name, value in result.items() if name not in env}
    return Failed(RankFolder(folder).last_words(), changed)


def test_the_exception_is_read_as_the_library_wrote_it(failed: Failed) -> None:
    assert failed.words == "NanError: loss"


UNREPORTED = {
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "a setting of torchrun itself",
    "TORCHELASTIC_MAX_RESTARTS": "there is more than one budget",
    "TORCHELASTIC_USE_AGENT_STORE": "our agent has no store",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "a setting, and PyTorch's own default",
}
ITS_OWN = {"MASTER_PORT"}


@pytest.mark.parametrize("failed", ["torchrun"], indirect=True)
def test_a_rank_is_told_what_torchrun_tells(failed: Failed) -> None:
    order = StartOrder(
        job=JobRef(id="demo", run="run"),
        phase="main",
        generation=1,
        run=RunOrder(command=["x"]),
        slots={0: SlotStart(node_rank=0, schedule_count=1, process_start_count=1)},
    )
    place = RunPlace(uid="pod", agent="", devices=(), accelerator="none", metrics=None)
    command = run_command(
        order,
        0,
        place,
        meeting=Meeting(hosts=("127.0.0.1",), port=1),
        settings=RankSettings(cluster="local", fence_s=1.0, environ={}, pass_env=()),
    )
    variables = {**command["env"], **command["ranks"][0]["env"]}
    expected = {
        name: failed.variables[name] for name in failed.variables.keys() - UNREPORTED - ITS_OWN
    }
    assert {name: str(variables.get(name)) for name in expected} == expected
