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
from tests.support.hook import hooked
from tests.support.patience import HUNG_S
from tests.support.stage import StageOfProcesses, document
from tests.telemetry.receiver import Samples, scrape

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "observability"


DOCS = "https://everstep.dev/"
"""Where the pages are published; below it the addresses are those of the repository."""


def rules(name: str = "rules.yaml") -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / name).read_text())["groups"]
    return list(group["rules"])


ALL_RULES = (*rules(), *rules("rules-kubernetes.yaml"))


def expressions() -> dict[str, str]:
    """Expressions by the name of the rule or the title of the panel."""
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


def innermost(node: Any) -> Iterator[promql_parser.AggregateExpr]:
    """The aggregations of series of ours that aggregate no others."""
    below = [
        one
        for name in ("expr", "lhs", "rhs")
        if (child := getattr(node, name, None)) is not None
        for one in innermost(child)
    ]
    is_everstep = any(str(one.name).startswith("everstep_") for one in selectors(node))
    if isinstance(node, promql_parser.AggregateExpr) and is_everstep and not below:
        yield node
    yield from below


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


@pytest.mark.parametrize("name", expressions())
def test_no_expression_mixes_values_of_two_clusters(name: str) -> None:
    """Each aggregation of series of ours keeps the label; one around it may add clusters up."""
    for aggregation in innermost(promql_parser.parse(expressions()[name])):
        assert aggregation.modifier is not None
        assert "cluster" in aggregation.modifier.labels


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule["alert"])
def test_each_rule_leads_to_a_page_that_is_there(rule: dict[str, Any]) -> None:
    address = rule["annotations"]["runbook_url"]
    assert address.startswith(DOCS)
    page, _, anchor = address.removeprefix(DOCS).partition("#")
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
    async with (
        hooked() as hook,
        StageOfProcesses(
            server, namespace, tmp_path, env={**env, "EVERSTEP_WEBHOOK_URL": hook.url}
        ) as stage,
    ):
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
