"""A real Prometheus: it scrapes a real run and evaluates dashboard and rules; promtool tests each alert."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.processes import free_port
from tests.support.child import Child
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import StageOfProcesses, document
from tests.telemetry.test_deploy import DEPLOY, expressions
from tests.testbed.build import PROMETHEUS

BUILD_S = 3_600
"""A build takes three minutes of a processor, once per machine."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(BUILD_S)]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def binaries() -> Path:
    return PROMETHEUS.build()


def test_each_alert_fires_for_what_it_is_about_and_for_nothing_less(
    binaries: Path, tmp_path: Path
) -> None:
    for file in (*DEPLOY.glob("rules*.yaml"), HERE / "rules_test.yaml"):
        shutil.copy(file, tmp_path)
    command = [str(binaries / "promtool"), "test", "rules", str(tmp_path / "rules_test.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HUNG_S)
    assert done.returncode == 0, done.stdout + done.stderr


COUNTED = "everstep_restarts_total{cause='crash',level='pod',result='success',cluster='local',instance='%s'}"
HOURLY = "Restarts by cause, each hour A"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param("5x200", 0, id="nothing came"),
        pytest.param("_x100 1x100", 1, id="the first one"),
        pytest.param("5x100 7x100", 2, id="two came"),
        pytest.param("5x100 2x100", 0, id="a job was reset"),
        pytest.param("5x100 2x10 4x90", 2, id="a job was reset, then two came"),
        pytest.param("5x100 _x10 5x90", 0, id="all workers were away"),
    ],
)
def test_a_panel_shows_what_came_within_the_hour(
    binaries: Path, tmp_path: Path, values: str, expected: int
) -> None:
    series = [{"series": COUNTED % worker, "values": values} for worker in ("a", "b")]
    samples = [{"labels": '{cause="crash"}', "value": expected}]
    claim = {"expr": expressions()[HOURLY], "eval_time": "140m", "exp_samples": samples}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [claim]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    command = [str(binaries / "promtool"), "test", "rules", str(tmp_path / "test.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HUNG_S)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """The HTTP API of one."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def get(self, path: str, **query: str) -> Any:
        return await asyncio.to_thread(self._get, f"{path}?{urllib.parse.urlencode(query)}")

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=10) as response:
            return json.load(response)["data"]

    async def values(self, expression: str) -> dict[str, float]:
        """The values by their labels, as JSON."""
        series = (await self.get("query", query=expression))["result"]
        return {json.dumps(each["metric"]): float(each["value"][1]) for each in series}

    async def is_ready(self) -> bool:
        try:
            return bool(await self.get("query", query="1"))
        except OSError:
            return False


@asynccontextmanager
async def prometheus(binaries: Path, folder: Path, target: str) -> AsyncIterator[Prometheus]:
    """A server with the configuration of deploy/observability, but for the address and a shorter interval."""
    configuration = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    folder.mkdir()
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    shutil.copy(DEPLOY / "rules.yaml", folder)
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(binaries / "prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    child = Child(command, name="prometheus", log=folder / "log", env=None, cwd=folder)
    try:
        api = Prometheus(f"http://{address}")
        await child.until(api.is_ready, within_s=HUNG_S)
        yield api
    finally:
        child.kill()


async def test_a_prometheus_evaluates_dashboard_and_rules_over_a_real_run(
    binaries: Path, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    env = {"EVERSTEP_METRICS_ADDRESS": address, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    panels = {name: text for name, text in expressions().items() if not name.startswith("Everstep")}
    async with (
        StageOfProcesses(server, namespace, tmp_path, env=env) as stage,
        prometheus(binaries, tmp_path / "prometheus", address) as api,
    ):
        await stage.submit(document("open", nodes=1, env={"STEPS": "100000000"}))
        records = []
        for n in (1, 2):  # the second one raises what the first one began
            before = await api.values("sum(everstep_restarts_total)")
            await stage.admin.fault(f"at step 20 of demo-{n} kill demo-{n} 1 exit 1")
            budgets = {"budgets": {"all": {"limit": 5}}}
            job = await stage.submit(document(f"demo-{n}", recovery=budgets))
            records += (await job.result())["phases"][0]["restarts"]
            await until(api, "sum(everstep_restarts_total)", unlike=before)
        for name, text in panels.items():
            await until(api, text, description=name)
        total = await api.values("sum(everstep_restarts_total)")
        assert list(total.values()) == [len(records)] == [2]
        for name in ("Restarts by cause, each hour A", "Restarts by level and result, each hour A"):
            assert sum((await api.values(panels[name])).values()) == len(records)
        quantiles = await api.values(panels["Time of each stage of a restart, 90th percentile A"])
        assert not all(math.isnan(value) for value in quantiles.values())
        async with asyncio.timeout(HUNG_S):
            while not all(rule["health"] == "ok" for rule in await rules(api)):
                await asyncio.sleep(0.2)
        assert {rule["name"]: rule["state"] for rule in await rules(api)} == dict.fromkeys(
            (name for name in expressions() if name.startswith("Everstep")), "inactive"
        )


async def rules(api: Prometheus) -> list[dict[str, Any]]:
    (group,) = (await api.get("rules"))["groups"]
    return list(group["rules"])


async def until(
    api: Prometheus,
    expression: str,
    *,
    unlike: dict[str, float] | None = None,
    description: str = "",
) -> None:
    """Until the expression has a value, and another one than `unlike`."""
    values: dict[str, float] = {}
    try:
        async with asyncio.timeout(HUNG_S):
            while not values or values == unlike:
                await asyncio.sleep(0.2)
                values = await api.values(expression)
    except TimeoutError:
        raise AssertionError(f"{description} has no new value: {expression}: {values}") from None
