"""The ConfigMap with the agent's program. Every pod of ours mounts the one in its namespace."""

from __future__ import annotations

import asyncio
import tempfile
from base64 import b64encode
from pathlib import Path

from everstep.agent import build
from everstep.backends.kubernetes import manifest, names
from everstep.backends.kubernetes.api import Json, KubernetesApi
from everstep.backends.kubernetes.reaching import allowing, reached


async def config_map() -> Json:
    """Return the ConfigMap with the agent of this version."""
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        path = Path(folder) / manifest.AGENT_FILE
        content = (await asyncio.to_thread(build.build, path, is_small=True)).read_bytes()
    metadata = {"name": names.agent(content), "labels": {names.MANAGED_BY: names.EVERSTEP}}
    binary = {manifest.AGENT_FILE: b64encode(content).decode()}
    return {"metadata": metadata, "immutable": True, "binaryData": binary}


async def ensure_agent(api: KubernetesApi, namespace: str, agent: Json) -> None:
    """Create the ConfigMap unless it is there: it may have been deleted. Raises BackendUnavailable."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    if not await reached(api.exists(f"{maps}/{agent['metadata']['name']}")):
        await allowing(api.create(maps, agent), 409)
