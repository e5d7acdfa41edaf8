"""The books of a cluster: one ConfigMap for each job, replaced only where it is still the one that was read.

A job's ConfigMap owns its pods and its Secret: where it is deleted, the API server removes them too. It
stays when the job ends, until an operator prunes it: generations given to a job's ID are not given again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from everstep.backends.agents import cursors
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import Books, JobBooks
from everstep.backends.kubernetes import listed_faults, names
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.folder_claims import FolderClaims
from everstep.backends.kubernetes.identity import CLUSTER
from everstep.backends.kubernetes.listed_faults import Ended, EndsOfFaults
from everstep.backends.kubernetes.reaching import (
    ATTEMPTS,
    before_next_attempt,
    is_late,
    never_first,
    reached,
)
from everstep.backends.rules import ownership
from everstep.backends.rules.nodes import Service
from everstep.backends.rules.ownership import FolderClaim
from everstep.core.errors import BackendUnavailable, WrongCluster
from everstep.core.facts import Fact
from everstep.core.world import JobRef

logger = logging.getLogger(__name__)

T = TypeVar("T")

FACTS_MOST = 500
"""The newest facts that are kept of a job, as an object of the API server has an upper size. A lost node is
one fact, so a job has read its facts long before there are so many."""
TEMPLATE_MOST = 64 * 1024
BYTES_MOST = 256 * 1024
"""Of the facts, a quarter of what an object may have: the oldest go before they take more."""
FAILURE_MOST = 300
"""Bytes of why a pod failed: a container may end with 4 KB of words, and there may be a thousand pods."""
_KEPT_MOST = 1_000
"""Documents that are in memory, of as many jobs."""
_KEY = "job.json"
_LONGEST_WAIT_S = 30.0


def wait_after(failures: int) -> float:
    """Seconds between the end of a pod and the creation of its successor, after so many failures."""
    return 0.0 if failures < 2 else min(2.0 ** (failures - 2), _LONGEST_WAIT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEntry:
    """A pod that a job has, or had and that may still be there."""

    name: str
    slot: int
    generation: int
    devices: int = 0
    uid: str = ""  # empty: it may not have been created
    node: str = ""
    is_leaving: bool = False  # it was ordered to end
    stands_by: bool = False  # it counts as no slot's yet
    ordered_at: float | None = None  # of a spare
    ready_at: float | None = None  # when the agent of a spare answered first
    made_as: str = ""  # of a pod that stands by, or stood by: a short form of what it was made from
    has_vanished: bool = False  # its object is gone, and nothing proves that its processes are
    has_answered: bool = False  # its agent did once, to any worker
    is_lost: bool = False  # its agent ended, proven
    dead_at: float | None = None  # since then no process of it runs, proven
    grace_s: float = 0.0
    failures: int = 0  # pods of this name that ended before their agent answered
    start_failures: int = 0  # those of them of which a container failed, or that others deleted
    failed_at: float = 0.0  # when the newest of them ended
    is_failed_start: bool = False  # its pod failed, and is kept until its successor is due
    failure: str = ""  # why it ended
    is_withdrawn: bool = False  # its pod gets no place where it waits: it is created again
    group: int = 0  # which group of its generation the pod joins
    joins: str = ""  # another group instead, in which it takes a place that is left
    joins_size: int = 0  # of that group

    @property
    def created_from(self) -> float:
        """When its pod may be created: again at once, then later each time it fails."""
        return self.failed_at + wait_after(self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument:
    """All that is stored of a job."""

    record: JobRecord
    pods: tuple[PodEntry, ...] = ()
    facts: tuple[tuple[int, Fact], ...] = ()  # with their numbers, which grow
    newest_fact: int = 0
    ends: EndsOfFaults = field(default_factory=dict)  # of the faults that observers list
    image: str = ""  # of the newest placement
    template: str = ""  # its pod template as JSON; empty: too large to be kept

    @property
    def removable(self) -> tuple[PodEntry, ...]:
        """The pods of which an object may be there."""
        return tuple(entry for entry in self.pods if not entry.has_vanished)

    @property
    def has_objects(self) -> bool:
        """A job that was placed has pods or a Secret, until `ensure_gone` is done with it."""
        return bool(self.removable) or self.record.placed is not None

    @property
    def is_in_use(self) -> bool:
        """Whether pods of the job may run: by its label the API server keeps such a record."""
        return bool(self.pods) or self.record.placed is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A document, and which version of which object it was read from."""

    document: JobDocument
    version: str = ""  # empty: there is no object yet
    uid: str = ""


