"""A training that is hit three times and ends with the same weights: `python examples/demo.py`.

Everything is real: a Temporal server with its UI, a worker, four ranks of examples/synthetic on this
machine, the job started by the `temporal` command line, faults done to processes. At the end its
weights are compared with those of a run that nobody disturbed. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from temporalio.client import Client
from temporalio.service import RPCError

from everstep import devserver, processes
from everstep.agent.observing import hardware
from everstep.cli import pages
from everstep.cli.jobs.watching import Lines
from everstep.cli.output import show as print_page
from everstep.client import machine
from everstep.client.exit_codes import Failed
from everstep.client.jobs.glances import Glance, look
from everstep.client.serving import other_users
from everstep.client.serving.holding import ServerAddress
from everstep.client.serving.served import served
from everstep.client.serving.working import Machine
from everstep.converter import data_converter
from everstep.core import names
from everstep.documents.text import read_text
from everstep.processes import Process, ProcessFailed, environment, free_port

EXAMPLE = Path(__file__).resolve().with_name("synthetic")

JOB = "demo"
NODES = 5  # one to spare
STEP_S, STEPS = 0.08, "140"
HANG_S = 3
QUIET_START_S = 4.0
"""So long server and worker take to start on a machine that does nothing else."""
SLOWEST = 10.0
START_S = 30.0
JOB_S = 180.0
POLL_S = 0.1
ORPHAN_S = "15"
"""Were we killed, agents would end themselves after this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What goes wrong, once the main phase has come to this step."""

    step: int
    fault: str
    meaning: str


TROUBLES = (
    Trouble(step=30, fault=f"kill {JOB} 2", meaning="a training process is killed"),
    Trouble(step=60, fault=f"hang {JOB} 1", meaning="a training process hangs"),
    Trouble(step=90, fault="node-down n2", meaning="a node is lost"),
)


class Broken(Exception):
    """The demo did not show what it is there to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where everything of one demo is."""

    directory: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.began

    def say(self, what: str, details: str = "") -> None:
        print(f"{self.passed_s:7.1f} s  {what:<9} {details}".rstrip(), flush=True)


def slowness(start_s: float) -> float:
    """How many times slower than quiet this machine is now, by the time that its server and worker took."""
    return min(max(1.0, start_s / QUIET_START_S), SLOWEST)


def document(folder: Path, *, slowness: float) -> dict[str, Any]:
    """The example's job with places that anybody finds, faster steps, and less patience with a hang.

    On a busy machine steps take longer, so that every fault still comes before the last step.
    """
    body: dict[str, Any] = read_text((EXAMPLE / "job.yaml").read_text())
    body["metadata"]["name"] = JOB
    spec = body["spec"]
    spec["command"] = [sys.executable, "train.py"]
    spec["workdir"] = str(folder)
    spec["env"]["STEP_S"] = f"{STEP_S * slowness:.2f}"
    spec["limits"] = {"hang_s": HANG_S}
    spec["phases"][-1]["env"]["STEPS"] = STEPS
    return body


# -- The run that nobody disturbs ---------------------------------------------------------------


async def undisturbed(stage: Stage, body: Mapping[str, Any]) -> str:
    """One process, without us: its weights are the same for any number of ranks."""
    folder = stage.directory / "alone"
    folder.mkdir()
    resume: dict[str, str] = {}
    for phase in body["spec"]["phases"]:
        env = {**body["spec"]["env"], **phase["env"], **resume, "STEP_S": "0"}
        alone = Process(
            [sys.executable, str(EXAMPLE / "train.py")],
            name="the undisturbed run",
            log=folder / "output.log",
            env=environment(
                RANK="0",
                WORLD_SIZE="1",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(free_port()),
                **env,
            ),
            cwd=folder,
        )
        await alone.succeeds(within_s=JOB_S)
        step = env["STEPS"]
        path = Path(env["CHECKPOINTS"]) / f"step-{step}.json"
        resume = {"EVERSTEP_RESUME_STEP": step, "EVERSTEP_RESUME_PATH": str(path)}
    return weights(folder)


def weights(folder: Path) -> str:
    said = json.loads((folder / "out" / "ckpt" / "final.json").read_text())
    return str(said["weights_sha256"])


# -- The job ------------------------------------------------------------------------------------


def start_line(body: str) -> list[str]:
    """How a job is submitted with the `temporal` command line: once, whatever is repeated."""
    return [
        *("temporal", "workflow", "start"),
        *("--type", names.TRAINING_JOB, "--task-queue", names.TASK_QUEUE, "--workflow-id", JOB),
        *("--id-reuse-policy", "RejectDuplicate", "--fail-existing", "--task-timeout", "3s"),
        *("--input-file", body),
    ]


async def submit(stage: Stage, folder: Path, body: Mapping[str, Any], *, server: str) -> None:
    (folder / "demo.json").write_text(json.dumps(body, indent=2))
    line = start_line("demo.json")
    stage.say("submit", shlex.join(line))
    command = Process(
        [devserver.temporal_binary(), *line[1:]],
        name="temporal workflow start",
        log=folder / "submit.log",
        env=environment(TEMPORAL_ADDRESS=server),
        cwd=folder,
    )
    await command.succeeds(within_s=START_S)


Strike = Callable[[Stage, Trouble], Awaitable[None]]


async def strike(stage: Stage, trouble: Trouble) -> None:
    """What `everstep fault` does, without the time that a command takes to start."""
    stage.say("fault", f"{trouble.meaning}: everstep fault {trouble.fault}")
    try:
        await machine.own_tools().fault(trouble.fault)
    except ValueError as error:
        raise Broken(f"everstep fault {trouble.fault}: {error}") from None


async def follow(
    stage: Stage, client: Client, troubles: Sequence[Trouble] = TROUBLES, strike: Strike = strike
) -> Glance:
    """Show the job and let things go wrong until it has ended; the last look at it."""
    screen, coming, known = Lines(began=stage.began), deque(troubles), -1
    while True:
        glance = await look(client, JOB)
        screen.show(glance)
        if glance.has_ended:
            return glance
        if coming and is_due(coming[0], glance, known=known):
            known = len(glance.restarts)
            await strike(stage, coming.popleft())
        await asyncio.sleep(POLL_S)


def is_due(trouble: Trouble, glance: Glance, *, known: int) -> bool:
    """The job trains, has got over what came since so many restarts were known, and has reached the step.

    It has once it makes steps again after its newest restart: until the first one no silence is a hang for
    minutes. One that gave way to the next level never sees a step.
    """
    status, restarts = glance.status, glance.restarts
    is_up = status.get("state") == "running" and status["phase"] == "main"
    is_over = all(record["stages_s"].get("first_step") is not None for record in restarts[-1:])
    return is_up and is_over and len(restarts) > known and (status["step"] or 0) >= trouble.step


# -- The whole ----------------------------------------------------------------------------------


async def play(stage: Stage, *, keep: bool) -> None:
    """The demo, from the empty machine to the proof."""
    folder = stage.directory / "together"
    folder.mkdir()
    shutil.copy(EXAMPLE / "train.py", folder)
    for trouble in TROUBLES:
        stage.say("", f"from step {trouble.step} on: {trouble.meaning}")
    async with served(
        Machine(nodes=NODES, devices=hardware.devices("simulated"), allows_others=True)
    ) as shared:
        server = shared.place
        stage.say("server", f"Temporal at {server.address}, its UI at {server.ui}")
        stage.say("worker", f"ready; this machine plays {NODES} nodes, n0 to n{NODES - 1}")
        if others := other_users.other_users():
            stage.say("note", other_users.problem(others))
        client = await Client.connect(server.address, data_converter=data_converter())
        slower = slowness(stage.passed_s)
        body = document(folder, slowness=slower)
        await submit(stage, folder, body, server=server.address)
        alone = asyncio.create_task(undisturbed(stage, body))
        async with asyncio.timeout(JOB_S * slower):
            last = await follow(stage, client)
            expected = await alone
        conclude(last, folder, alone=expected)
        for text in closing(server.ui, exports(server), keep=keep):
            print(text, flush=True)
        if keep:
            await asyncio.Event().wait()


def conclude(last: Glance, folder: Path, *, alone: str) -> None:
    """Print the restarts and the proof."""
    print()
    print_page([dict(record) for record in last.restarts], pages.restarts, as_json=False)
    prove(last, together=weights_of(last, folder), alone=alone)


def weights_of(last: Glance, folder: Path) -> str:
    if last.status["state"] != "completed":
        raise Broken(f"the job ended as {last.status['state']}: {last.status.get('reason')}")
    return weights(folder)


def prove(last: Glance, *, together: str, alone: str) -> None:
    """The whole point: three faults, and not a bit is different."""
    if len(last.restarts) < len(TROUBLES):
        happened = f"only {len(last.restarts)} of {len(TROUBLES)} faults"
        raise Broken(f"the training met {happened} before its last step; this machine is too busy")
    print()
    print(
        f"Weights of four ranks after {len(last.restarts)} restarts, and of one process, undisturbed:"
    )
    print(f"  {together}\n  {alone}")
    if together != alone:
        raise Broken("the weights differ")
    print("They are equal, to the last bit.\n")


def closing(
    ui: str, variables: Mapping[str, str], *, keep: bool, recipe: str = "demo"
) -> list[str]:
    """Where to look."""
    if not keep:
        return [
            f"To look at it in the Temporal UI, keep it running: make {recipe} ARGS=--keep",
            "Every restart is a row there: workflow type Recovery, a timeline of steps each.",
        ]
    jobs = f"{ui}/namespaces/default/workflows"
    return [
        f"In the Temporal UI     {jobs}",
        f"The job                {jobs}/{JOB}",
        f"Its restarts           {jobs}?query=WorkflowType%3D%22Recovery%22",
        "In another terminal, before `everstep` and `temporal` commands:",
        *(f"export {name}={value}" for name, value in variables.items()),
        "Ctrl-C ends it all.",
    ]


def exports(server: ServerAddress) -> dict[str, str]:
    """What commands elsewhere have to be told to find this server, its cluster and themselves."""
    return {
        "TEMPORAL_ADDRESS": server.address,
        "EVERSTEP_HOME": shlex.quote(os.environ["EVERSTEP_HOME"]),
        "PATH": f'"$PATH:{Path(sys.executable).parent}"',
    }


async def run(*, keep: bool) -> None:
    processes.end_on(signal.SIGTERM, signal.SIGHUP)
    print("A training of two phases on four nodes, and three faults on their way to it.\n")
    with tempfile.TemporaryDirectory(prefix="everstep-demo-") as directory:
        stage = Stage(directory=Path(directory))
        os.environ |= {"EVERSTEP_HOME": str(stage.home), "EVERSTEP_ORPHAN_S": ORPHAN_S}
        try:
            await play(stage, keep=keep)
        finally:
            processes.end_all()
            await machine.own_tools().clear()
            print(f"\nEvery process is ended. {stage.passed_s:.1f} s in all.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python examples/demo.py", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="stay until Ctrl-C, to look around")
    keep: bool = parser.parse_args(arguments).keep
    return exit_code_of(run(keep=keep))


def exit_code_of(demo: Coroutine[Any, Any, None]) -> int:
    """Run a demo; what went wrong is one line."""
    try:
        asyncio.run(demo)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    except TimeoutError:
        return _failed("the job did not end in time")
    except (Broken, Failed, ProcessFailed, RPCError, OSError) as error:
        return _failed(str(error))
    return 0


def _failed(why: str) -> int:
    sys.stderr.write(f"demo: {why}\n")
    return 1


def leave(code: int) -> NoReturn:
    """The SDK's threads may crash an interpreter that is on its way out, and spoil the exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
