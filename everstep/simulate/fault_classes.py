"""The classes of faults of a simulation: shares, delays, chances of a cure, repairs, each with its source.

Numbers from publications name them; `assumed` marks those that we chose. Rates are faults that stop a job, in
1,000 node-days, of nodes with 8 devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import exp

MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0


class Effect(StrEnum):
    """What a mishap does to the cluster or to a job."""

    DEVICE = "device"  # a device breaks; `hidden`: its rank ends, and no monitor says why
    REBOOT = "reboot"  # the node is down, and back after its repair
    LINK = "link"  # a rank ends with an error of the network
    SWITCH = "switch"  # neighbouring nodes are cut off together
    HANG = "hang"  # a rank stands still
    NUMBERS = "numbers"  # a node computes wrong numbers
    SLOW = "slow"  # a node slows the job down
    USER = "user"  # the script ends by an error of its own
    MAINTENANCE = "maintenance"  # announced, then the node is down
    FALSE_DEVICE = "false_device"  # a monitor reports a fault of a sound device
    FALSE_SILENCE = "false_silence"  # a sound node does not answer for a while


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """How long a node is not sound: lognormal with this median, at most `most_s`."""

    median_s: float
    sigma: float = 0.0
    most_s: float = 60 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultClassRow:
    """A class of faults. `share` is that of `Profile.rate`; a false alarm has a rate of its own."""

    name: str
    effect: Effect
    share: float
    detect_s: float  # from the fault until something reports it
    cured: float  # chance that a restart in place is enough
    repair: Lasting
    hidden: float = (
        0.0  # share that no monitor of the node reports; of hangs: its devices look busy
    )
    users: float = 0.0  # share of those that last which the script causes, not the node
    again_s: float = 120.0  # mean time until a node that is still sick stops the next run
    is_false: bool = False
    source: str


NODE_REPAIR = Lasting(median_s=10.5 * HOUR_S, sigma=2.74)
"""SuperBench (ATC'24): 61.9 % the same day, 38.1 % over a day, 10.3 % over two weeks."""
HIDDEN = 0.10
"""L4 (Huawei): 89.9 % of failures can be diagnosed with logs."""
NO_REPAIR = Lasting(median_s=0.0)

ROWS: tuple[FaultClassRow, ...] = (
    FaultClassRow(
        name="node_fatal_hw",
        effect=Effect.DEVICE,
        share=0.46,
        detect_s=10.0,
        cured=0.0,
        repair=NODE_REPAIR,
        hidden=HIDDEN,
        source="Llama 3 (2024): 67.5 % hardware, less those that heal; ByteRobust (SOSP'25): seen in 10 s",
    ),
    FaultClassRow(
        name="node_selfheal_hw",
        effect=Effect.DEVICE,
        share=0.12,
        detect_s=10.0,
        cured=0.59,
        repair=NODE_REPAIR,
        source="Delta (SC'25): 59 % of row remaps of an H100 succeed; the share is assumed",
    ),
    FaultClassRow(
        name="host_os",
        effect=Effect.REBOOT,
        share=0.07,
        detect_s=2.0,
        cured=0.0,
        repair=Lasting(median_s=15 * MINUTE_S, sigma=0.5),
        source="FT-HSDP (2026): 11.4 %; ByteRobust: seen in 2 s; the time of a reboot is assumed",
    ),
    FaultClassRow(
        name="net_flap",
        effect=Effect.LINK,
        share=0.07,
        detect_s=30.0,
        cured=0.9,
        repair=Lasting(median_s=54 * MINUTE_S, sigma=1.94),
        source="Llama 3: 8.4 % network; ByteRobust: seen in 30 s; LANL: repair; the cure is assumed",
    ),
    FaultClassRow(
        name="switch_wide",
        effect=Effect.SWITCH,
        share=0.01,
        detect_s=60.0,
        cured=0.0,
        repair=Lasting(median_s=54 * MINUTE_S, sigma=1.74),
        source="ByteRobust: 1 % weight; LANL: network repairs take 247 min in the mean",
    ),
    FaultClassRow(
        name="hang",
        effect=Effect.HANG,
        share=0.09,
        detect_s=90.0,
        cured=0.5,
        repair=NODE_REPAIR,
        hidden=HIDDEN,
        users=0.19,
        source="FT-HSDP: 10 %; ByteRobust: 81 % of hangs are the infrastructure's; assumed: the cure, and"
        " that in 9 of 10 the devices of the rank that hangs are idle",
    ),
    FaultClassRow(
        name="sdc",
        effect=Effect.NUMBERS,
        share=0.02,
        detect_s=10 * MINUTE_S,
        cured=0.0,
        repair=Lasting(median_s=8 * HOUR_S),
        again_s=2 * HOUR_S,
        source="Llama 3: 6 of 419; ByteRobust: over 8 h of stress tests name the node; `again` is assumed",
    ),
    FaultClassRow(
        name="slow_node",
        effect=Effect.SLOW,
        share=0.01,
        detect_s=4 * HOUR_S,
        cured=0.0,
        repair=NODE_REPAIR,
        source="assumed: a tenth slower, named by an operator after 4 h (Minder, NSDI'25: 4 min)",
    ),
    FaultClassRow(
        name="user_crash",
        effect=Effect.USER,
        share=0.09,
        detect_s=0.0,
        cured=0.0,
        repair=NO_REPAIR,
        users=1.0,
        source="Llama 3: 13.4 % software; that it fails again at the same step is assumed",
    ),
    FaultClassRow(
        name="maintenance",
        effect=Effect.MAINTENANCE,
        share=0.06,
        detect_s=0.0,
        cured=0.0,
        repair=Lasting(median_s=2 * HOUR_S, sigma=0.5),
        source="Llama 3: 7.6 %; an hour's notice and two hours of work are assumed",
    ),
)
"""Shares follow Llama 3 (419 interruptions) and FT-HSDP (678)."""

FALSE_ALARMS: tuple[FaultClassRow, ...] = (
    FaultClassRow(
        name="false_device",
        effect=Effect.FALSE_DEVICE,
        share=0.5,
        detect_s=0.0,
        cured=1.0,
        repair=NO_REPAIR,
        is_false=True,
        source="B200 campaign (2026): 0.84 false alarms a day; half of them of devices is assumed",
    ),
    FaultClassRow(
        name="false_silence",
        effect=Effect.FALSE_SILENCE,
        share=0.5,
        detect_s=0.0,
        cured=1.0,
        repair=NO_REPAIR,
        is_false=True,
        source="the other half: an agent that does not answer for half a minute to five minutes, assumed",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A cluster's maturity. `rate` and `false_rate`: in 1,000 node-days."""

    name: str
    rate: float
    false_rate: float = 0.84
    together: float = 0.04  # share of node faults with another one close by
    bursts_sigma: float = 1.05  # of a node's own rate, lognormal with mean 1
    rows: tuple[FaultClassRow, ...] = ROWS
    false_rows: tuple[FaultClassRow, ...] = FALSE_ALARMS
    source: str


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="mature", rate=1.2, source="ByteRobust: what its numbers of spares allow for"),
        Profile(name="good", rate=2.3, source="FT-HSDP and RSC-2 (HPCA'25)"),
        Profile(
            name="reference", rate=3.8, source="Llama 3: 419 unexpected in 54 days, 2,048 nodes"
        ),
        Profile(name="research", rate=6.5, source="RSC-1 (HPCA'25)"),
        Profile(name="bad", rate=21.0, source="Ant (2023): a job of 1,000 devices ends every day"),
    )
}
"""`together`: 3 to 5 % of hardware faults come with another one (Meta). `bursts_sigma`: a tenth of the nodes
has 41 % of the faults, as in the trace of InfiniteHBD (SIGCOMM'25)."""


def row_named(name: str) -> FaultClassRow:
    return next(row for row in (*ROWS, *FALSE_ALARMS) if row.name == name)


def mean_s(lasting: Lasting) -> float:
    """The mean of such a time, without its upper bound: exact for short ones, too long for repairs."""
    return float(lasting.median_s * exp(lasting.sigma**2 / 2))
