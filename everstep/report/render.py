"""A report as a page: HTML without any outside resource and without scripts, or Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from everstep.chronicle import record_rows
from everstep.core.escaping import (
    as_markdown,
    for_terminal,
    in_markdown,
    is_web_address,
    link_in_markdown,
)
from everstep.report import charts, curves
from everstep.report.sentences import count, duration, percent

Value = Mapping[str, Any]

OPEN_MOST = 20
"""Restarts that are shown unfolded; of more, each opens by a click."""
SLOTS_LISTED = 8
RESTARTS_SHOWN = 10
STATUS_LABELS: Mapping[str, str] = {
    "reason": "reason",
    "silence": "no answer",
    "waiting_for": "waits for",
    "phase": "phase",
    "generation": "generation",
    "step": "step",
    "last_step": "of",
    "checkpoint_step": "checkpoint",
    "restarts": "restarts",
    "lost_steps": "steps done again",
    "isolated_nodes": "isolated",
}
"""What is shown of a status, and what it is called."""


def html(report: Value) -> str:
    """The report of one job as one self-contained page."""
    return (
        _environment(autoescape=True)
        .get_template("job.html")
        .render(
            report=report,
            steps=Markup(charts.steps_over_time(report)),
            timeline=Markup(charts.timeline(report)),
            legend=charts.timeline_legend(report),
            open_most=OPEN_MOST,
        )
    )


def markdown(report: Value) -> str:
    return _environment(autoescape=False).get_template("job.md").render(report=report)


def fleet_html(report: Value) -> str:
    """The report of all jobs since a time."""
    return _environment(autoescape=True).get_template("fleet.html").render(report=report)


def fleet_markdown(report: Value) -> str:
    return _environment(autoescape=False).get_template("fleet.md").render(report=report)


def simulation_html(value: Value) -> str:
    """The results of a simulation, with a drawing for each of its curves."""
    drawings = [
        (c["title"], Markup(curves.curve(c["title"], c["points"]))) for c in value["curves"]
    ]
    return (
        _environment(autoescape=True)
        .get_template("simulation.html")
        .render(value=value, drawings=drawings)
    )


def status_html(status: Value, restarts: Sequence[Value]) -> str:
    """Where a job is, and its newest restarts: a part of a page, as a notebook shows it.

    A job that did not answer has only an ID, or less: what is unknown is left out.
    """
    facts = {key: value for key, value in status.items() if value not in (None, [], {}, "")}
    rows = [
        {
            "n": record["n"],
            "cause": record["fault"]["code"] or record["fault"]["class"],
            "level": record["level"],
            "result": record_rows.result_in_words(record),
            "at": record["at"],
        }
        for record in restarts[-RESTARTS_SHOWN:]
    ]
    template = _environment(autoescape=True).get_template("status.html")
    return template.render(status=facts, labels=STATUS_LABELS, rows=rows)


def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("everstep.report"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        duration=duration,
        percent=percent,
        document=_document,
        plain=_plain,
        md=lambda value: in_markdown("-" if value is None else str(value)),
        fenced=as_markdown,
        is_web_address=is_web_address,
        links=lambda links: " · ".join(link_in_markdown(*link) for link in links.items()),
        result=_result,
        story=_story,
        clock=_clock,
        lost=_lost,
        slots=_slots,
        isolation=_isolation,
    )
    environment.globals.update(count=count)
    return environment


def _plain(value: Any) -> str:
    """A value without control characters; `-` where it is unknown."""
    return "-" if value is None else for_terminal(str(value))


def _result(restart: Value) -> str:
    return record_rows.result_word(restart["recover_result"])


def _story(restart: Value) -> str:
    return for_terminal(record_rows.story(restart))


def _clock(at: str | None) -> str:
    return "-" if at is None else at[:19].replace("T", " ")


def _lost(amount: Any, cause: Value) -> str:
    """What a cause cost, which may be more than the reports of its ranks show."""
    if not cause["has_unknown_loss"]:
        return str(amount)
    return f"{amount} at least" if cause["lost_steps"] else "unknown"


def _slots(spans: Sequence[Value]) -> str:
    """The slots that a node held, one after the other."""
    numbers = ", ".join(str(span["slot"]) for span in spans[:SLOTS_LISTED])
    return f"{numbers}, ..." if len(spans) > SLOTS_LISTED else numbers or "-"


def _isolation(isolated: Value | None) -> str:
    """Why a node is isolated, until when and by which job or operator."""
    if isolated is None:
        return "no"
    until = _clock(isolated["until"]) if isolated["until"] else "released"
    by = f", by {isolated['by']}" if isolated["by"] else ""
    return f"{isolated['reason'] or 'yes'}, until {until}{by}"


def _document(document: Any) -> str:
    """The document as readable text: as it was submitted, where that was a string."""
    if isinstance(document, str):
        return for_terminal(document)
    return for_terminal(json.dumps(document, indent=2, ensure_ascii=False))
