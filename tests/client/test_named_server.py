"""Which server `run` shares: that of its state directory, by TEMPORAL_ADDRESS or without."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.client.serving import holding
from everstep.client.serving.holding import ServerAddress
from everstep.client.serving.running import _is_shared

PORT = 17_233


@pytest.mark.parametrize(
    ("address", "is_shared"),
    [
        (None, True),
        (f"127.0.0.1:{PORT}", True),
        (f"localhost:{PORT}", True),
        (f"127.0.0.1:{PORT + 1}", False),
        (f"127.0.0.2:{PORT}", False),
    ],
)
def test_a_run_goes_on_with_the_server_of_its_home_by_whatever_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None, is_shared: bool
) -> None:
    """The one that only uses it would end with the run that holds it."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    held = holding.take(tmp_path)
    assert held is not None
    try:
        held.write_address(ServerAddress(port=PORT, ui_port=PORT + 9))
        assert _is_shared() is is_shared
    finally:
        held.release()
    assert not _is_shared()
