"""examples/synthetic: the same bits whatever happens. Every rank that trains is a real process.

More ranks and seeds, which are long, look for a moment that the first ones miss.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from everstep.dialects.registry import validate
from everstep.documents.text import read_text
from everstep.processes import free_port
from tests.support.child import Child
from tests.support.patience import HUNG_S

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "synthetic"
SCRIPT = FOLDER / "train.py"

STEPS = 30
EVERY = 5


started: list[Child] = []


@pytest.fixture(autouse=True)
def leave_nothing_running() -> Iterator[None]:
    yield
    while started:
        started.pop().kill()


# --- Starting and reading --------------------------------------------------------------------------


class Start:
    """One start of all ranks, or of some, that write to one folder."""

    def __init__(self, out: Path, world: int, **env: object) -> None:
        self.out = out
        self.checkpoints = out / "ckpt"
        self._env = {
            "PATH": os.environ["PATH"],
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "CHECKPOINTS": str(self.checkpoints),
            "STEPS": str(STEPS),
            "CHECKPOINT_EVERY": str(EVERY),
            **{name: str(value) for name, value in env.items()},
        }
        self.port = int(self._env["MASTER_PORT"])
        self.ranks: dict[int, Child] = {}

    def rank(self, number: int, **env: object) -> Child:
        log = self.out / f"rank-{number}-{len(list(self.out.glob('*.log')))}.log"
        variables = {name: str(value) for name, value in env.items()}
        child = Child(
            [sys.executable, str(SCRIPT)],
            name=f"rank {number}",
            log=log,
            env={**self._env, "RANK": str(number), **variables},
        )
        self.ranks[number] = child
        started.append(child)
        return child

    def all(self) -> Start:
        for number in range(int(self._env["WORLD_SIZE"])):
            self.rank(number)
        return self

    async def codes(self, *, within_s: float = HUNG_S) -> list[int]:
        return [await child.ended(within_s=within_s) for child in self.ranks.values()]

    async def succeed(self) -> None:
        codes = await self.codes()
        assert not any(codes), [child.output() for child in self.ranks.values()]

    def kill(self) -> None:
        for child in self.ranks.values():
            child.kill()


def steps_of(child: Child) -> list[int]:
    return [
        int(step) for step in re.findall(r"^step (\d+) loss \S+$", child.output(), re.MULTILINE)
    ]


async def until_step(child: Child, step: int) -> None:
    async def reached() -> bool:
        return step in steps_of(child)

    await child.until(reached, within_s=HUNG_S)


def saved(start: Start) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in start.checkpoints.glob("[!.]*")}


def loaded(path: Path) -> dict[str, Any]:
    """Reads it as its documentation says, not as the script does."""
    body: dict[str, Any] = json.loads(path.read_text())
    checksum = body.pop("sha256")
    assert checksum == hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    assert path.name == f"step-{body['step']}.json"
    assert all(len([float.fromhex(x) for x in body[key]]) == 256 for key in ("weights", "momentum"))
    return body


def newest(start: Start) -> dict[str, str]:
    """What Everstep would say at the next start."""
    steps = [int(path.stem.partition("-")[2]) for path in start.checkpoints.glob("step-*.json")]
    if not steps:
        return {}
    path = start.checkpoints / f"step-{max(steps)}.json"
    return {"EVERSTEP_RESUME_PATH": str(path), "EVERSTEP_RESUME_STEP": str(max(steps))}


def only_line(child: Child) -> str:
    """Its output besides its steps."""
    lines = [line for line in child.output().splitlines() if not line.startswith("step ")]
    assert len(lines) == 1, child.output()
    return lines[0]


@pytest.fixture(scope="module")
async def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """Every file of a run of one rank that nothing happened to."""
    start = Start(tmp_path_factory.mktemp("undisturbed"), 1).all()
    await start.succeed()
    assert set(saved(start)) == {"final.json", *(f"step-{n}.json" for n in range(5, 31, 5))}
    return saved(start)


# --- The same bits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "world", [2, *(pytest.param(world, marks=pytest.mark.long) for world in (3, 4, 14))]
)
async def test_any_number_of_ranks_trains_the_same_weights(
    world: int, tmp_path: Path, undisturbed: Mapping[str, bytes]
) -> None:
    start = Start(tmp_path, world).all()
    await start.succeed()
    assert saved(start) == undisturbed
    assert all(steps_of(child) == [*range(1, STEPS + 1)] for child in start.ranks.values())


async def test_it_learns(tmp_path: Path) -> None:
    start = Start(tmp_path, 1, STEPS=100).all()
    await start.succeed()
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", start.ranks[0].output())]
    assert losses[-1] < losses[0] / 50


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 12))]
)
async def test_a_run_killed_at_any_step_ends_with_the_same_weights(
    seed: int, tmp_path: Path, undisturbed: Mapping[str, bytes]
) -> None:
    chance = random.Random(seed)
    start = Start(tmp_path, 2, STEP_S=0.005).all()
    await until_step(start.ranks[chance.randrange(2)], chance.randrange(1, STEPS - 2))
    start.kill()
    again = Start(tmp_path, chance.choice([1, 2, 3]), **newest(start)).all()
    await again.succeed()
    assert saved(again) == undisturbed


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.long)])
async def test_every_checkpoint_is_whole_whenever_its_writer_is_killed(
    kills: int, tmp_path: Path
) -> None:
    """It saves without a pause, so that most of these kills hit a checkpoint being written."""
    chance = random.Random(kills)
    start = Start(tmp_path, 1, STEPS=1_000_000, CHECKPOINT_EVERY=1)
    for _ in range(kills):
        before = int(newest(start).get("EVERSTEP_RESUME_STEP", 0))
        child = start.rank(0, **newest(start))
        await until_step(child, before + chance.randrange(1, 4))
        await asyncio.sleep(chance.random() * 0.02)  # a moment, not a wait
        child.kill()
        for path in start.checkpoints.glob("step-*.json"):
            loaded(path)

    reached = newest(start)["EVERSTEP_RESUME_STEP"]
    plain = Start(tmp_path / "plain", 1, STEPS=reached, CHECKPOINT_EVERY=reached)
    plain.out.mkdir()
    await plain.all().succeed()
    last = f"step-{reached}.json"
    assert saved(plain)[last] == saved(start)[last]


async def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    start = Start(tmp_path, 1)
    start.checkpoints.mkdir()
    (start.checkpoints / ".step-5.json.123.tmp").write_text("{")
    await start.all().succeed()
    assert not list(start.checkpoints.glob(".*"))


async def test_a_run_that_has_all_its_steps_only_ends(
    tmp_path: Path, undisturbed: Mapping[str, bytes]
) -> None:
    first = Start(tmp_path, 2).all()
    await first.succeed()
    (first.checkpoints / "final.json").unlink()
    again = Start(tmp_path, 2, **newest(first)).all()
    await again.succeed()
    assert saved(again) == undisturbed
    assert not steps_of(again.ranks[0])


# --- Peers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1, pytest.param(2, marks=pytest.mark.long)])
async def test_a_peers_death_ends_the_others(victim: int, tmp_path: Path) -> None:
    start = Start(tmp_path, 3, STEPS=1_000_000, STEP_S=0.01, CHECKPOINT_EVERY=0).all()
    await until_step(start.ranks[1], 3)
    start.ranks.pop(victim).kill()
    assert await start.codes(within_s=HUNG_S) == [1, 1]
    for number, child in start.ranks.items():
        lost_rank = victim if number == 0 else 0
        assert only_line(child) == f"train.py: rank {number}: rank {lost_rank} is gone"


async def test_nobody_is_done_before_everything_is_written(tmp_path: Path) -> None:
    start = Start(tmp_path, 3, CHECKPOINT_EVERY=0)
    (start.checkpoints / "final.json").mkdir(parents=True)  # in the way
    assert await start.all().codes() == [1, 1, 1]
    assert "Is a directory" in only_line(start.ranks[0])
    assert only_line(start.ranks[2]) == "train.py: rank 2: rank 0 is gone"


async def test_a_stopped_peer_is_waited_for(
    tmp_path: Path, undisturbed: Mapping[str, bytes]
) -> None:
    start = Start(tmp_path, 3, STEP_S=0.01).all()
    await until_step(start.ranks[1], 3)
    start.ranks[1].send(signal.SIGSTOP)
    await _until_nothing_moves(start.ranks.values())
    assert all(child.returncode is None for child in start.ranks.values())
    assert max(steps_of(start.ranks[0])) < STEPS
    start.ranks[1].send(signal.SIGCONT)
    await start.succeed()
    assert saved(start) == undisturbed


async def _until_nothing_moves(ranks: Iterable[Child]) -> None:
    """Nothing new was printed for thirty times as long as a step takes."""
    before = None
    while before != (before := [child.output() for child in ranks]):
        await asyncio.sleep(0.3)


async def test_ranks_find_each_other_in_any_order(
    tmp_path: Path, undisturbed: Mapping[str, bytes]
) -> None:
    start = Start(tmp_path, 3)
    await _until_it_calls(start, start.rank(2, SEEN=1))
    start.rank(0)
    start.rank(1)
    await start.succeed()
    assert saved(start) == undisturbed


async def _until_it_calls(start: Start, child: Child) -> None:
    """What it writes down is the last thing it does before."""

    async def has_written() -> bool:
        return any(start.out.glob("seen/0-*.json"))

    await child.until(has_written, within_s=HUNG_S)


@pytest.mark.parametrize(
    ("rank", "why"),
    [(0, "rank 1, 2 did not come within 0.2 s"), (1, "nobody listened on .* within 0.2 s")],
)
async def test_who_finds_nobody_ends(rank: int, why: str, tmp_path: Path) -> None:
    start = Start(tmp_path, 3, RENDEZVOUS_S=0.2)
    child = start.rank(rank)
    assert await child.ended(within_s=HUNG_S) == 1
    assert re.search(why, only_line(child))


async def test_strangers_and_other_generations_are_not_let_in(
    tmp_path: Path, undisturbed: Mapping[str, bytes]
) -> None:
    start = Start(tmp_path, 2, EVERSTEP_GENERATION=2)
    rank_0 = start.rank(0)
    await _until_greeted(rank_0, start.port, b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n" * 2)
    old = start.rank(1, EVERSTEP_GENERATION=1)
    assert await old.ended(within_s=HUNG_S) == 1
    assert only_line(old) == "train.py: rank 1: rank 0 is gone, or did not let us in"
    start.rank(1)
    await start.succeed()
    assert saved(start) == undisturbed


async def _until_greeted(child: Child, port: int, words: bytes) -> None:
    async def greeted() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port)) as link:
                link.sendall(words)
        except ConnectionRefusedError:
            return False
        return True

    await child.until(greeted, within_s=HUNG_S)


# --- Faults asked for, and records -----------------------------------------------------------------


async def test_a_crash_that_was_asked_for_happens_once(
    tmp_path: Path, undisturbed: Mapping[str, bytes]
) -> None:
    first = Start(tmp_path, 2, CRASH_AT_STEP="1:12:5,0:18:7").all()
    assert await first.codes() == [1, 5]
    assert steps_of(first.ranks[1])[-1] == 11
    second = Start(tmp_path, 2, CRASH_AT_STEP="1:12:5,0:18:7", **newest(first)).all()
    assert await second.codes() == [7, 1]
    third = Start(tmp_path, 2, CRASH_AT_STEP="1:12:5,0:18:7", **newest(second)).all()
    await third.succeed()
    assert steps_of(third.ranks[0])[0] == 16
    assert saved(third) == undisturbed


async def test_a_step_alone_crashes_rank_0(tmp_path: Path) -> None:
    start = Start(tmp_path, 2, CRASH_AT_STEP="4").all()
    assert await start.codes() == [1, 1]
    assert only_line(start.ranks[0]) == "train.py: rank 0 crashes at step 4, as told"


async def test_it_writes_down_what_it_was_told(tmp_path: Path) -> None:
    start = Start(tmp_path, 2, SEEN=1, EVERSTEP_GENERATION=3, MA_SCHEDULE_CNT=2, SECRET="no").all()
    await start.succeed()
    state_of_rank = json.loads((tmp_path / "seen" / "3-1.json").read_text())
    assert state_of_rank == {
        "EVERSTEP_GENERATION": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(start.port),
        "MA_SCHEDULE_CNT": "2",
        "RANK": "1",
        "WORLD_SIZE": "2",
    }
    assert {path.name for path in (tmp_path / "seen").iterdir()} == {"3-0.json", "3-1.json"}


# --- What cannot work ------------------------------------------------------------------------------

WRONG: tuple[tuple[dict[str, str], str], ...] = (
    ({"RANK": ""}, "RANK is not set"),
    ({"WORLD_SIZE": ""}, "WORLD_SIZE is not set"),
    ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
    ({"MASTER_PORT": ""}, "MASTER_PORT is not set"),
    ({"CHECKPOINTS": ""}, "CHECKPOINTS is not set"),
    ({"RANK": "-1"}, "RANK must be a whole number from 0, not '-1'"),
    ({"RANK": "2"}, "RANK must be below WORLD_SIZE (2), not 2"),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be a whole number from 1, not '0'"),
    ({"WORLD_SIZE": "two\nlines"}, r"WORLD_SIZE must be a whole number from 1, not 'two\nlines'"),
    ({"MASTER_PORT": "70000"}, "MASTER_PORT must be at most 65535, not 70000"),
    ({"STEPS": "9" * 5000}, f"STEPS must be a whole number from 0, not '{'9' * 40}'"),
    ({"STEPS": "²"}, "STEPS must be a whole number from 0, not '²'"),
    ({"STEP_S": "nan"}, "STEP_S must be a number from 0, not 'nan'"),
    ({"STEP_S": "-1"}, "STEP_S must be a number from 0, not '-1'"),
    ({"LR": "high"}, "LR must be a number from 0, not 'high'"),
    ({"CHECKPOINT_EVERY": "1.5"}, "CHECKPOINT_EVERY must be a whole number from 0, not '1.5'"),
    ({"CRASH_AT_STEP": "1:2"}, "CRASH_AT_STEP must be a step, or rank:step:code, not '1:2'"),
    ({"CRASH_AT_STEP": "5,x"}, "CRASH_AT_STEP must be a step, or rank:step:code, not 'x'"),
    ({"CRASH_AT_STEP": "0:5:256"}, "CRASH_AT_STEP must have a code of at most 255, not 256"),
    ({"EVERSTEP_GENERATION": "../3"}, "EVERSTEP_GENERATION must be a whole number from 0, not"),
    (
        {"EVERSTEP_RESUME_STEP": "5"},
        "EVERSTEP_RESUME_STEP is set, but EVERSTEP_RESUME_PATH is not",
    ),
)


def variables(folder: Path, **wrong: str) -> dict[str, str]:
    """The variables of a rank, of which these are wrong."""
    usual = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "20000",
        "CHECKPOINTS": str(folder / "ckpt"),
        "PYTHONUTF8": "1",
    }
    return {**usual, **wrong}


Script = Callable[[dict[str, str]], tuple[int, str, str]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    """The script, called in this process with these variables: its exit code, output and errors."""

    def call(env: dict[str, str]) -> tuple[int, str, str]:
        spec = importlib.util.spec_from_file_location("synthetic_train", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        monkeypatch.setattr(os, "environ", env)
        monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
        handler = signal.getsignal(signal.SIGINT)
        try:
            spec.loader.exec_module(module)
            code = module.main()
        finally:
            signal.signal(signal.SIGINT, handler)
            monkeypatch.undo()
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.mark.parametrize(("env", "why"), WRONG, ids=[repr(env)[1:40] for env, _ in WRONG])
def test_wrong_variables_end_in_one_line(
    env: dict[str, str], why: str, tmp_path: Path, script: Script
) -> None:
    code, output, errors = script(variables(tmp_path, **env))
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert errors.startswith(f"train.py: {why}")
    assert not any(tmp_path.iterdir())


def test_a_wrong_variable_ends_the_process_with_2(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=variables(tmp_path, STEPS="²"),
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "train.py: STEPS must be a whole number from 0, not '²'\n"


def _flip(data: bytes) -> bytes:
    at = data.index(b"0x1.") + 4
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: Mapping[str, Callable[[bytes], bytes]] = {
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "another bit": _flip,
    "not text": lambda data: b"\xff\xfe" + data,
    "not an object": lambda _: b"[1, 2]",
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_checkpoint_is_refused(
    damage: str, tmp_path: Path, undisturbed: Mapping[str, bytes]
) -> None:
    path = tmp_path / "step-10.json"
    path.write_bytes(DAMAGE[damage](undisturbed["step-10.json"]))
    child = Start(tmp_path, 1, EVERSTEP_RESUME_PATH=path).rank(0)
    assert await child.ended(within_s=HUNG_S) == 1
    assert only_line(child).startswith(f"train.py: rank 0: checkpoint {path}")


async def test_a_checkpoint_that_is_not_there_is_not_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "step-10.json"
    child = Start(tmp_path, 1, EVERSTEP_RESUME_PATH=path).rank(0)
    assert await child.ended(within_s=HUNG_S) == 1
    why = f"train.py: rank 0: checkpoint {path}: No such file or directory"
    assert only_line(child) == why


async def test_a_checkpoint_of_another_step_is_refused(
    tmp_path: Path, undisturbed: Mapping[str, bytes]
) -> None:
    path = tmp_path / "step-10.json"
    path.write_bytes(undisturbed["step-10.json"])
    start = Start(tmp_path, 1, EVERSTEP_RESUME_PATH=path, EVERSTEP_RESUME_STEP=15)
    child = start.rank(0)
    assert await child.ended(within_s=HUNG_S) == 2
    assert only_line(child) == f"train.py: EVERSTEP_RESUME_STEP is 15, but {path} is of step 10"


async def test_a_rate_that_is_too_high_ends_on_every_rank(tmp_path: Path) -> None:
    start = Start(tmp_path, 2, LR=1_000_000, STEPS=1000).all()
    assert await start.codes() == [1, 1]
    for number, child in start.ranks.items():
        assert re.search(rf"rank {number}: the loss of step \d+ is not a number", only_line(child))


# --- The document and the page ---------------------------------------------------------------------


def test_the_document_is_valid() -> None:
    verdict = validate((FOLDER / "job.yaml").read_text())
    assert verdict.ok, verdict.errors
    assert not verdict.notes


async def test_the_script_does_what_the_document_says(tmp_path: Path) -> None:
    spec = read_text((FOLDER / "job.yaml").read_text())["spec"]
    assert SCRIPT.name in spec["command"]
    pattern = re.compile(spec["progress"]["log_pattern"], re.MULTILINE)
    resume: dict[str, str] = {}
    made: list[int] = []
    for phase in spec["phases"]:
        env = {**spec["env"], **phase["env"], "STEP_S": "0", **resume}
        env["CHECKPOINTS"] = str(tmp_path / "ckpt")  # in the document it is below its own folder
        start = Start(tmp_path, spec["nodes"], **env).all()
        await start.succeed()
        made += [int(match["step"]) for match in pattern.finditer(start.ranks[3].output())]
        resume = newest(start)
    assert made == [*range(1, 101)]
    assert spec["env"]["CHECKPOINTS"] == spec["checkpoints"]["path"]


def test_the_commands_for_doing_it_by_hand_work(tmp_path: Path) -> None:
    page = (FOLDER / "README.md").read_text()
    by_hand = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    shutil.copy(SCRIPT, tmp_path)
    ended = subprocess.run(
        ["/bin/sh", "-ec", by_hand.replace("29500", str(free_port()))],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert '"step": 60' in ended.stdout