_DOCUMENTS = TypeAdapter(JobDocument)
ServiceOf = Callable[[str], tuple[Service, float | None]]
"""The service of a node, and since when that is so."""
EndOf = Callable[[PodEntry, JobRecord], Fact | None]
"""Why a pod of the job ended, or is about to; None: nothing shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What the API server reports, as far as transactions use it."""

    service_of: ServiceOf
    is_deleted: Callable[[str], bool] = lambda _uid: False  # a pod
    dead_sidecars: Callable[[str], tuple[str, ...]] = lambda _uid: ()  # of a pod
    faults: Callable[[], Sequence[Fact]] = tuple
    end_of: EndOf = lambda _entry, _record: None


class JobSession(JobBooks):
    """One job inside one transaction."""

    def __init__(self, stored: Stored, identity: str, reports: Reports) -> None:
        self._rest = stored.document  # up to date but for its pods
        self._entries = {entry.name: entry for entry in stored.document.pods}
        self._is_new = not stored.version
        self._identity = identity
        self._reports = reports

    @property
    def document(self) -> JobDocument:
        """As it is to be stored."""
        entries = sorted(self._entries.values(), key=lambda entry: (entry.slot, entry.generation))
        return replace(self._rest, pods=tuple(entries))

    @property
    def entries(self) -> Sequence[PodEntry]:
        """A copy: the entries may be changed meanwhile."""
        return tuple(self._entries.values())

    @property
    def record(self) -> JobRecord:
        return self._rest.record

    @record.setter
    def record(self, record: JobRecord) -> None:
        self._rest = replace(self._rest, record=record)

    def refuse_others(self, ref: JobRef) -> None:
        ownership.refuse_strange(ref, self._identity)

    def refuse_unknown(self, generation: int) -> None:
        if generation and self._is_new:
            job_id = self.record.id
            what = f"ConfigMap {names.record(job_id)} with the record of job {job_id} was deleted"
            raise WrongCluster(job_id, what)
        super().refuse_unknown(generation)

    def pods(self) -> Sequence[Pod]:
        return self._pods(is_leaving=False)

    def leaving(self) -> Sequence[Pod]:
        return self._pods(is_leaving=True)

    def _pods(self, *, is_leaving: bool) -> list[Pod]:
        entries = [
            entry
            for entry in self.entries
            if entry.is_leaving is is_leaving and entry.uid and (is_leaving or not entry.stands_by)
        ]
        return [self._pod(entry) for entry in sorted(entries, key=lambda entry: entry.slot)]

    def _pod(self, entry: PodEntry) -> Pod:
        service, since = self._reports.service_of(entry.node)
        return Pod(
            uid=entry.uid,
            job=self.record.id,
            slot=entry.slot,
            node=entry.node,
            generation=entry.generation,
            devices=tuple(range(entry.devices)),
            is_leaving=entry.is_leaving,
            # Neither the record nor a withdrawal ordered that.
            is_deleted=not (entry.is_leaving or entry.is_withdrawn)
            and self._reports.is_deleted(entry.uid),
            dead_sidecars=self._reports.dead_sidecars(entry.uid),
            is_lost=entry.is_lost,
            has_answered=entry.has_answered,
            dead_at=entry.dead_at,
            service=service,
            since=since,
        )

    def update(self, entry: PodEntry) -> None:
        """Replace the entry of this name, or add it."""
        failure = entry.failure.encode()[:FAILURE_MOST].decode(errors="ignore")
        self._entries[entry.name] = replace(entry, failure=failure)

    def keep_template(self, image: str, template: Mapping[str, Any]) -> None:
        """Where the volumes of the job are found when none of its pods is left."""
        text = json.dumps(template, sort_keys=True)
        text = text if len(text) <= TEMPLATE_MOST else ""
        self._rest = replace(self._rest, image=image, template=text)

    def remove(self, name: str) -> None:
        self._entries.pop(name, None)

    def entry(self, uid: str) -> PodEntry | None:
        return next((one for one in self._entries.values() if one.uid == uid), None)

    def set_answered(self, uid: str) -> None:
        if entry := self.entry(uid):
            self.update(replace(entry, has_answered=True))

    def set_lost(self, uid: str) -> None:
        """The loss is stored with its reason: without one it counts as a crash."""
        if entry := self.entry(uid):
            if end := self._reports.end_of(entry, self.record):
                self.add_fact(end)
            self.update(replace(entry, is_lost=True))

    def standbys(self) -> Sequence[Pod]:
        return [self._pod(e) for e in self.entries if e.stands_by and e.uid and not e.is_leaving]

    def end_standbys(self, *, spares: Collection[int] = ()) -> None:
        for entry in self.entries:
            if entry.stands_by and not entry.is_leaving and entry.slot not in spares:
                self.update(replace(entry, is_leaving=True))

    def end_pods(self, grace_s: float) -> None:
        for entry in self.entries:
            if not entry.is_leaving:
                self.update(replace(entry, is_leaving=True, grace_s=grace_s))

    def forget(self) -> None:
        """Drop what only the pods of the ended job needed. Its record stays, with all generations."""
        self._rest = replace(self._rest, facts=(), ends={}, image="", template="")

    def drop(self, uid: str) -> None:
        if entry := self.entry(uid):
            self.remove(entry.name)

    def add_fact(self, fact: Fact) -> None:
        if any(stored.id == fact.id for _, stored in self._rest.facts):
            return
        number = self._rest.newest_fact + 1
        facts = (*self._rest.facts, (number, fact))[-FACTS_MOST:]
        self._rest = replace(self._rest, facts=facts, newest_fact=number)

    def add_faults(self, faults: Iterable[Fact], ends: Iterable[Ended]) -> None:
        for fault in faults:
            self.add_fact(fault)
        for end in ends:
            self._rest = replace(self._rest, ends=listed_faults.with_end(self._rest.ends, end))
            if end.fact is not None:
                self.add_fact(end.fact)

    def facts_after(self, cursor: str) -> tuple[tuple[Fact, ...], str]:
        ids = {number: fact.id for number, fact in self._rest.facts}
        after = cursors.number(
            self._identity, cursor, newest=self._rest.newest_fact, fact_id=ids.get
        )
        newer = {number: fact for number, fact in self._rest.facts if number > after}
        return tuple(newer.values()), cursors.behind(
            self._identity, newer, cursor=cursor, after=after
        )

    def present_faults(self) -> tuple[Fact, ...]:
        job_pods = (e for e in self.entries if not (e.is_leaving or e.stands_by))
        nodes = {entry.node for entry in job_pods}
        of_nodes = (fact for fact in self._reports.faults() if fact.node in nodes)
        return tuple(listed_faults.occurrences(of_nodes, self._rest.ends))

    def rehearsed_checks(self, pod: Pod) -> Mapping[str, bool]:  # noqa: ARG002  # nothing is rehearsed here
        return {}


