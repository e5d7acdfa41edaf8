"""The connection to the API server, with a file that leads clients through it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import wire
from tests.testbed.controlplane import ClusterAccess


class Wire(wire.Wire):
    """A port in front of the API server."""

    def __init__(self, access: ClusterAccess) -> None:
        port = urlsplit(access.url).port
        assert port is not None
        super().__init__(port)
        self._access = access

    def kubeconfig(self, folder: Path, *, of: str | None = None) -> str:
        """A file that leads through this wire, for the user of that one; else for the administrator."""
        content = json.loads(Path(of or self._access.kubeconfig).read_text())
        content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        path = folder / "wire.kubeconfig"
        path.write_text(json.dumps(content))
        return str(path)
