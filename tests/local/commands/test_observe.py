"""`dev --observe` serves metrics of this machine's worker and says how to look at them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from everstep.processes import free_port
from tests.support.machine import Machine, until_printed
from tests.telemetry.receiver import scrape


@pytest.mark.long
def test_dev_says_how_to_look_at_its_metrics(machine: Machine) -> None:
    address = f"127.0.0.1:{free_port()}"
    observed = replace(machine, env={**machine.env, "EVERSTEP_METRICS_ADDRESS": address})
    ports = ("--port", str(free_port()), "--ui-port", str(free_port()))
    with observed.running("dev", "--observe", *ports) as process:
        printed = "".join(until_printed(process, "Ctrl-C ends"))
        assert f"metrics http://{address}/metrics" in printed
        (path,) = re.findall(r"--config\.file=(.*), then", printed)
        configuration = yaml.safe_load(Path(path).read_text())
        (job,) = configuration["scrape_configs"]
        assert job["static_configs"] == [{"targets": [address]}]
        samples = asyncio.run(scrape(address))
    assert [name for name, _ in samples if name.startswith("temporal_")]


def test_an_address_that_makes_no_sense_is_a_sentence(machine: Machine) -> None:
    observed = replace(machine, env={**machine.env, "EVERSTEP_METRICS_ADDRESS": "9464"})
    ended = observed.everstep("dev", "--observe")
    assert (ended.returncode, "give HOST:PORT" in ended.stderr) == (2, True)
