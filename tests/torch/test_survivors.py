"""Ranks of real PyTorch that outlive a fault elsewhere: no other process ends, no step and no bit is lost.

Only real collectives block, only real connections are cut, and only a real optimizer shows what a state
lacks.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.machine import EXAMPLES, ROOT, Machine
from tests.support.rehearsal import Rehearsal, numbers_repeat, records
from tests.torch.ranks import PYTHON, undisturbed

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).with_name("faulty.py")
EXAMPLE = EXAMPLES / "survivors" / "train.py"
SPLIT = Path(__file__).with_name("split.py")
ENV = {"STEPS": "75", "SAVE_EVERY": "20", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def document(folder: Path, faults: str, *, script: Path = EXAMPLE, **spec: Any) -> dict[str, Any]:
    """A job with these faults in a folder."""
    (folder / "out").mkdir(parents=True)
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / "survivors" / "job.yaml").read_text())
    body["spec"] |= {"command": [str(PYTHON), str(SCRIPT)], "workdir": str(folder), **spec}
    faulty = {"EXAMPLE": str(script), "OUT": str(folder / "out"), "FAULTS": faults}
    body["spec"]["env"] = {**ENV, **faulty, "STEP_S": "0.05"}
    body["spec"]["model_dir"] = str(folder / "out")
    body["spec"]["checkpoints"] = {"path": str(folder / "out")}
    return body


@functools.cache
def expected(world: int, script: Path = EXAMPLE) -> Any:
    """What so many ranks come to without faults."""
    with tempfile.TemporaryDirectory() as out:
        undisturbed(script, {**ENV, "OUT": out}, world=world)
        return final(Path(out))


def trained(
    machine: Machine, folder: Path, faults: str, *, script: Path = EXAMPLE, **spec: Any
) -> list[dict[str, Any]]:
    """The restarts of a job that came to its end through these faults, with the same bits."""
    job, body = folder.with_suffix(".yaml"), document(folder, faults, script=script, **spec)
    job.write_text(yaml.safe_dump(body))
    done = machine.everstep("run", str(job))
    assert done.returncode == 0, done.stdout + done.stderr
    assert final(folder / "out") == expected(body["spec"]["processes_per_node"], script)
    restarts: list[dict[str, Any]] = json.loads(
        machine.everstep("restarts", "survivors", "--json").stdout
    )
    return restarts


def final(out: Path) -> Any:
    return json.loads((out / "final.json").read_text())


def processes(folder: Path) -> list[int]:
    """How many processes each rank has had."""
    files = sorted((folder / "out").glob("pids-*"))
    return [len(file.read_text().split()) for file in files]


def test_a_kill_anywhere_costs_one_process_and_the_step_under_way(
    machine: Machine, tmp_path: Path
) -> None:
    faults = "forward:1:15,backward:0:30,update:2:45,save:0:60"
    restarts = trained(machine, tmp_path / "job", faults)
    assert [r["level"] for r in restarts] == ["process"] * 4
    assert [r["resume_step"] for r in restarts] == [14, 29, 45, 60]
    assert processes(tmp_path / "job") == [3, 2, 2, 1]


def test_two_at_once(machine: Machine, tmp_path: Path) -> None:
    faults = "forward:1:15,forward:2:15"
    restarts = trained(machine, tmp_path / "job", faults)
    assert {r["level"] for r in restarts} == {"process"}
    assert processes(tmp_path / "job") == [1, 2, 2, 1]


def test_a_new_process_that_is_killed_costs_no_other_one(machine: Machine, tmp_path: Path) -> None:
    faults, ladder = "forward:1:15,form:1:0", {"ladders": {"crash": ["process"]}}
    restarts = trained(machine, tmp_path / "job", faults, recovery=ladder)
    assert [(r["resume_step"], r["resume_from"]) for r in restarts] == [(14, "ranks")] * 2
    assert processes(tmp_path / "job") == [1, 3, 1, 1]


def test_a_kill_of_one_that_goes_on_loses_no_step(machine: Machine, tmp_path: Path) -> None:
    """It may come before the new process is so far that it can go on, so that all are new."""
    restarts = trained(machine, tmp_path / "job", "forward:1:15,form:2:15")
    assert [r["resume_step"] for r in restarts] == [14, 14]


def test_parts_of_a_state_come_from_their_copies_or_else_from_memory(
    machine: Machine, tmp_path: Path
) -> None:
    faults = "begin:3:15,begin:1:30,begin:3:30"
    restarts = trained(machine, tmp_path / "job", faults, script=SPLIT)
    assert [(r["level"], r["resume_step"], r["resume_from"]) for r in restarts] == [
        ("process", 14, "ranks"),
        ("process", None, None),
        ("in_place", 29, "snapshot"),
    ]
    assert "no rank that is left has the state of rank 1,3 after step 29" in str(restarts[2])
    assert processes(tmp_path / "job") == [2, 2, 2, 3]


def test_a_stopped_process_is_replaced_alone(machine: Machine, tmp_path: Path) -> None:
    restarts = trained(
        machine, tmp_path / "job", "stop:1:15", processes_per_node=2, limits={"hang_s": 5}
    )
    assert [(r["level"], r["resume_step"]) for r in restarts] == [("process", 14)]
    assert processes(tmp_path / "job") == [1, 2]


def test_a_cut_connection_costs_no_process(machine: Machine, tmp_path: Path) -> None:
    restarts = trained(machine, tmp_path / "job", "cut:2:15")
    assert [(r["level"], r["resume_step"]) for r in restarts] == [("operator_online", 14)]
    assert processes(tmp_path / "job") == [1, 1, 1, 1]


async def test_a_lost_pod_costs_only_its_ranks(tmp_path: Path) -> None:
    body = document(tmp_path / "job", "", nodes=2, processes_per_node=2)
    async with Rehearsal(tmp_path / "r", nodes=2) as stage:
        job = await stage.submit(body)
        await stage.until((tmp_path / "job" / "out" / "step_20.pt").exists, "a checkpoint")
        (lost,) = [pod for pod in stage.pods("survivors") if pod.slot == 1]
        agent = lost.agent()
        assert agent is not None
        os.kill(agent, signal.SIGKILL)
        report = await stage.report(job)
    (record,) = records(report)
    values = {key: record[key] for key in ("level", "resume_from", "kept_ranks")}
    assert values == {"level": "process", "resume_from": "ranks", "kept_ranks": "0-1"}
    assert processes(tmp_path / "job") == [1, 1, 2, 2]
    assert final(tmp_path / "job" / "out") == expected(4)


@pytest.mark.parametrize("victim", ["worker", "server"])
async def test_what_decides_may_be_killed_in_a_recovery(tmp_path: Path, victim: str) -> None:
    body = document(tmp_path / "job", "forward:1:15", processes_per_node=2)
    async with Rehearsal(tmp_path / "r", nodes=1) as stage:
        job = await stage.submit(body)
        await stage.until(lambda: stage.newest("survivors") == 2, "the stop")
        if victim == "worker":
            stage.worker.kill9()
            await stage.worker.start()
        else:
            stage.server.kill()
            await stage.server.restart()
        report = await stage.report(job)
    assert [(r["level"], r["resume_step"]) for r in records(report)] == [("process", 14)]
    assert processes(tmp_path / "job") == [1, 2]
    assert final(tmp_path / "job" / "out") == expected(2)


@pytest.mark.parametrize("slot", [0, 1])
async def test_an_agent_killed_in_a_recovery_costs_its_own_ranks(tmp_path: Path, slot: int) -> None:
    """Where it is that of the survivor (slot 0), only the copy of its state at the other pod is left."""
    body = document(tmp_path / "job", "forward:1:15", nodes=2, processes_per_node=1)
    async with Rehearsal(tmp_path / "r", nodes=2) as stage:
        job = await stage.submit(body)
        await stage.until(lambda: stage.newest("survivors") == 2, "the stop")
        (pod,) = [pod for pod in stage.pods("survivors") if pod.slot == slot]
        agent = pod.agent()
        assert agent is not None
        os.kill(agent, signal.SIGKILL)
        report = await stage.report(job)
    assert not numbers_repeat(report)
    newest = records(report)[-1]
    assert newest["recover_result"] == "success"
    assert newest["resume_step"] in (13, 14)  # a copy may be a step behind
    assert final(tmp_path / "job" / "out") == expected(2)


def ascend_job(folder: Path, faults: str) -> list[dict[str, Any]]:
    """The example of MindCluster as two pods of one rank each, with the strategies that keep processes."""
    body = document(folder, faults, nodes=2, processes_per_node=1)
    settings, job = yaml.safe_load_all((EXAMPLES / "mindcluster.yaml").read_text())
    job["metadata"]["name"] = "survivors"
    job["metadata"]["annotations"] = {"recover-strategy": "retry,recover,dump"}
    variables = [{"name": name, "value": value} for name, value in body["spec"]["env"].items()]
    for replicas in job["spec"]["replicaSpecs"].values():
        (container,) = replicas["template"]["spec"]["containers"]
        container |= {
            "command": [str(PYTHON), str(SCRIPT)],
            "args": [],
            "env": [*map(dict, variables)],
        }
    out = str(folder / "out")
    job["everstep"] = {"model_dir": out, "checkpoints": {"path": out}}
    return [settings, job]


def test_retry_and_recover_of_mindcluster_keep_processes(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all(ascend_job(folder, "cut:0:15,forward:1:30")))
    done = machine.everstep("run", str(path), "--nodes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    restarts = json.loads(machine.everstep("restarts", "survivors", "--json").stdout)
    assert [(r["level"], r["resume_step"]) for r in restarts] == [
        ("process_online", 14),
        ("process", 29),
    ]
    assert processes(folder) == [1, 2]
    assert final(folder / "out") == expected(2)


def printed(code: str) -> str:
    """What this code prints where PyTorch is."""
    done = subprocess.run(
        [PYTHON, "-c", code],
        check=False,
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_error_of_the_script_is_none_of_the_group() -> None:
    assert printed(ERRORS) == "False False True True\n"


def test_rank_0_does_not_wait_for_a_port_that_is_taken() -> None:
    assert printed(PORT_IN_USE) == "it ended at once\n"


PORT_IN_USE = """
import os, socket
from everstep.train.torch import Group

