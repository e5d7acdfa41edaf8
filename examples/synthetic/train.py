"""Data-parallel training over real sockets, small enough to be read: no library, Python 3.10 or newer.

Every rank runs this file and fits one linear model with SGD and momentum. The batch of a step is a
fixed number of shards, made from the step and the shard's number alone; each rank computes its
shards, rank 0 adds all of them up in the order of their numbers and sends the sum to everybody. So
the weights of a step are the same to the last bit for any number of ranks, any timing, and any
history of crashes and resumes. Only operations that IEEE 754 rounds exactly are used: + - *, and
`fsum`.

What drives it, all from the environment:

  RANK WORLD_SIZE MASTER_ADDR MASTER_PORT   who this rank is, and where rank 0 listens
  CHECKPOINTS           folder of step-<N>.json and final.json; or the first argument
  MODEL_DIR             folder of what else is written; the one around CHECKPOINTS
  STEPS                 number of the last step (100)
  STEP_S                seconds that a step takes at least (0)
  CHECKPOINT_EVERY      steps from one checkpoint to the next (10; 0 is never)
  LR                    learning rate (0.02)
  RENDEZVOUS_S          seconds until all ranks must have come (60)
  EVERSTEP_RESUME_PATH  the checkpoint to go on from; without it a run starts anew
  EVERSTEP_RESUME_STEP  the step it must be of
  EVERSTEP_GENERATION   ranks of another generation are refused (0)
  CRASH_AT_STEP         rank:step:code, or the step alone for rank 0 and code 1; several with commas
                        between them. Each crash happens once: it leaves MODEL_DIR/crashed-<crash>
  SEEN                  1: write the variables of this rank to MODEL_DIR/seen/<generation>-<rank>.json

A checkpoint is one JSON object: `step`; `weights` and `momentum`, lists of exact hexadecimal
floats; `sha256` over the others. It is written under another name, beginning with a dot, and renamed
when all of it is on the disk: a file named step-<N>.json is whole whenever one looks.

Exit codes: 0 done on all ranks, 1 a peer, a checkpoint or the storage failed, 2 wrong variables.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Any

SHARDS = 12
EXAMPLES = 2  # of a shard
WEIGHTS = 256
MOMENTUM = 0.9
NOISE = 0.01
DATA_SEED = 1 << 64  # above every step: no batch has the seed of the truth
RETRY_S = 0.05
HELLO_S = 5.0  # whoever connects says who it is at once, or is not one of us

HELLO = struct.Struct("<8sQQQQ")  # MAGIC, rank, world size, generation, step
MAGIC = b"everstep"
WELCOME = b"all here"
GOODBYE = b"all done"

Vector = list[float]
SUM = struct.Struct(f"<{WEIGHTS + 1}d")  # the gradient, and the loss at its end


class WrongSettings(Exception):
    """The environment is not one to train in."""


class CannotGoOn(Exception):
    """This start is over: another one may have more luck."""


# --- Settings --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crash:
    rank: int
    step: int
    code: int


@dataclass(frozen=True)
class Settings:
    rank: int
    world: int
    address: str
    port: int
    checkpoints: Path
    model_dir: Path
    steps: int
    step_s: float
    checkpoint_every: int
    rate: float
    rendezvous_s: float
    resume_path: Path | None
    resume_step: int | None
    generation: int
    crashes: tuple[Crash, ...]
    seen: bool


class Variables:
    """The environment, read with care. An empty variable is one that is not set."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str, default: str | None = None) -> str:
        value = self._env.get(name) or default
        if value is None:
            raise WrongSettings(f"{name} is not set")
        return value

    def whole(self, name: str, default: str | None = None, *, least: int = 0) -> int:
        text = self.text(name, default)
        if not re.fullmatch("[0-9]{1,15}", text) or int(text) < least:
            raise WrongSettings(f"{name} must be a whole number from {least}, not {text[:40]!r}")
        return int(text)

    def number(self, name: str, default: str) -> float:
        text = self.text(name, default)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0.0 <= value <= 1e6:
            raise WrongSettings(f"{name} must be a number from 0, not {text[:40]!r}")
        return value

    def crashes(self, name: str) -> tuple[Crash, ...]:
        rows = self._env.get(name, "").split(",")
        return tuple(_crash(name, row) for row in rows if row)


def _crash(name: str, row: str) -> Crash:
    parts = row.split(":") if ":" in row else ["0", row, "1"]
    if len(parts) != 3 or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise WrongSettings(f"{name} must be a step, or rank:step:code, not {row[:40]!r}")
    rank, step, code = map(int, parts)
    if code > 255:
        raise WrongSettings(f"{name} must have a code of at most 255, not {code}")
    return Crash(rank=rank, step=step, code=code)


