"""Dashboard and alert rules: each expression is parsed, and what it selects exists in a real run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from everstep.processes import free_port
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import StageOfProcesses, document
from tests.telemetry.receiver import Samples, scrape

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "observability"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "rules.yaml").read_text())["groups"]
    return list(group["rules"])


def expressions() -> dict[str, str]:
    """By the name of the rule or the title of the panel."""
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text())
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    return {**panels, **{rule["alert"]: rule["expr"] for rule in rules()}}


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """Every selector of series below this node."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    children = [getattr(node, name, None) for name in ("expr", "param", "lhs", "rhs")]
    for child in (*children, *getattr(node, "args", ())):
        if child is not None:
            yield from selectors(child)


def unmatched(samples: Samples) -> set[str]:
    """Selectors whose metric, or one of whose labels, no sample has."""
    labels: dict[str, set[str]] = {}
    for name, pairs in samples:
        labels.setdefault(name, set()).update(label for label, _ in pairs)
    return {
        str(selector.name)
        for expression in expressions().values()
        for selector in selectors(promql_parser.parse(expression))
        if not {m.name for m in selector.matchers.matchers} <= labels.get(str(selector.name), set())
        or selector.name not in labels
    }


def has_decisions(samples: Samples) -> bool:
    """Whether a sample counts local activities that decided, which is exported after the first ones."""
    latency = "temporal_local_activity_execution_latency_seconds_count"
    return any(name == latency and ("activity_type", "decide") in pairs for name, pairs in samples)


@pytest.mark.parametrize("name", expressions())
def test_each_expression_selects_series(name: str) -> None:
    assert list(selectors(promql_parser.parse(expressions()[name])))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_rule_leads_to_a_page_that_is_there(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    assert anchor in anchors


@pytest.mark.long
async def test_a_real_run_has_every_series_that_is_looked_at(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one compares dashboard and alerts with the page of a worker."""
    address = f"127.0.0.1:{free_port()}"
    env = {"EVERSTEP_METRICS_ADDRESS": address, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    samples: Samples = {}
    async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
        await stage.admin.fault("at 35s kill demo 1 exit 1")
        await stage.submit(document("open", nodes=1, env={"STEPS": "100000000"}))
        job = await stage.submit(document(recovery={"budgets": {"all": {"limit": 5}}}))
        await job.result()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HUNG_S):
                while unmatched(samples) or not has_decisions(samples):
                    samples |= await scrape(address)
                    await asyncio.sleep(0.1)
    assert unmatched(samples) == set()
    assert has_decisions(samples)