class ConfigMapBooks(Books):
    """The books in one namespace."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        identity: str,
        *,
        reports: Reports,
    ) -> None:
        self.maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._api = api
        self._identity = identity
        self._reports = reports
        self._folders = FolderClaims(api=api, maps=self.maps, lives=self._lives)
        self._newest: dict[str, Stored] = {}  # by job
        self._unreadable: set[str] = set()  # sentences in the log

    @property
    def identity(self) -> str:
        return self._identity

    async def change(self, job_id: str, work: Callable[[JobBooks], T]) -> T:
        return await self.transact(job_id, work)

    async def transact(
        self, job_id: str, work: Callable[[JobSession], T], *, start: Stored | None = None
    ) -> T:
        """As `change`, for callers that use what only these books store. `start`: as read a moment ago."""
        result, _ = await self.transacted(job_id, work, start=start)
        return result

    async def transacted(
        self, job_id: str, work: Callable[[JobSession], T], *, start: Stored | None = None
    ) -> tuple[T, Stored]:
        """As `transact`, with what is stored afterwards."""
        for _ in range(ATTEMPTS):
            if start is None:
                start = await reached(self.read(job_id))
            stored, start = start, None
            session = JobSession(stored, self._identity, self._reports)
            result = work(session)
            if (document := session.document) == stored.document:
                return result, stored
            try:
                return result, await self._write(stored, document)
            except Unreachable as error:
                raise BackendUnavailable(str(error)) from None
            except Refused as error:
                # Late: another worker was first. The next attempt begins with what that one stored.
                if not is_late(error, creates=not stored.version):
                    raise BackendUnavailable(str(error)) from None
            await before_next_attempt()
        raise never_first(f"ConfigMap {names.record(job_id)}")

    async def read(self, job_id: str) -> Stored:
        """Raises Refused, Unreachable; BackendUnavailable where the object makes no sense."""
        config_map = await self._api.find(f"{self.maps}/{names.record(job_id)}")
        if config_map is None:
            return Stored(document=JobDocument(record=JobRecord(id=job_id)))
        newest = self._newest.get(job_id)
        if newest is not None and newest == _stored_as(newest.document, config_map):
            return newest
        return self._keep(stored_in(config_map))

    async def _write(self, stored: Stored, document: JobDocument) -> Stored:
        job_id = document.record.id
        labels = {**names.labels(self._identity, job_id), names.ROLE: "job"}
        if document.is_in_use:
            labels[names.IN_USE] = "true"
        metadata = {
            "name": names.record(job_id),
            "labels": labels,
            "annotations": {names.JOB: job_id},
        }
        document, text = _written(document)
        body: Json = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {_KEY: text},
        }
        if stored.version:
            metadata |= {"resourceVersion": stored.version, "uid": stored.uid}
            reply = await self._api.replace(f"{self.maps}/{metadata['name']}", body)
        else:
            reply = await self._api.create(self.maps, body)
        return self._keep(_stored_as(document, reply))

    def _keep(self, stored: Stored) -> Stored:
        """Remember the newest document of a job: reading it from its text takes time."""
        self._newest[stored.document.record.id] = stored
        if len(self._newest) > _KEPT_MOST:
            del self._newest[next(iter(self._newest))]
        return stored

    async def claim(self, job_id: str, claims: Sequence[FolderClaim]) -> None:
        await self._folders.claim(job_id, claims)

    async def release(self, job_id: str) -> None:
        """Give up the claims of a job of which nothing is left, unless it has begun again. Repeatable."""
        await self._folders.release(job_id)

    async def _lives(self, job_id: str) -> bool:
        stored = await reached(self.read(job_id))
        return stored.document.record.placed is not None

    async def jobs(self) -> list[JobDocument]:
        """The documents of all job IDs that were ever here. A damaged one is logged and left out."""
        query = {"labelSelector": f"{names.selector(self._identity)},{names.ROLE}=job"}
        items = self._api.items(self.maps, query)
        return [document async for one in items if (document := self._readable(one)) is not None]

    def _readable(self, config_map: Json) -> JobDocument | None:
        try:
            return stored_in(config_map).document
        except BackendUnavailable as error:
            if (message := str(error)) not in self._unreadable:  # it is read every few seconds
                logger.warning("%s; what is left of its job stays", message)
                self._unreadable.add(message)
            return None


@dataclass(slots=True, kw_only=True)
class BooksOfOneCall(Books):
    """The books for one call about one job. Each of its transactions begins where the one before ended.

    The call sees the job as it was when the call began. What another worker stored since then is seen as
    soon as this one stores anything: then the transaction is carried out again.
    """

    books: ConfigMapBooks
    start: Stored | None = None

    @property
    def identity(self) -> str:
        return self.books.identity

    async def change(self, job_id: str, work: Callable[[JobBooks], T]) -> T:
        result, self.start = await self.books.transacted(job_id, work, start=self.start)
        return result

    async def claim(self, job_id: str, claims: Sequence[FolderClaim]) -> None:
        await self.books.claim(job_id, claims)


def _written(document: JobDocument) -> tuple[JobDocument, str]:
    """The document, without the oldest facts if they take more than `BYTES_MOST`, and its text."""
    text = _DOCUMENTS.dump_json(document, exclude_defaults=True)
    if len(text) <= BYTES_MOST:  # as nearly always: its parts need not be measured
        return document, text.decode()
    rest = len(_DOCUMENTS.dump_json(replace(document, facts=()), exclude_defaults=True))
    while len(text) > rest + BYTES_MOST and document.facts:
        document = replace(document, facts=document.facts[len(document.facts) // 8 + 1 :])
        text = _DOCUMENTS.dump_json(document, exclude_defaults=True)
    return document, text.decode()


def stored_in(config_map: Json) -> Stored:
    """What a job's ConfigMap holds."""
    metadata = config_map["metadata"]
    try:
        document = _DOCUMENTS.validate_json(config_map["data"][_KEY])
    except (KeyError, TypeError, ValidationError) as error:
        what = str(error).splitlines()[0]
        message = f"ConfigMap {metadata['name']} is not as Everstep wrote it: {what}"
        raise BackendUnavailable(message) from None
    return _stored_as(document, config_map)