def settings_of(env: Mapping[str, str], arguments: Sequence[str]) -> Settings:
    """What the environment asks for. Raises `WrongSettings` naming the first variable at fault."""
    read = Variables(env)
    world = read.whole("WORLD_SIZE", least=1)
    rank = read.whole("RANK")
    if rank >= world:
        raise WrongSettings(f"RANK must be below WORLD_SIZE ({world}), not {rank}")
    port = read.whole("MASTER_PORT", least=1)
    if port > 65_535:
        raise WrongSettings(f"MASTER_PORT must be at most 65535, not {port}")
    checkpoints = Path(read.text("CHECKPOINTS", arguments[0] if arguments else None))
    resume_path, resume_step = _resume(read, env)
    return Settings(
        rank=rank,
        world=world,
        address=read.text("MASTER_ADDR"),
        port=port,
        checkpoints=checkpoints,
        model_dir=Path(read.text("MODEL_DIR", str(checkpoints.parent))),
        steps=read.whole("STEPS", "100"),
        step_s=read.number("STEP_S", "0"),
        checkpoint_every=read.whole("CHECKPOINT_EVERY", "10"),
        rate=read.number("LR", "0.02"),
        rendezvous_s=read.number("RENDEZVOUS_S", "60"),
        resume_path=resume_path,
        resume_step=resume_step,
        generation=read.whole("EVERSTEP_GENERATION", "0"),
        crashes=read.crashes("CRASH_AT_STEP"),
        seen=read.text("SEEN", "0") != "0",
    )


def _resume(read: Variables, env: Mapping[str, str]) -> tuple[Path | None, int | None]:
    path, step = env.get("EVERSTEP_RESUME_PATH"), env.get("EVERSTEP_RESUME_STEP")
    if step and not path:  # starting anew instead would lose what was trained
        raise WrongSettings("EVERSTEP_RESUME_STEP is set, but EVERSTEP_RESUME_PATH is not")
    return (
        Path(path) if path else None,
        read.whole("EVERSTEP_RESUME_STEP") if step else None,
    )


# --- The model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """Everything that the next step depends on."""

    step: int
    weights: Vector
    momentum: Vector


def fresh() -> Model:
    return Model(step=0, weights=[0.0] * WEIGHTS, momentum=[0.0] * WEIGHTS)


def numbers(chance: random.Random, count: int) -> Vector:
    """Between -1 and 1. Of a seeded generator only `random()` is the same in every Python."""
    return [2.0 * chance.random() - 1.0 for _ in range(count)]


TRUTH = numbers(random.Random(DATA_SEED), WEIGHTS)


def shards_of(rank: int, world: int) -> range:
    return range(rank, SHARDS, world)


def examples(step: int, shard: int) -> Iterator[tuple[Vector, float]]:
    """Inputs and the answer; made from the step and the shard, whoever asks."""
    chance = random.Random(step * SHARDS + shard)
    for _ in range(EXAMPLES):
        inputs = numbers(chance, WEIGHTS)
        noise = NOISE * (2.0 * chance.random() - 1.0)
        yield inputs, math.fsum(map(mul, TRUTH, inputs)) + noise


def shard_sum(weights: Vector, step: int, shard: int) -> Vector:
    """The shard's part of the gradient, and of the loss at its end."""
    gradient, loss = [0.0] * WEIGHTS, 0.0
    for inputs, answer in examples(step, shard):
        error = math.fsum(map(mul, weights, inputs)) - answer
        gradient = [g + error * x for g, x in zip(gradient, inputs, strict=True)]
        loss += error * error
    return [*gradient, loss]


def in_order(parts: Mapping[int, Vector]) -> Vector:
    """The sum over all shards. Float addition is not associative, so the order is always the same."""
    total = [0.0] * (WEIGHTS + 1)
    for shard in range(SHARDS):
        total = [t + p for t, p in zip(total, parts[shard], strict=True)]
    return total


def stepped(model: Model, gradient: Vector, rate: float) -> Model:
    scale = 1.0 / (SHARDS * EXAMPLES)
    momentum = [MOMENTUM * m + scale * g for m, g in zip(model.momentum, gradient, strict=True)]
    weights = [w - rate * m for w, m in zip(model.weights, momentum, strict=True)]
    return Model(step=model.step + 1, weights=weights, momentum=momentum)


# --- Files -----------------------------------------------------------------------------------------


