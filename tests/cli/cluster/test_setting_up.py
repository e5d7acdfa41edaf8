"""`everstep setup`: a server gets what jobs need, once."""

from __future__ import annotations

import json

import pytest

from everstep import devserver
from tests.cli.conftest import AsyncCli


async def test_setup_adds_what_is_missing_and_may_be_repeated(
    served: AsyncCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "set-up")
    first = await served("setup", "--json")
    assert first.code == 0
    value = json.loads(first.out)
    assert (value["namespace"], value["registered"]) == ("set-up", True)
    assert sorted(value["added"]) == sorted(devserver.search_attributes())
    again = await served("setup")
    assert (again.code, again.out) == (
        0,
        "namespace set-up was there\nevery search attribute was there\n",
    )


async def test_a_retention_that_is_no_time_is_refused(served: AsyncCli) -> None:
    refused = await served("setup", "--retention", "soon")
    assert refused.code == 2
    assert "--retention" in refused.err
