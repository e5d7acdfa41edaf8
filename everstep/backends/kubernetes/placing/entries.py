"""The entries of pods in a job's record, and how an order changes them. Pure.

`want_pods` and `want_standbys` change the entries inside a transaction; nothing is created or removed yet. An
entry without a uid is a pod to create (`missing_pods`), one that leaves a pod to remove.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from everstep.backends.agents.ports import owned_record
from everstep.backends.kubernetes import manifest, names
from everstep.backends.kubernetes.books import JobSession, PodEntry, Stored
from everstep.backends.rules import ownership, placing
from everstep.core.world import PlaceOrder


def want_pods(
    session: JobSession,
    order: PlaceOrder,
    may_be_used: Callable[[PodEntry], bool],
    free_places: Callable[[Sequence[PodEntry]], Iterable[manifest.Gang]],
) -> None:
    """Make the entries those of the order: let old pods leave, take standbys, add entries for the other
    slots.

    `may_be_used`: whether a standby is still good. `free_places`: the groups in a queue that have a place
    left once these entries are placed, one for each place; a new pod joins such a group instead of a new
    one.
    """
    record = owned_record(session, order.job, order.generation)
    ownership.refuse_ended(record, order.generation)
    entries = _by_slot(session.entries, stands_by=False)
    made_in = {slot: entry.generation for slot, entry in entries.items()}
    before = _created_by(order, entries)
    for slot in placing.slots_to_remove(order, made_in):
        session.update(replace(entries.pop(slot), is_leaving=True))
    usable = _usable_standbys(session, may_be_used)
    without_pod = {*order.slots} - entries.keys()
    for slot, number in placing.takers(without_pod, usable, spares=order.spares).items():
        entry = replace(usable[number], slot=slot, stands_by=False, generation=order.generation)
        entries[slot] = entry
        session.update(entry)
    _end_standbys(session, usable, to_keep=order.spares)
    devices = manifest.devices_of(order)
    leaving_names = {entry.name for entry in session.entries if entry.is_leaving}
    places = iter(free_places(session.entries))
    for slot in sorted(set(order.slots) - entries.keys()):
        name = names.pod(order.job.id, slot=slot, generation=order.generation)
        entry = PodEntry(name=name, slot=slot, generation=order.generation, devices=devices)
        if (group := next(places, None)) is not None:
            entry = replace(entry, joins=group.name, joins_size=group.size)
        # A leaving pod of this generation has the same name: it is removed before the new one is created.
        session.update(replace(entry, is_withdrawn=name in leaving_names))
    _regroup(session, order, before)
    session.keep_template(order.image or "", order.pod_template)
    session.record = replace(session.record, placed=order.generation)


def _created_by(order: PlaceOrder, entries: Mapping[int, PodEntry]) -> dict[int, PodEntry]:
    """The gang of the order: the pods that its generation creates and that join no earlier group."""
    return {
        slot: entry
        for slot, entry in entries.items()
        if is_created_in(entry, order.job.id, order.generation) and not entry.joins
    }


def _regroup(session: JobSession, order: PlaceOrder, before: Mapping[int, PodEntry]) -> None:
    """Replace the pods by those of a new group when their number changes and none of them has a node.

    A scheduler backs off from a group that it could not schedule: the more often it tried, the longer, and
    whatever its size is now. A new one is scheduled at once.
    """
    gang = _created_by(order, _by_slot(session.entries, stands_by=False))
    number = max((entry.group for entry in before.values()), default=0)
    is_new = bool(before) and gang.keys() != before.keys()
    if is_new and not any(entry.node for entry in before.values()):
        number += 1
    for slot, entry in gang.items():
        if entry.group != number:
            is_withdrawn = entry.is_withdrawn or slot in before
            session.update(replace(entry, group=number, is_withdrawn=is_withdrawn))


def want_standbys(
    session: JobSession,
    order: PlaceOrder,
    may_be_used: Callable[[PodEntry], bool],
    *,
    made_as: str,
    now: float,
) -> None:
    """Keep or add a standby entry for each slot to recreate, keep the order's spares, let others leave.

    `made_as`: a short form of what the order's pods are made from.
    """
    record = owned_record(session, order.job, order.generation)
    ownership.refuse_ended(record, order.generation)
    usable = _usable_standbys(session, may_be_used)
    _end_standbys(session, usable, to_keep={*order.recreate, *order.spares})
    for slot, number in placing.takers(order.recreate, usable, spares=order.spares).items():
        session.update(replace(usable[number], slot=slot))
    taken_names = {entry.name for entry in session.entries}
    for slot in set(order.recreate) - _by_slot(session.entries, stands_by=True).keys():
        numbered = (
            names.standby(order.job.id, slot=slot, generation=order.generation, number=number)
            for number in itertools.count(1)
        )
        entry = PodEntry(
            name=next(name for name in numbered if name not in taken_names),
            slot=slot,
            generation=order.generation,
            devices=manifest.devices_of(order),
            stands_by=True,
            ordered_at=None if slot in order.slots else now,
            made_as=made_as,
        )
        session.update(entry)


def _usable_standbys(
    session: JobSession, may_be_used: Callable[[PodEntry], bool]
) -> dict[int, PodEntry]:
    """The entries that stand by and can become the order's, by their numbers."""
    entries = _by_slot(session.entries, stands_by=True)
    return {slot: entry for slot, entry in entries.items() if may_be_used(entry)}


