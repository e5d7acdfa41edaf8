"""Which launcher meets which faults, with which settings, and in which order. No process is started here."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

LIMIT_S = 5
"""The limit of a hang, under every launcher."""
STATE = {"STATE_MB": "100", "STEP_S": "0.5"}


class Fault(StrEnum):
    """The kinds of faults."""

    CRASH = "crash"  # SIGKILL of rank 1
    HANG = "hang"  # SIGSTOP of rank 1
    CONTROLLER = "controller"  # the same as a crash, and of what has to recover it
    NODE = "node"  # all that runs on the node of rank 1
    CONTAINER = "container"  # on Kubernetes


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One start of a launcher, and the faults that it meets until it is ended."""

    launcher: str  # as the columns of the page call it
    setup: str  # of `setups.py`
    faults: tuple[tuple[str, Fault], ...]  # the row of the page that each belongs to
    about_s: float  # on two idle cores
    rounds: int = 1_000  # it takes part in so many

    @property
    def columns(self) -> tuple[str, ...]:
        """The launchers that it measures."""
        return ("everstep", "JobSet") if self.setup == "kubernetes" else (self.launcher,)

    @property
    def name(self) -> str:
        return f"{self.launcher}, {self.setup}"


def _times(count: int, row: str, fault: Fault) -> tuple[tuple[str, Fault], ...]:
    return ((row, fault),) * count


_CRASHES = _times(2, "crash", Fault.CRASH)
_HANG = _times(1, "hang", Fault.HANG)
_CONTROLLER = _times(1, "controller", Fault.CONTROLLER)
_NODE = _times(1, "node", Fault.NODE)
_KEPT = _times(2, "kept", Fault.CRASH)

TURNS = (
    Turn(launcher="everstep", setup="list", faults=_CRASHES + _HANG + _CONTROLLER, about_s=35),
    Turn(
        launcher="everstep",
        setup="auto",
        faults=_times(2, "crash_auto", Fault.CRASH),
        about_s=28,
    ),
    Turn(
        launcher="everstep",
        setup="off",
        faults=_times(2, "crash_off", Fault.CRASH),
        about_s=27,
    ),
    Turn(
        launcher="everstep",
        setup="process",
        faults=_times(2, "crash_process", Fault.CRASH),
        about_s=20,
    ),
    Turn(launcher="everstep", setup="two nodes", faults=_NODE * 2, about_s=30),
    Turn(launcher="everstep", setup="snapshots", faults=_KEPT, about_s=26),
    Turn(launcher="torchrun", setup="plain", faults=_CRASHES + _CONTROLLER, about_s=30),
    Turn(launcher="torchrun", setup="time limit", faults=_HANG, about_s=52),
    Turn(launcher="torchrun", setup="two nodes", faults=_NODE, about_s=22),
    Turn(launcher="torchrun", setup="state", faults=_KEPT, about_s=28),
    *(
        turn
        for version in ("NVRx 0.4.1", "NVRx 0.7.0")
        for turn in (
            Turn(
                launcher=version,
                setup="plain",
                faults=_CRASHES + _HANG + _CONTROLLER,
                about_s=50,
            ),
            Turn(launcher=version, setup="two nodes", faults=_NODE, about_s=40),
            Turn(launcher=version, setup="state", faults=_KEPT[:1], about_s=20),
        )
    ),
    Turn(
        launcher="torchft",
        setup="plain",
        faults=_CRASHES + _CONTROLLER + _NODE,
        about_s=45,
    ),
    # What it does not replace has to be waited for until the end.
    Turn(launcher="torchft", setup="plain", faults=_HANG, about_s=72, rounds=1),
    Turn(launcher="torchft", setup="state", faults=_KEPT[:1], about_s=20),
    Turn(
        launcher="everstep and JobSet",
        setup="kubernetes",
        faults=(
            *_times(4, "pods_container", Fault.CONTAINER),
            *_times(3, "pods_controller", Fault.CONTROLLER),
            *_times(2, "pods_node", Fault.NODE),
        ),
        about_s=230,
        rounds=1,  # both are there at once, so that they take turns all the same
    ),
)

ROWS = tuple(dict.fromkeys(row for turn in TURNS for row, _ in turn.faults))

SETTINGS: Mapping[str, str] = {
    "everstep": (
        "`hang_s: 5`; `prewarm: [torch]` except where the row says otherwise; on two nodes `spares: 1`; "
        "server, worker and agents are processes of their own"
    ),
    "torchrun": (
        "`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, without which it may not recover; for the hang, which it "
        "does not watch for, a time limit of the process group of 5 s, and its grace of 30 s for a stopped "
        "rank; on two nodes a rendezvous that finds a dead node after 3 s, and a new launcher at once"
    ),
    "NVRx 0.4.1": (
        "`ft_launcher`: heartbeats from each step, limit 5 s, checked every second; on two nodes as torchrun"
    ),
    "NVRx 0.7.0": "the same; it runs with Python 3.12, the others with the Python named above",
    "torchft": (
        "each rank a replica group under torchrun; lighthouse: a silence of 1 s is death, 1 s for others to "
        "join; time limits of 5 s; failed quorums are tried again"
    ),
    "JobSet": (
        "two Jobs of a pod, which are quicker than a Job of two; controller without leader election, which "
        "would wait for a lease; `restartStrategy` at its default; the alpha restart in place is off"
    ),
}


def rounds(seed: int, count: int, wanted: Collection[str] = ()) -> Iterator[tuple[int, Turn]]:
    """The turns of each round, and the faults of each turn, in an order that follows from the seed.

    `wanted`: rows; none: all.
    """
    chance = random.Random(seed)
    for number in range(1, count + 1):
        turns = [turn for turn in TURNS if turn.rounds >= number]
        for turn in chance.sample(turns, len(turns)):
            faults = chance.sample(turn.faults, len(turn.faults))
            if of_rows := tuple(one for one in faults if not wanted or one[0] in wanted):
                yield number, _with(turn, of_rows)


def _with(turn: Turn, faults: tuple[tuple[str, Fault], ...]) -> Turn:
    return Turn(launcher=turn.launcher, setup=turn.setup, faults=faults, about_s=turn.about_s)