def write_durably(path: Path, content: Mapping[str, Any]) -> None:
    """All of it or nothing, whenever we are killed; a file that is there stays there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with unfinished.open("w") as file:
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is on the disk too
    finally:
        os.close(folder)


def remove_unfinished(folder: Path) -> None:
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def save(model: Model, folder: Path) -> None:
    body = {
        "step": model.step,
        "weights": [value.hex() for value in model.weights],
        "momentum": [value.hex() for value in model.momentum],
    }
    write_durably(folder / f"step-{model.step}.json", {**body, "sha256": digest(body)})


def load(path: Path) -> Model:
    """The model as it was saved, to the last bit."""
    try:
        body = json.loads(path.read_text())
        if body.pop("sha256") != digest(body):
            raise CannotGoOn(f"checkpoint {path}: its checksum does not match")
        return Model(
            step=body["step"],
            weights=[float.fromhex(text) for text in body["weights"]],
            momentum=[float.fromhex(text) for text in body["momentum"]],
        )
    except OSError as error:
        raise CannotGoOn(f"checkpoint {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CannotGoOn(f"checkpoint {path} is damaged") from None


def write_final(model: Model, folder: Path) -> None:
    weights = digest([value.hex() for value in model.weights])
    write_durably(folder / "final.json", {"step": model.step, "weights_sha256": weights})


def write_seen(says: Settings, env: Mapping[str, str]) -> None:
    """What this rank was told, for those who test who told it."""
    ours = re.compile(
        r"(MA|EVERSTEP)_\w+|(LOCAL_|NODE_)?RANK|(LOCAL_)?WORLD_SIZE|NNODES|MASTER_\w+"
    )
    seen = {name: env[name] for name in sorted(env) if ours.fullmatch(name)}
    write_durably(says.model_dir / "seen" / f"{says.generation}-{says.rank}.json", seen)


# --- The other ranks -------------------------------------------------------------------------------


class Peers:
    """The other ranks: rank 0 is connected to each of them, they are connected to rank 0."""

    def __init__(self, says: Settings, step: int) -> None:
        """Waits for all of them. Only ranks of this generation that start at this step are let in."""
        self._rank, self._world = says.rank, says.world
        self._hello = (says.world, says.generation, step)
        self._links = self._accepted(says) if says.rank == 0 else {0: self._connected(says)}
        for link in self._links.values():
            _never_wait_for_a_lost_machine(link)

    def summed(self, own: Mapping[int, Vector]) -> Vector:
        """The sum over the shards of all ranks, the same bits on each of them."""
        if self._rank != 0:
            self._send(0, b"".join(SUM.pack(*own[shard]) for shard in sorted(own)))
            return list(SUM.unpack(self._receive(0, SUM.size)))
        parts = dict(own)
        for rank in self._links:
            theirs = shards_of(rank, self._world)
            data = self._receive(rank, SUM.size * len(theirs))
            parts.update(zip(theirs, map(list, SUM.iter_unpack(data)), strict=True))
        total = in_order(parts)
        self._send_all(SUM.pack(*total))
        return total

    def part(self) -> None:
        """Rank 0 has finished everything when this returns, on all ranks."""
        if self._rank == 0:
            self._send_all(GOODBYE)
        else:
            self._receive(0, len(GOODBYE))

    def _accepted(self, says: Settings) -> dict[int, socket.socket]:
        deadline = time.monotonic() + says.rendezvous_s
        links: dict[int, socket.socket] = {}
        with _listening(says) as server:
            while len(links) < says.world - 1:
                server.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    link, _ = server.accept()
                except TimeoutError:
                    missing = ", ".join(str(r) for r in range(1, says.world) if r not in links)
                    what = f"did not come within {says.rendezvous_s:g} s"
                    raise CannotGoOn(f"rank {missing} {what}") from None
                rank = self._introduced(link)
                if 0 < rank < says.world and rank not in links:
                    links[rank] = link
                else:
                    link.close()
        self._links = dict(sorted(links.items()))
        self._send_all(WELCOME)
        return self._links

    def _introduced(self, link: socket.socket) -> int:
        """The rank of whoever connected, 0 if it is not one of us."""
        link.settimeout(HELLO_S)
        try:
            magic, rank, *rest = HELLO.unpack(_exactly(link, HELLO.size))
        except OSError:
            return 0
        link.settimeout(None)
        return int(rank) if magic == MAGIC and tuple(rest) == self._hello else 0

    def _connected(self, says: Settings) -> socket.socket:
        deadline = time.monotonic() + says.rendezvous_s
        link = _reached(says, deadline)
        # Rank 0 may have to wait for others a little longer than we for all of them.
        link.settimeout(max(0.0, deadline - time.monotonic()) + HELLO_S)
        try:
            link.sendall(HELLO.pack(MAGIC, says.rank, *self._hello))
            _exactly(link, len(WELCOME))
        except TimeoutError:
            raise CannotGoOn(f"not all ranks came within {says.rendezvous_s:g} s") from None
        except OSError:
            raise CannotGoOn("rank 0 is gone, or did not let us in") from None
        link.settimeout(None)
        return link

    def _send_all(self, data: bytes) -> None:
        for rank in self._links:
            self._send(rank, data)

    def _send(self, rank: int, data: bytes) -> None:
        try:
            self._links[rank].sendall(data)
        except OSError:
            raise CannotGoOn(f"rank {rank} is gone") from None

    def _receive(self, rank: int, size: int) -> bytes:
        try:
            return _exactly(self._links[rank], size)
        except OSError:
            raise CannotGoOn(f"rank {rank} is gone") from None


def _exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return bytes(data)


def _listening(says: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in says.address else socket.AF_INET
    try:
        return socket.create_server((says.address, says.port), family=family, backlog=says.world)
    except OSError as error:
        where = f"{says.address}:{says.port}"
        raise CannotGoOn(f"cannot listen on {where}: {error.strerror}") from None


def _reached(says: Settings, deadline: float) -> socket.socket:
    """A connection to rank 0, which may start later than we do."""
    while time.monotonic() < deadline:
        try:
            link = socket.create_connection((says.address, says.port), timeout=HELLO_S)
        except OSError:
            time.sleep(RETRY_S)
            continue
        if link.getsockname() != link.getpeername():
            return link
        link.close()  # the kernel gave us the very port we called: we talk to ourselves
    where = f"{says.address}:{says.port}"
    raise CannotGoOn(f"nobody listened on {where} within {says.rendezvous_s:g} s")


def _never_wait_for_a_lost_machine(link: socket.socket) -> None:
    """A closed connection is noticed at once; a machine that is gone closes none.

    A stopped process is waited for: its kernel still answers.
    """
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# --- Training --------------------------------------------------------------------------------------


def train(says: Settings) -> None:
    model = started(says)
    peers = Peers(says, model.step)
    while model.step < says.steps:
        crash_if_asked(says, model.step + 1)
        model, loss = one_step(model, peers, says)
        print(f"step {model.step} loss {loss:.6g}", flush=True)
        if not math.isfinite(loss):
            raise CannotGoOn(f"the loss of step {model.step} is not a number; is LR too high?")
        if says.rank == 0 and says.checkpoint_every and model.step % says.checkpoint_every == 0:
            save(model, says.checkpoints)
    if says.rank == 0:
        write_final(model, says.checkpoints)
    peers.part()


def started(says: Settings) -> Model:
    """The model to go on with."""
    if says.rank == 0:
        remove_unfinished(says.checkpoints)
    if says.resume_path is None:
        return fresh()
    model = load(says.resume_path)
    if says.resume_step not in (None, model.step):
        what = f"EVERSTEP_RESUME_STEP is {says.resume_step}"
        raise WrongSettings(f"{what}, but {says.resume_path} is of step {model.step}")
    return model


def one_step(model: Model, peers: Peers, says: Settings) -> tuple[Model, float]:
    """The model after its next step, and the mean loss over that step's batch."""
    began = time.monotonic()
    step, shards = model.step + 1, shards_of(says.rank, says.world)
    own = {shard: shard_sum(model.weights, step, shard) for shard in shards}
    time.sleep(max(0.0, began + says.step_s - time.monotonic()))
    *gradient, loss = peers.summed(own)
    return stepped(model, gradient, says.rate), loss / (SHARDS * EXAMPLES)


def crash_if_asked(says: Settings, step: int) -> None:
    """End before this step is made, once: who is started again gets past it."""
    for crash in says.crashes:
        if (crash.rank, crash.step) != (says.rank, step):
            continue
        marker = says.model_dir / f"crashed-{crash.rank}-{crash.step}-{crash.code}"
        if not marker.exists():
            says.model_dir.mkdir(parents=True, exist_ok=True)
            marker.touch()
            print(f"train.py: rank {says.rank} crashes at step {step}, as told", file=sys.stderr)
            sys.exit(crash.code)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C needs no traceback
    try:
        says = settings_of(os.environ, sys.argv[1:])
        if says.seen:
            write_seen(says, os.environ)
        train(says)
    except WrongSettings as error:
        return _ended(f"train.py: {error}", 2)
    except CannotGoOn as error:
        return _ended(f"train.py: rank {os.environ['RANK']}: {error}", 1)
    except OSError as error:  # the storage; whatever the network does has a name by then
        return _ended(f"train.py: rank {os.environ['RANK']}: {error}", 1)
    return 0


def _ended(why: str, code: int) -> int:
    print(" ".join(why.split()), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