def _end_standbys(
    session: JobSession, usable: Mapping[int, PodEntry], *, to_keep: Collection[int]
) -> None:
    """Let the pods leave that stand by and are not among the kept ones, or of no use."""
    for slot, entry in _by_slot(session.entries, stands_by=True).items():
        if slot not in to_keep or slot not in usable:
            session.update(replace(entry, is_leaving=True))


def note_ready(session: JobSession, uids: Collection[str], now: float) -> None:
    """Store that the agents of these pods that stand by answered, and when that was first seen."""
    for entry in session.entries:
        if entry.uid in uids and entry.stands_by and entry.ready_at is None:
            session.update(replace(entry, has_answered=True, ready_at=now))


def stood_up_s(entry: PodEntry) -> float | None:
    """How long a spare took until its agent answered; None: the pod is no spare, or was not ready."""
    if entry.ordered_at is None or entry.ready_at is None:
        return None
    return round(entry.ready_at - entry.ordered_at, 6)


def _by_slot(entries: Iterable[PodEntry], *, stands_by: bool) -> dict[int, PodEntry]:
    return {e.slot: e for e in entries if e.stands_by is stands_by and not e.is_leaving}


def wanted_entries(stored: Stored) -> dict[int, PodEntry]:
    return _by_slot(stored.document.pods, stands_by=False)


def standby_entries(stored: Stored) -> dict[int, PodEntry]:
    return _by_slot(stored.document.pods, stands_by=True)


def missing_pods(order: PlaceOrder, stored: Stored) -> list[PodEntry]:
    """The pods of the order that are to be created."""
    entries = wanted_entries(stored).values()
    return [entry for entry in entries if not entry.uid and entry.slot in order.slots]


def nodes_to_avoid(order: PlaceOrder) -> set[str]:
    """A pod requests a number of devices, not some of them: a device is avoided with its node."""
    return {*order.avoid, *(node for node, _ in order.avoid_devices)}


def owner(stored: Stored) -> dict[str, str]:
    return {"name": names.record(stored.document.record.id), "uid": stored.uid}


def gang_of(order: PlaceOrder, stored: Stored) -> manifest.Gang:
    """The pods of the order that its generation creates: the others run already."""
    created = _created_by(order, wanted_entries(stored)).values()
    number = max((entry.group for entry in created), default=0)
    name = names.group(order.job.id, generation=order.generation, number=number)
    return manifest.Gang(name=name, size=len(created))


def joined_group(entry: PodEntry) -> manifest.Gang | None:
    """The earlier group that the pod joins; None: the one of its generation."""
    return manifest.Gang(name=entry.joins, size=entry.joins_size) if entry.joins else None


def members(stored: Stored, gang: manifest.Gang) -> list[PodEntry]:
    job = stored.document.record.id
    return [
        entry
        for entry in wanted_entries(stored).values()
        if names.group(job, generation=entry.generation, number=entry.group) == gang.name
        and is_created_in(entry, job, entry.generation)
        and not entry.joins
    ]


def is_created_in(entry: PodEntry, job: str, generation: int) -> bool:
    """Whether this generation creates the pod: one that stood by was created before."""
    return entry.name == names.pod(job, slot=entry.slot, generation=generation)
