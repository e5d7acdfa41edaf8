"""Restarts as Events of the API server, on the object that owns a job: `kubectl describe` shows them."""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Iterable
from datetime import UTC, datetime

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused
from everstep.backends.kubernetes.books import Stored
from everstep.chronicle.chronicle import Entry
from everstep.core.world import JobRef

logger = logging.getLogger(__name__)

_MESSAGE_MOST = 1024
"""Bytes that the API server takes."""


def event(job: JobRef, entry: Entry, owner: Stored, *, namespace: str, books: str) -> Json:
    """The Event of a restart. The same restart has the same name: created twice it is counted once."""
    record = names.record(job.id)
    identity = hashlib.sha256(f"{job.run}/{entry.number}".encode()).hexdigest()[:16]
    at = datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    is_success = entry.result == "success"
    return {
        "metadata": {
            "name": f"{record}.{identity}",
            "namespace": namespace,
            "labels": names.labels(books, job.id),
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "namespace": namespace,
            "name": record,
            "uid": owner.uid,
        },
        "type": "Normal" if is_success else "Warning",
        "reason": "Restarted" if is_success else "RestartEnded",
        "message": entry.restart.encode()[:_MESSAGE_MOST].decode(errors="ignore"),
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": names.EVERSTEP, "host": socket.gethostname()},
        "reportingComponent": f"{names.PREFIX}worker",
    }


async def ensure_events(
    api: KubernetesApi, namespace: str, job: str, events: Iterable[Json]
) -> None:
    """Create those that are not there. A refusal is a line in the log: nothing depends on them."""
    for one in events:
        try:
            await api.create(f"/api/v1/namespaces/{namespace}/events", one)
        except Refused as error:
            if error.status != 409:
                name = one["metadata"]["name"]
                logger.warning("event %s: %s", name, error, extra={"job": job})