taken = socket.create_server(("127.0.0.1", 0))
port = taken.getsockname()[1]
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
try:
    Group("gloo", timeout_s=1e6)
except RuntimeError as error:
    assert f"the store of the group at 127.0.0.1:{port}" in str(error), error
    print("it ended at once")
"""


def test_copies_that_are_no_parts_of_the_world_are_refused() -> None:
    assert printed(COPIES) == "copies has to name each rank from 0 to 2 once\n" * 3


COPIES = """
from everstep.train.torch import _checked_copies

for wrong in ([[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2, 3]]):
    try:
        _checked_copies(wrong, 3)
    except ValueError as error:
        print(error)
assert _checked_copies([[2, 0], [1]], 3) == ((0, 2), (1,))
"""


ERRORS = """
import torch.distributed as dist
from types import SimpleNamespace
from everstep.train.torch import Group

group = Group.__new__(Group)

def is_interruption(do, is_held=False):
    group._orders = SimpleNamespace(is_held=is_held)
    try:
        do()
    except RuntimeError as error:
        return group._is_interruption(error)

def own_store():
    raise RuntimeError("the store of features timed out")

def wrong_shape():
    import torch
    torch.ones(2) @ torch.ones(3)

def of_the_group():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=1, world_size=2, timeout=SECOND)

import datetime
SECOND = datetime.timedelta(seconds=1)
print(*map(is_interruption, (own_store, wrong_shape, of_the_group)), is_interruption(own_store, True))
"""


def test_a_rank_has_what_it_was_given_whatever_interrupts_the_others() -> None:
    assert printed(SHARED) == "interrupted 7 False\n"


SHARED = """
from everstep.train.torch import Group

group = Group.__new__(Group)
group.rank, group.completed, group._is_torn, group._replicas = 1, 6, True, []
group._copies = ((0, 1, 2),)
group._gathered = lambda own_step: [7, own_step, 6]

def pass_on(state, donor, receiver):
    if receiver == 2:
        raise RuntimeError("rank 0 is gone")

group._pass_on = pass_on
try:
    group._share({})
except RuntimeError:
    print("interrupted", group.completed, group._is_torn)
"""
