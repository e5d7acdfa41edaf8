"""What the client of the API server takes from a kubeconfig, and leaves nowhere."""

from __future__ import annotations

import json
import tempfile
from base64 import b64encode
from pathlib import Path

import pytest

from everstep.backends.kubernetes import credentials
from everstep.backends.kubernetes.api import KubernetesApi


async def test_a_private_key_of_a_kubeconfig_is_left_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line ends by `os._exit`, and a worker may be killed: nothing is removed after them."""
    made = credentials.make("job")
    key, certificate = (
        b64encode(made[name].encode()).decode()
        for name in (credentials.CLIENT_KEY, credentials.CLIENT_CERTIFICATE)
    )
    user = {"client-certificate-data": certificate, "client-key-data": key}
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": certificate}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
    }
    path, temporary = tmp_path / "config", tmp_path / "tmp"
    path.write_text(json.dumps(kubeconfig))
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for _ in range(2):
        async with await KubernetesApi.from_kubeconfig(str(path)):
            assert list(temporary.iterdir()) == []
