"""What the contract suite needs of a backend beside the protocol itself, and how it drives a job.

A backend joins the suite with a `Lab` of its own in `conftest.py`: a cluster of five nodes with eight
devices each, faults on demand, and a trainer that understands STEPS, STEP_S, CHECKPOINT_EVERY and
CRASH_AT_STEP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from everstep.backends.base import Backend
from everstep.core.facts import Fact
from everstep.core.world import (
    Checkpoint,
    FenceOrder,
    JobRef,
    Observation,
    PlaceOrder,
    PlaceState,
    PodView,
    PrecheckOrder,
    SaveOrder,
    SetAsideOrder,
    SlotStart,
    StartOrder,
    StopOrder,
    StopState,
)
from everstep.protocol.wire import RunOrder
from tests.support.patience import HUNG_S

T = TypeVar("T")

NODES = 5
DEVICES = 8
SEEN_S = 2 * HUNG_S
"""Shorter than the time limit of a test, which would not say what has not come."""


class Lab(Protocol):
    """A backend under test, and the hand that breaks it."""

    @property
    def backend(self) -> Backend:
        """What is under test."""

    @property
    def command(self) -> tuple[str, ...]:
        """Runs the trainer."""

    @property
    def storage(self) -> str:
        """A folder that every node can write."""

    @property
    def pod(self) -> Mapping[str, Any]:
        """What an order to place says of the pods beside what all backends need: their image, for one."""

    @property
    def steps_together(self) -> bool:
        """Whether a rank waits in each step for the others of its job, as in a collective."""

    @property
    def fence_s(self) -> float:
        """How long a fence takes where nothing can be proven."""

    async def fault(self, line: str) -> None:
        """Let one of the faults of `everstep fault` happen now."""

    async def unavailable(self, on: bool) -> None:
        """Break the path to the cluster, or repair it."""

    async def recorded(self, job: str) -> list[str]:
        """The lines of its run.log."""

    async def effects(self) -> list[str] | None:
        """Changes that orders made in the world, each once; None if they are not counted."""


async def leave_room_on(lab: Lab, nodes: int) -> None:
    """Isolate all nodes but so many: a job that fills the cluster then needs few pods."""
    for number in range(nodes, NODES):
        await lab.backend.ensure_isolated(f"n{number}", reason="broken")


async def left_on(lab: Lab) -> list[JobRef]:
    """The jobs of which anything is there."""
    return [left.job for left in await lab.backend.leftovers()]


def order_end(control: Path, job: str, rank: int | str, code: int | str) -> None:
    """Have a rank of the contract's trainer end now: it never reads half of the order."""
    fresh = control / f"{job}-{rank}.tmp"
    fresh.write_text(str(code))
    fresh.replace(control / f"{job}-{rank}")


