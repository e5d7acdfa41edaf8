"""Whose each folder is: one ConfigMap for all jobs of a namespace, replaced only where it is as it was read.

A claim counts as long as its job lives. If a worker was killed before it gave up the claims of an ended job,
they are void. A job that begins again gives up such claims of its ID first. That changes the ConfigMap, so
another job that has just read them as void cannot replace it any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused
from everstep.backends.kubernetes.reaching import (
    ATTEMPTS,
    before_next_attempt,
    is_late,
    never_first,
    reached,
)
from everstep.backends.rules import ownership
from everstep.backends.rules.ownership import FolderClaim, FolderPlace

NAME = "everstep-folders"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderClaims:
    """The claims in one namespace."""

    api: KubernetesApi
    maps: str  # path of its ConfigMaps
    lives: Callable[[str], Awaitable[bool]]  # whether anything of this job may be there

    async def claim(self, job_id: str, claims: Sequence[FolderClaim]) -> None:
        """Make the folders this job's, all or none. Raises FolderTaken, BackendUnavailable."""
        places = {place for one in claims for place in one.places}
        if not places:
            return
        for _ in range(ATTEMPTS):
            stored = await self._read()
            entries: Mapping[str, str] = stored.get("data") or {}
            owners = await self._living(entries, places, job_id)
            claimed = ownership.claimed(job_id, claims, owners)
            changed = {**entries, **{_key(place): _entry(place, job_id) for place in claimed}}
            if changed == entries or await self._write(stored, changed):
                return
            await before_next_attempt()  # another job was first
        raise never_first(f"ConfigMap {NAME}")

    async def release(self, job_id: str) -> None:
        """Give up all claims of a job of which nothing is left. Repeatable. Raises BackendUnavailable.

        The claims are read first: a job that begins again meanwhile keeps those that it makes then.
        """
        for _ in range(ATTEMPTS):
            stored = await self._read()
            entries: Mapping[str, str] = stored.get("data") or {}
            rest = {key: entry for key, entry in entries.items() if _job(entry) != job_id}
            if rest == entries or await self.lives(job_id):
                return
            if await self._write(stored, rest):
                return
            await before_next_attempt()
        raise never_first(f"ConfigMap {NAME}")

    async def _living(
        self, entries: Mapping[str, str], places: Collection[FolderPlace], job_id: str
    ) -> dict[FolderPlace, str]:
        """Who claims these places, or places that overlap with them, as far as their jobs live."""
        by_key = {_key(place): place for place in places}
        claims = ((_place(entry) or by_key.get(key), _job(entry)) for key, entry in entries.items())
        owners = {
            claimed: job
            for claimed, job in claims
            if claimed is not None and any(claimed.overlap(place) for place in places)
        }
        for owner in {*owners.values()} - {job_id}:
            if not await self.lives(owner):
                owners = {place: job for place, job in owners.items() if job != owner}
        return owners

    async def _read(self) -> Json:
        """The ConfigMap; empty: there is none."""
        return await reached(self.api.find(f"{self.maps}/{NAME}")) or {}

    async def _write(self, stored: Json, entries: Mapping[str, str]) -> bool:
        """Write the entries. False: not written, as another worker changed them since they were read."""
        metadata: Json = {"name": NAME, "labels": {names.MANAGED_BY: names.EVERSTEP}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": entries}

        async def write() -> bool:
            try:
                if not stored:
                    await self.api.create(self.maps, body)
                else:
                    metadata["resourceVersion"] = stored["metadata"]["resourceVersion"]
                    await self.api.replace(f"{self.maps}/{NAME}", body)
            except Refused as error:
                if not is_late(error, creates=not stored):
                    raise
                return False
            return True

        return await reached(write())


def _entry(place: FolderPlace, job_id: str) -> str:
    return json.dumps([*place, job_id])


def _place(entry: str) -> FolderPlace | None:
    """None: a worker of an earlier version wrote the entry, which is the job alone."""
    return FolderPlace(*json.loads(entry)[:2]) if entry.startswith("[") else None


def _job(entry: str) -> str:
    return str(json.loads(entry)[2]) if entry.startswith("[") else entry


def _key(place: FolderPlace) -> str:
    """As a key of a ConfigMap, which takes no path."""
    return hashlib.sha256("\0".join(place).encode()).hexdigest()[:32]