def _stored_as(document: JobDocument, config_map: Json) -> Stored:
    metadata = config_map["metadata"]
    return Stored(document=document, version=metadata["resourceVersion"], uid=metadata["uid"])


# -- What belongs to no job -----------------------------------------------------------------------


_ISOLATED = "isolated."
_LONG = "isolated-long."
"""Of a name for which a key has no room: its key is a hash, and its value begins with the name, in a line."""
_KEY_MOST = 253
# Stands for `/`, which keys of a ConfigMap may not have; names of nodes have no `_`.
_OF_DEVICE = "_"


async def isolations(api: KubernetesApi, namespace: str) -> dict[str, str]:
    """Isolated nodes and devices (`n1`, `n1/3`), and why."""
    config_map = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{CLUSTER}")
    isolated: dict[str, str] = {}
    for key, value in config_map["data"].items():
        if key.startswith(_ISOLATED):
            isolated[key.removeprefix(_ISOLATED).replace(_OF_DEVICE, "/")] = value
        elif key.startswith(_LONG):
            name, _, reason = value.partition("\n")
            isolated[name] = reason
    return isolated


async def isolated_nodes(api: KubernetesApi, namespace: str) -> set[str]:
    """Nodes that get no new pods.

    A device is isolated with its node: a pod requests a number of devices, not some of them.
    """
    return {name.partition("/")[0] for name in await isolations(api, namespace)}


async def set_isolated(api: KubernetesApi, namespace: str, name: str, reason: str | None) -> None:
    """Isolate a node or a device, or release it (None). One key each, so that two changes never meet."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/{CLUSTER}"
    key = f"{_ISOLATED}{name.replace('/', _OF_DEVICE)}"
    if len(key) > _KEY_MOST:
        key = f"{_LONG}{hashlib.sha256(name.encode()).hexdigest()}"
        reason = None if reason is None else f"{name}\n{reason}"
    await api.patch(path, {"data": {key: reason}})