@dataclass
class Run:
    """One run of one job, driven as the engine drives it: call, observe, call again."""

    lab: Lab
    id: str = "demo"
    run: str = "run-1"
    slots: tuple[int, ...] = (0, 1, 2, 3)
    devices: int | Literal["all"] = 1
    env: dict[str, str] = field(default_factory=dict)
    processes_per_node: int = 1
    still_s: float | None = None
    generation: int = 0
    books: str = ""
    namespace: str = ""
    cursor: str = ""
    facts: list[Fact] = field(default_factory=list)

    @property
    def ref(self) -> JobRef:
        return JobRef(id=self.id, run=self.run, books=self.books, namespace=self.namespace)

    @property
    def backend(self) -> Backend:
        return self.lab.backend

    @property
    def model_dir(self) -> str:
        return f"{self.lab.storage}/{self.id}"

    @property
    def checkpoints_path(self) -> str:
        return f"{self.model_dir}/checkpoints"

    # --- orders ---------------------------------------------------------------------------------

    def stop_order(self, **changes: Any) -> StopOrder:
        return replace(StopOrder(job=self.ref, generation=self.generation), **changes)

    def place_order(self, **changes: Any) -> PlaceOrder:
        order = PlaceOrder(
            job=self.ref,
            phase="main",
            generation=self.generation,
            slots=self.slots,
            recreate=self.slots,
            accelerator="simulated",
            accelerators_per_node=self.devices,
        )
        return replace(order, **{**self.lab.pod, **changes})

    def precheck_order(self) -> PrecheckOrder:
        return PrecheckOrder(job=self.ref, generation=self.generation, slots=self.slots)

    def fence_order(self, **changes: Any) -> FenceOrder:
        order = FenceOrder(
            job=self.ref,
            generation=self.generation,
            lowest_slot=min(self.slots),
            run=self.run_order(changes),
        )
        return replace(order, **changes)

    def run_order(self, changes: dict[str, Any]) -> RunOrder:
        """What it runs, with what of the changes is about that: they are taken out."""
        command = [*changes.pop("command", self.lab.command)]
        run = RunOrder(
            command=command,
            model_dir=self.model_dir,
            checkpoints_path=self.checkpoints_path,
            still_s=self.still_s,
        )
        return run._replace(**{one: changes.pop(one) for one in run._fields if one in changes})

    def start_order(self, **changes: Any) -> StartOrder:
        order = StartOrder(
            job=self.ref,
            phase="main",
            generation=self.generation,
            run=self.run_order(changes),
            slots={
                slot: SlotStart(node_rank=rank, schedule_count=1, process_start_count=1)
                for rank, slot in enumerate(self.slots)
            },
            env=self.env,
            processes_per_node=self.processes_per_node,
            accelerator="simulated",
        )
        return replace(order, **changes)

    # --- seeing ---------------------------------------------------------------------------------

    async def observe_now(self) -> Observation:
        """Everything as it is now, from the first fact on. Passes no time: its time has come."""
        return await self.backend.observe(self.ref, cursor="", until=0.0, wait_s=0.0)

    async def pod(self, slot: int) -> PodView:
        observation = await self.observe_now()
        return next(pod for pod in observation.pods if pod.slot == slot)

    async def observe(self, until: float | None = None, wait_s: float = 5.0) -> Observation:
        observation = await self.backend.observe(
            self.ref, cursor=self.cursor, until=until, wait_s=wait_s
        )
        self.cursor = observation.cursor
        self.facts += observation.facts
        return observation

    async def quiet(self, for_s: float = 0.5) -> None:
        """Observe until a whole call brings no news: what was under way has arrived."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await self.observe(wait_s=for_s)
            if clock() - began >= for_s:
                return

    async def see(
        self, claim: Callable[[Observation], bool], *, within_s: float = SEEN_S
    ) -> Observation:
        """Observe until the claim holds; a claim that never does is a failure."""
        ends = await self.backend.clock() + within_s
        while not claim(observation := await self.observe(until=ends)):
            assert observation.now < ends, f"not seen within {within_s:g} s: {observation}"
        return observation

    async def fact(self, kind: str) -> Fact:
        """The next fact of this kind."""
        before = len(self.facts)

        def arrived(_: Observation) -> bool:
            return any(fact.kind == kind for fact in self.facts[before:])

        await self.see(arrived)
        return next(fact for fact in self.facts[before:] if fact.kind == kind)

    async def step(self, step: int) -> Observation:
        """Wait until every slot has completed the step."""
        ends = await self.backend.clock() + 1000.0
        while True:
            observation = await self.observe(until=await self.backend.clock() + 1.0)
            if observation.pods and all((pod.run.step or 0) >= step for pod in observation.pods):
                return observation
            assert observation.now < ends, f"step {step} never came: {observation}"

    # --- doing ----------------------------------------------------------------------------------

    async def new_generation(self, key: str) -> int:
        self.generation = await self.backend.ensure_generation(self.ref, key)
        return self.generation

    async def until_done(self, ask: Callable[[], Awaitable[T]], *, within_s: float = SEEN_S) -> T:
        """Repeat the step until its answer is that it is done."""
        ends = await self.backend.clock() + within_s
        while not is_done(state := await ask()):
            observation = await self.observe(until=ends)
            assert observation.now < ends, f"not done within {within_s:g} s: {state}"
        return state

    async def stop(self, **changes: Any) -> StopState:
        return await self.until_done(
            lambda: self.backend.ensure_stopped(self.stop_order(**changes))
        )

    async def place(self, **changes: Any) -> PlaceState:
        return await self.until_done(
            lambda: self.backend.ensure_placed(self.place_order(**changes))
        )

    async def precheck(self) -> None:
        await self.until_done(lambda: self.backend.ensure_prechecked(self.precheck_order()))

    async def fence(self, **changes: Any) -> None:
        await self.until_done(lambda: self.backend.ensure_fenced(self.fence_order(**changes)))

    async def start(self, resume: Checkpoint | None = None, **changes: Any) -> None:
        order = self.start_order(resume=resume, **changes)
        await self.until_done(lambda: self.backend.ensure_started(order))

    async def launch(self, key: str = "launch") -> None:
        """A job-level start: everything new, resumed from the newest good checkpoint."""
        await self.new_generation(key)
        await self.stop()
        await self.place()
        await self.fence()
        saved = await self.backend.checkpoints(self.ref)
        await self.start(next((checkpoint for checkpoint in saved if checkpoint.good), None))

    async def again(self, key: str, **changes: Any) -> None:
        """An in-place restart: the same pods, the newest good checkpoint."""
        await self.new_generation(key)
        await self.stop(**changes)
        await self.fence()
        saved = await self.backend.checkpoints(self.ref)
        await self.start(next((checkpoint for checkpoint in saved if checkpoint.good), None))

    def set_aside_order(self, *paths: str, resume: str | None = None) -> SetAsideOrder:
        return SetAsideOrder(job=self.ref, generation=self.generation, paths=paths, resume=resume)

    def save_order(self, request: str = "r1") -> SaveOrder:
        return SaveOrder(
            job=self.ref, generation=self.generation, request=request, signal="SIGUSR1"
        )

    async def gone(self, **changes: Any) -> None:
        await self.until_done(lambda: self.backend.ensure_gone(self.ref, **changes))


@asynccontextmanager
async def observed(*jobs: Run) -> AsyncIterator[None]:
    """Observe these jobs meanwhile: one that makes no call holds the fake clock for a real minute."""

    async def observe(job: Run) -> None:
        while True:
            await job.observe(until=float("inf"))

    tasks = [asyncio.create_task(observe(job)) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_done(state: Any) -> bool:
    """Whether an answer says that there is nothing to wait for."""
    if isinstance(state, PlaceState):
        return state.placed
    return bool(state.done)


async def effects(lab: Lab) -> list[str]:
    """The effects so far; nothing on backends that do not count them, so that comparing is fine."""
    return await lab.effects() or []


def nodes_of(places: PlaceState) -> set[str]:
    return {ref.node for ref in places.pods.values()}


def uids_of(observation: Observation, slots: Iterable[int] | None = None) -> dict[int, str]:
    return {p.slot: p.uid for p in observation.pods if slots is None or p.slot in slots}
