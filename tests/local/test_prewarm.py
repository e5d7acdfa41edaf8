"""A job whose document names modules to import ahead, run on this machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from everstep.backends.local.reconciling.agents import AgentFolder
from everstep.protocol import wire
from tests.support.machine import Machine, example, until_printed
from tests.support.patience import HUNG_S

pytestmark = pytest.mark.long


def test_what_a_helper_holds_is_shown_and_the_next_start_is_forked_from_it(
    machine: Machine, tmp_path: Path
) -> None:
    changes = {'"--steps", "100"': '"--steps", "400"', "  workdir: .\n": "  prewarm: [decimal]\n"}
    job = example("single", tmp_path / "single", **changes)
    with machine.running("run", str(job)) as process:
        (server,) = [
            line.split()[1] for line in until_printed(process, "its UI") if "its UI" in line
        ]
        assert server == f"{machine.env['TEMPORAL_ADDRESS']},"  # where other commands look for it
        until_printed(process, "step ")
        held, status = None, {}
        while held is None:
            job_status = machine.everstep("status", "single", "--json")
            assert job_status.returncode == 0, job_status.stderr
            status = json.loads(job_status.stdout)
            held = status.get("prewarm_bytes")
        assert 1e6 < held < 1e9
        page = machine.everstep("status", "single").stdout
        assert f"{', '.join(status['prewarm_modules'])}; " in page
        assert "MB held" in page
        machine.fault("kill single 0")
        until_printed(process, "restart 1: started")
        (agent,) = (machine.home / "agents").iterdir()
        state = asyncio.run(
            AgentFolder(path=agent).request("GET", f"{wire.STATE}?since=-1&wait_s=0")
        )
        assert (state["run"]["generation"], state["run"]["prewarmed"]) == (2, True), state["notes"]
        assert machine.everstep("stop", "single", "--grace-s", "0").returncode == 0
        process.communicate(timeout=HUNG_S)
    assert machine.processes() == []
