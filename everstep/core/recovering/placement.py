"""Which slots go where, and how long to wait for places. Pure functions over what the cluster shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from everstep.core.deciding.decision import PlaceRules
from everstep.core.slots import format_ranges
from everstep.core.world import NodeView, PlaceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one slot needs of a node."""

    accelerators: int | Literal["all"] = 0
    avoid: frozenset[str] = frozenset()
    avoid_devices: frozenset[tuple[str, int]] = frozenset()


def free_devices(node: NodeView, need: Need) -> tuple[int, ...]:
    """The devices of the node that a slot could have now."""
    sound = [d.index for d in node.devices if d.health == "ok" and d.job is None]
    return tuple([index for index in sound if (node.name, index) not in need.avoid_devices])


def fits(node: NodeView, need: Need) -> bool:
    """Whether one more slot can live on the node now."""
    if not node.ready or node.isolated or node.name in need.avoid or node.slots_free < 1:
        return False
    if need.accelerators == 0:
        return True
    free = free_devices(node, need)
    if need.accelerators == "all":
        usable = [d for d in node.devices if (node.name, d.index) not in need.avoid_devices]
        return len(free) == len(usable) and bool(usable)
    return len(free) >= need.accelerators


def choose(
    slots: Iterable[int], nodes: Iterable[NodeView], need: Need, *, busy: Iterable[str] = ()
) -> dict[int, str]:
    """A node for as many of the slots as fit, in the order of both; one slot of a job per node."""
    in_use = set(busy)
    # Not a list: of thousands of nodes few slots need the first ones alone.
    open_nodes = (n.name for n in nodes if n.name not in in_use and fits(n, need))
    return dict(zip(sorted(slots), open_nodes, strict=False))


def broken_devices(nodes: Iterable[NodeView], need: Need) -> tuple[str, ...]:
    """The devices, as `n0/3`, whose nodes would fit if only all devices there were sound."""
    return tuple(
        f"{node.name}/{device.index}"
        for node in nodes
        if not fits(node, need) and fits(_mended(node), need)
        for device in node.devices
        if device.health != "ok"
    )


def _mended(node: NodeView) -> NodeView:
    return replace(node, devices=tuple(replace(d, health="ok") for d in node.devices))


def could_hold(node: NodeView, need: Need) -> bool:
    """Whether a slot could live on the node if all of it were sound and free."""
    return len(node.devices) >= (1 if need.accelerators == "all" else need.accelerators)


def is_open(node: NodeView, need: Need) -> bool:
    """Whether a slot could live on the node if all of it were sound and free that is not isolated."""
    usable = [d for d in node.devices if (node.name, d.index) not in need.avoid_devices]
    sound = [device for device in usable if device.isolated is None]
    if node.isolated or node.name in need.avoid:
        return False
    if need.accelerators == "all":
        return bool(usable) and len(sound) == len(usable)
    return len(sound) >= need.accelerators


def isolated_places(nodes: Iterable[NodeView], need: Need) -> tuple[str, ...]:
    """What has to be released for a slot to live there: nodes, and devices of nodes that are not isolated."""
    names: list[str] = []
    for node in nodes:
        if is_open(node, need) or node.name in need.avoid or not could_hold(node, need):
            continue
        devices = [f"{node.name}/{d.index}" for d in node.devices if d.isolated is not None]
        names += [node.name] if node.isolated else devices
    return tuple(names)


ISOLATED_NAMED = 3
"""The most isolated nodes that a wait names."""


def isolation_hint(names: Sequence[str]) -> str:
    """What a wait says of isolated nodes and devices that are in its way: the command that ends that."""
    if not names:
        return ""
    more = len(names) - ISOLATED_NAMED
    listed = ", ".join(names[:ISOLATED_NAMED]) + (f" and {more} more" if more > 0 else "")
    verb = "is" if len(names) == 1 else "are"
    return f"{listed} {verb} isolated: everstep release {names[0]}"


def more_pods(least: int, most: int) -> str:
    """How many more pods need a place: so many at least, so many at most."""
    return f"{least} to {most} more pods" if 0 < least < most else _count(most, "more pod")


def shortage(count: int, nodes: Sequence[NodeView], need: Need) -> str:
    """Why so many slots find no place here even if all nodes are sound and free; empty if they would."""
    able = sum(could_hold(node, need) for node in nodes)
    if count <= able:
        return ""
    if count > len(nodes):
        return f"the cluster has {_count(len(nodes), 'node')}, the job wants {count}"
    each = "all devices" if need.accelerators == "all" else _count(need.accelerators, "device")
    if able:
        return f"{_count(able, 'node')} of {len(nodes)} can give {each}, the job wants {count}"
    most = max((len(node.devices) for node in nodes), default=0)
    has = f"more than {_count(most, 'device')}" if most else "any device"
    return f"no node has {has}, the job wants {each} of {_count(count, 'node')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def no_place_reason(rules: PlaceRules, state: PlaceState, *, wanted: int, waited_s: float) -> str:
    """Why there is no place: how many there are, how many are needed, what it waited for."""
    outcome = f"only {state.places} of {wanted} slots found a place"
    if state.places is None:
        outcome = f"the cluster found no place for {wanted} slots, nor for any smaller number tried"
    elif state.places >= wanted:
        outcome = "the places that were found were not free"
    if not rules.wait_s:
        return f"{outcome}{_least(rules)}"
    waited = f"; it waited for {state.waiting_for}" if state.waiting_for else ""
    return f"{outcome} within {round(waited_s, 1):g} s{_least(rules)}{waited}"


