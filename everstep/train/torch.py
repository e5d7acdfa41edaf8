"""A process group of PyTorch that ranks outlive: a fault elsewhere costs them the step, not the process.

    from everstep.train.torch import Group

    group = Group("gloo", seed=7)
    model = group.replicated(net)  # DistributedDataParallel, made again after each fault
    for attempt in group.steps(last, state={"model": net, "optimizer": optimizer}):
        with attempt as step:
            optimizer.zero_grad()
            model(batch_of(step)).square().mean().backward()
            with group.updating(step):
                optimizer.step()

What interrupts an attempt because another rank is gone, or a connection is, ends with it; the group is
formed again, ranks without the newest state get it from one that has it, and the step is tried again. Any
other error is raised as usual.

What a step changes before its update must follow from the step alone: random numbers are seeded from seed,
rank and step, a batch is chosen by the step. Everything else belongs into `state`, by `state_dict`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from everstep.train import run as rank_of_process
from everstep.train import sockets, states
from everstep.train.orders import Orders
from everstep.train.run import Run

PYTORCH = Path(torch.__file__).parent
NO_STATE = -1
"""The completed step of a rank that has not the state after any."""
TRY_S, POLL_S = 1.0, 0.02
"""Time limit of one try to reach the store of a group, and how long after a refused one the next begins."""
THERE = "everstep/there/"
"""The keys in the store of a group under which its ranks say that they are there."""
COPIES_MOST = 2_000
"""Ranks with the same state where not all have it: a rank reports them in one message."""
STATE_FROM = "EVERSTEP_STATE_FROM"
"""The variable with the ranks that have state to give; absent: every process was started new."""

INTERRUPTIONS = (
    "gloo",
    "connection closed",
    "connection reset",
    "connection refused",
    "connection was",
    "broken pipe",
    "nccl",
    "hccl",
    "socket",
    "timed out",
    "timeout",
    "store",
    "process group",
    "communicator",
)
"""Words in the message of an error that is one of the group, in any case of letters."""


class Group:
    """The default process group, formed again as often as it is needed."""

    def __init__(
        self,
        backend: str = "gloo",
        *,
        seed: int | None = None,
        timeout_s: float = 600.0,
        run: Run = rank_of_process,
    ) -> None:
        """Form the group. `seed`: of the random numbers of each step; None: they are the script's affair."""
        self._backend, self._seed, self._run = backend, seed, run
        self._timeout = dt.timedelta(seconds=timeout_s)
        self._sockets = sockets.OwnSockets()
        self._is_formed = False  # the group
        self._replicas: list[Replicated] = []
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._copies: tuple[tuple[int, ...], ...] = (tuple(range(self.world)),)
        self.completed: int | None = None  # the newest step whose state this rank has
        self._is_torn = False  # an update was interrupted: some of it may be done
        self._interruption: str | None = None
        self._orders: Orders | None = run.orders(self._free)
        self._until_done(lambda: None)
        self._joins = bool(os.environ.get(STATE_FROM)) and self._orders is not None

    # -- the group --------------------------------------------------------------------------------

    def _form(self) -> None:
        """Form the group of the ranks that the environment names."""
        with self._sockets.recording():
            store = self._joined_store()
            # A rank that connects to the others cannot be freed where one of them does not come: here it can.
            store.set(f"{THERE}{self.rank}", "")
            store.wait([f"{THERE}{rank}" for rank in range(self.world)])
            dist.init_process_group(
                self._backend,
                store=store,
                rank=self.rank,
                world_size=self.world,
                timeout=self._timeout,
            )
            dist.barrier()
        self._is_formed = True

    def _joined_store(self) -> Any:
        """The store of the group, at its rank 0, which may come late or be gone.

        PyTorch tries until its time limit, cannot be freed from that, and prints its stack after each try. So
        a plain connection comes first, and the limit of each try is short.
        """
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        tries_until = time.monotonic() + self._timeout.total_seconds()
        while True:
            try:
                if self.rank != 0:
                    socket.create_connection((host, port), timeout=TRY_S).close()
                store = dist.TCPStore(
                    host,
                    port,
                    self.world,
                    is_master=self.rank == 0,
                    timeout=dt.timedelta(seconds=TRY_S),
                    wait_for_workers=False,
                )
            except (OSError, RuntimeError) as error:
                is_held = self._orders is not None and self._orders.is_held
                # Rank 0 waits for nothing: its port is taken.
                if self.rank == 0 or is_held or time.monotonic() > tries_until:
                    raise RuntimeError(
                        f"the store of the group at {host}:{port}: {error}"
                    ) from error
                time.sleep(POLL_S)
            else:
                store.set_timeout(self._timeout)
                return store

    def _free(self) -> None:
        """Free this process from the operations that it is in. For any thread."""
        self._sockets.cut()
        group = dist.group.WORLD if dist.is_initialized() else None
        abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
        if group is not None and self._backend == "gloo":
            self._fail_connections(group)
        elif group is not None and abort is not None:
            with contextlib.suppress(Exception):
                abort()

    def _fail_connections(self, group: Any) -> None:
        """Send to every other rank, which fails at once, and with it whatever waits on that connection.

        gloo reads the end of a connection only after all data before it. Data for an operation that another
        connection has ended is never read: without this, the next operation would wait until its time-out.
        """
        for rank in range(self.world):
            if rank != self.rank:
                with contextlib.suppress(Exception):
                    group.send([torch.zeros(1)], rank, 0)

    def _leave(self) -> None:
        """Give up the group, and what holds on to it."""
        self._is_formed = False
        for replica in self._replicas:
            replica.release()
        self._free()
        if not dist.is_initialized():  # the interruption was in forming it
            _forget_begun_groups()
            return
        old_group = [dist.group.WORLD]
        with contextlib.suppress(RuntimeError, ValueError):
            dist.destroy_process_group()
        # The end of a group waits for each of its operations, and some wait until their time limit.
        threading.Thread(target=old_group.clear, name="everstep-old-group", daemon=True).start()

    def close(self) -> None:
        """Leave the group once all ranks are done."""
        dist.barrier()
        dist.destroy_process_group()

    def replicated(self, module: torch.nn.Module, **options: Any) -> Replicated:
        """The module as DistributedDataParallel with these options."""
        replica = Replicated(module, options, joins=self._joins)
        self._replicas.append(replica)
        return replica

    # -- steps ------------------------------------------------------------------------------------

    def steps(
        self,
        last: int,
        *,
        state: Mapping[str, Any],
        copies: Iterable[Iterable[int]] | None = None,
        done: int = 0,
        snapshots: bool = True,
    ) -> Iterator[contextlib.AbstractContextManager[int]]:
        """An attempt at each step up to `last`, from the one after `done` on.

        `state`: what ranks have alike, by `state_dict` and `load_state_dict`; `copies`: which ones, such as
        `[[0, 2], [1, 3]]`, where not all have the same; `done`: the step of the checkpoint that was loaded.
        `snapshots`: keep the state of each step in memory too, for a fault that ends all processes.
        """
        if copies is not None:
            self._copies = _checked_copies(copies, self.world)
        restored = self._run.restore() if snapshots else None
        if self._joins:
            self._until_done(partial(self._share, state))
        elif restored is not None:
            _load(state, restored.state)
            self.completed = restored.step
        else:
            self.completed = done
        while self.completed is None or self.completed < last:
            step = 1 + (self.completed or 0)
            yield self._attempt(step)
            if self._interruption is not None:
                self._rebuild()
                self._until_done(partial(self._share, state))
            elif snapshots and self._orders is not None:
                self._run.snapshot(step, _states(state))

    @contextlib.contextmanager
    def _attempt(self, step: int) -> Iterator[int]:
        """An attempt. It swallows an interruption: `steps` sees to that, outside of any handler."""
        buffers = [(buffer, buffer.clone()) for one in self._replicas for buffer in one.buffers()]
        self._seed_for(step)
        try:
            yield step
        except RuntimeError as error:
            if not self._is_interruption(error):
                raise
            self._interrupted_by(error)
            with torch.no_grad():
                for buffer, before in buffers if self.completed != step else ():
                    buffer.copy_(before)

    def _is_interruption(self, error: RuntimeError) -> bool:
        if self._orders is None:
            return False
        text = str(error).lower()
        is_of_group = _is_of_torch(error) and any(word in text for word in INTERRUPTIONS)
        return self._orders.is_held or is_of_group

    @contextlib.contextmanager
    def updating(self, step: int) -> Iterator[None]:
        """The update of this step; with its end the step is completed."""
        self._is_torn = True
        with self._run.updating(step):
            yield
        self._is_torn, self.completed = False, step
        self._run.step(step)

    def _seed_for(self, step: int) -> None:
        """Make the random numbers of a step follow from the step."""
        if self._seed is None:
            return
        number = hash((self._seed, self.rank, step)) % 2**32
        random.seed(number)
        torch.manual_seed(number)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(number)

    # -- after an interruption --------------------------------------------------------------------

    def _until_done(self, do: Callable[[], None]) -> None:
        """Do this together with all other ranks, with a group formed again whenever it is interrupted."""
        while not self._is_done(do):
            self._rebuild()

    def _is_done(self, do: Callable[[], None]) -> bool:
        """Form the group if there is none, and do this. False: that was interrupted."""
        try:
            if not self._is_formed:
                self._form()
            do()
        except RuntimeError as error:
            if not self._is_interruption(error):
                raise
            self._interrupted_by(error)
            return False
        return True

    def _interrupted_by(self, error: RuntimeError) -> None:
        # A traceback keeps tensors, and with them the group.
        traceback.clear_frames(error.__traceback__)
        self._interruption = str(error) or type(error).__name__

    def _rebuild(self) -> None:
        """Give up the group, and wait for the order to form it again."""
        why, self._interruption = self._interruption or "", None
        self._leave()
        assert self._orders is not None  # else nothing is taken for an interruption
        completed = None if self._is_torn else self.completed
        copies = self._copies_of(self.rank) if len(self._copies) > 1 else ()
        order = self._orders.await_rebuild(completed, why, copies=copies)
        if order is None:
            raise RuntimeError(f"no order to go on came from the agent; interrupted by: {why}")
        os.environ.update(order.env)
        self._run.rebuilt(order.generation)

    def _share(self, state: Mapping[str, Any]) -> None:
        """Give the newest state to the ranks that do not have it, each from the lowest rank that does."""
        own_step = NO_STATE if self.completed is None or self._is_torn else self.completed
        completed = self._gathered(own_step)
        newest = max(completed)
        if newest == NO_STATE:
            raise RuntimeError("no rank has the state after any step")
        for receiver in (rank for rank, step in enumerate(completed) if step != newest):
            donors = [rank for rank in self._copies_of(receiver) if completed[rank] == newest]
            if not donors:
                raise RuntimeError(f"no rank has the state of rank {receiver} after step {newest}")
            self._pass_on(state, donors[0], receiver)
            if (
                self.rank == receiver
            ):  # whatever interrupts the rest, this is what it has from now on
                self.completed, self._is_torn = newest, False
        self._joins = False
        for replica in self._replicas:
            replica.renew()

    def _copies_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that have the same state as this one, in order."""
        return next(ranks for ranks in self._copies if rank in ranks)

    def _gathered(self, number: int) -> list[int]:
        """The numbers of all ranks."""
        device = self._device
        numbers = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.world)]
        dist.all_gather(numbers, torch.tensor([number], device=device))
        return [int(one) for one in numbers]

    @property
    def _device(self) -> Any:
        is_on_cpu = self._backend == "gloo"
        return (
            torch.device("cpu") if is_on_cpu else torch.device("cuda", torch.cuda.current_device())
        )

    def _pass_on(self, state: Mapping[str, Any], donor: int, receiver: int) -> None:
        if self.rank == donor:
            flat = states.flat(_states(state))
            memory = bytearray(flat.nbytes)
            flat.write_into(memoryview(memory))
            content = torch.frombuffer(memory, dtype=torch.uint8)
            sizes = torch.tensor([flat.nbytes, len(flat.head)], device=self._device)
            dist.send(sizes, receiver)
            dist.send(content.to(self._device), receiver)
        elif self.rank == receiver:
            sizes = torch.zeros(2, dtype=torch.int64, device=self._device)
            dist.recv(sizes, donor)
            memory = bytearray(int(sizes[0]))
            content = torch.frombuffer(memory, dtype=torch.uint8)
            on_device = content.to(self._device)
            dist.recv(on_device, donor)
            content.copy_(on_device)
            _load(state, states.unflattened(memoryview(memory), int(sizes[1])))


def _checked_copies(copies: Iterable[Iterable[int]], world: int) -> tuple[tuple[int, ...], ...]:
    """These ranks, each in one place of it."""
    ordered = tuple(tuple(sorted(ranks)) for ranks in copies)
    if sorted(rank for ranks in ordered for rank in ranks) != list(range(world)):
        raise ValueError(f"copies has to name each rank from 0 to {world - 1} once")
    if len(max(ordered, key=len)) > COPIES_MOST:
        raise ValueError(f"a state can have {COPIES_MOST} copies at most, or one in every rank")
    return ordered


def _forget_begun_groups() -> None:
    """Have the next group called as in a new process: ranks find each other under its name.

    PyTorch counts groups from the moment they are begun, and begins again only once one is destroyed.
    """
    dist.distributed_c10d._world.group_count = 0


def _is_of_torch(error: RuntimeError) -> bool:
    """Whether it was raised in PyTorch, or by a call of ours: a script may have connections of its own."""
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return PYTORCH in raised_in.parents or raised_in == Path(__file__)


def _states(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one.state_dict() for name, one in state.items()}


def _load(state: Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
    for name, one in state.items():
        one.load_state_dict(loaded[name])


class Replicated(torch.nn.Module):  # type: ignore[misc]  # PyTorch is typed where it is installed
    """A module whose gradients are averaged over the group. The wrapper stays; what it wraps is new."""

    def __init__(self, module: torch.nn.Module, options: Mapping[str, Any], *, joins: bool) -> None:
        super().__init__()
        self.module = module
        self._options = options
        # Not a submodule: parameters are counted once.
        self._parallel: list[DistributedDataParallel] = []
        if not joins:
            self._parallel = [DistributedDataParallel(module, **options)]

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self._parallel[0](*inputs, **options)

    def release(self) -> None:
        """Let go of the group: the hooks of two wrappings would reduce each gradient twice."""
        for parallel in self._parallel:
            parallel._remove_autograd_hooks()
        self._parallel = []
        self.module.zero_grad(set_to_none=True)

    def renew(self) -> None:
        """Wrap the module for the group as it is now; all ranks have the same parameters."""
        self.release()
        self._parallel = [
            DistributedDataParallel(self.module, **{**self._options, "init_sync": False})
        ]
