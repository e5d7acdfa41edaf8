"""The nodes that a cluster's quarantine holds."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client

from everstep.client.connection import UnlessAbsent
from everstep.client.jobs.answers import send_query
from everstep.core import names


async def quarantined_nodes(client: Client, cluster: str) -> list[dict[str, Any]]:
    """The rows of the quarantine; empty if there is no quarantine."""
    with UnlessAbsent():
        rows: list[dict[str, Any]] = await send_query(
            client, names.quarantine_id(cluster), "nodes", {"counts": True}
        )
        return rows
    return []