def start_failures_reason(most: int | None, state: PlaceState) -> str:
    """Why no further pod is tried: too many in a row failed. Empty: another one may be."""
    if most is None or state.start_failures <= most:
        return ""
    return state.failure or f"{state.start_failures} pods in a row failed before they started"


def _least(rules: PlaceRules) -> str:
    """The least number of nodes, for a job that may run on fewer than it wants."""
    if rules.least >= rules.wanted and not rules.bad:
        return ""
    bad = f", known not to work: {format_ranges(rules.bad)}" if rules.bad else ""
    return f" (the minimum is {rules.least}{bad})"


# -- How many slots to order --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """Give the same order again once something changed, at `until` at the latest (None: no limit)."""

    until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPlaces:
    """Order places for these slots. If the newest order has the same: wait for a change, or until `until`."""

    slots: tuple[int, ...]
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlace:
    """The wait is over; `waited_s` goes into the reason."""

    waited_s: float


TRY_S = 5.0
"""Seconds for each smaller order, where the cluster does not report how many places it has."""


def usable(least: int, most: int, *, bad: Collection[int]) -> tuple[int, ...]:
    """The numbers of nodes that a job may run on, the largest first."""
    return tuple(n for n in range(most, least - 1, -1) if n not in bad)


def first_slots(count: int, slots: Collection[int], *, staying: Collection[int]) -> tuple[int, ...]:
    """The first `count` of the slots: those that keep their pod, then the lowest numbers."""
    return tuple(sorted((*sorted(staying), *sorted({*slots} - {*staying}))[:count]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The slots of the newest order, and since when the cluster tries to place them."""

    slots: tuple[int, ...]
    since: float


def next_order(
    rules: PlaceRules,
    *,
    staying: tuple[int, ...],
    wanted: tuple[int, ...],
    attempt: Attempt,
    places: int | None,
    since: float,
    now: float,
    not_before: float = 0.0,
) -> TryAgain | OrderPlaces | NoPlace:
    """What to do while not all slots of the newest order have a place: wait, go on with fewer, or give up.

    `wanted` are all slots of the job, `staying` those of them that keep their pod. `places`: so many of the
    newest order could have one now; None if the cluster does not say. The wait began at `since`; before
    `not_before` old pods may still be in the way.
    """
    if now < not_before:
        return TryAgain(until=not_before)
    if places is None:
        attempt = replace(attempt, since=max(attempt.since, not_before))
        return _next_try(
            rules, staying=staying, wanted=wanted, attempt=attempt, since=since, now=now
        )
    spare_until = since + rules.spare_s
    possible = usable(rules.least, min(places, len(wanted)), bad=rules.bad)
    if now >= spare_until and possible:
        return OrderPlaces(slots=first_slots(possible[0], wanted, staying=staying))
    deadline = None if rules.wait_s is None else since + rules.wait_s
    if deadline is not None and now >= deadline:
        return NoPlace(waited_s=now - since)
    if now < spare_until:
        return TryAgain(until=spare_until if deadline is None else min(spare_until, deadline))
    return TryAgain(until=deadline)


def _next_try(
    rules: PlaceRules,
    *,
    staying: tuple[int, ...],
    wanted: tuple[int, ...],
    attempt: Attempt,
    since: float,
    now: float,
) -> OrderPlaces | NoPlace:
    """Where places are unknown: order all wanted slots, then each smaller number; after the least, all again.

    The time of an attempt counts from its order, even if no worker was there to follow it.
    """
    sizes = usable(rules.least, len(wanted), bad=rules.bad) or (len(wanted),)  # the largest first
    largest, smallest, tried = sizes[0], sizes[-1], len(attempt.slots)
    until = attempt.since + TRY_S
    if tried == largest:
        until = max(until, since + rules.spare_s)
    if tried in sizes and now < until:
        return OrderPlaces(slots=attempt.slots, until=until)
    if tried == smallest and rules.wait_s is not None and now >= since + rules.wait_s:
        return NoPlace(waited_s=now - since)
    next_size = largest
    if tried in sizes and tried != smallest:
        next_size = sizes[sizes.index(tried) + 1]
    return OrderPlaces(slots=first_slots(next_size, wanted, staying=staying), until=now + TRY_S)


def node_ranks(active: Iterable[int]) -> dict[int, int]:
    """NODE_RANK of every active slot: dense, in the order of the slots."""
    return {slot: rank for rank, slot in enumerate(sorted(active))}


def ranks_of(slot: int, ranks: Mapping[int, int], processes_per_node: int) -> range:
    """The ranks of one slot."""
    first = ranks[slot] * processes_per_node
    return range(first, first + processes_per_node)
