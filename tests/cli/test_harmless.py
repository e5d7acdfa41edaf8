"""Text of a record, a status or a document sends no control codes to a terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from everstep.cli import pages, status_page
from everstep.cli.jobs import watching
from everstep.cli.output import Page, show
from everstep.client.jobs.glances import Glance
from everstep.telemetry.worker_log import log_to_stderr
from tests.cli.conftest import Cli
from tests.cli.jobs.test_tables import PAGES
from tests.cli.standin import record, status

EVIL = "\x1b]0;yours\x07\x1b[2J\x9b31mred\x1b[0m\u202etxet\u2066\rover\x08\x7f"
UNESCAPED = frozenset({"as_of", "at", "since", "until", "time", "state", "recover_result"})
PROBLEM = {"field": "spec", "message": "what"}

VIEWS: Mapping[str, tuple[Callable[[Any], Page], Any]] = {
    **{name: (page, rows) for name, (page, rows, _) in PAGES.items()},
    "status": (status_page.status, status("demo", "running")),
    "why": (pages.why, {"text": "said"}),
    "verdict": (
        pages.verdict,
        {"dialect": "native", "ok": False, "errors": [PROBLEM], "notes": [PROBLEM]},
    ),
    "command": (pages.command_result, {"id": "demo", "command": "stop", "state": "stopping"}),
    "submitted": (pages.submitted, {"id": "a", "run_id": "b", "ui": "c", "notes": [PROBLEM]}),
    "released": (pages.released, {"node": "n1", "cluster": "local"}),
}


def spoiled(value: Any, key: str = "") -> Any:
    """The value with something hostile behind every text."""
    if isinstance(value, dict):
        return {name: spoiled(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [spoiled(item, key) for item in value]
    return value + EVIL if isinstance(value, str) and key not in UNESCAPED else value


def is_harmless(text: str) -> bool:
    return "red" in text and all(c.isprintable() or c in "\t\n" for c in text)


@pytest.mark.parametrize("name", VIEWS)
def test_no_page_has_a_control_sequence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page, value = VIEWS[name]
    show(spoiled(value), page, as_json=False)
    assert is_harmless(capsys.readouterr().out)
    show(spoiled(value), page, as_json=True)
    output = capsys.readouterr().out
    assert "\\u001b" in output
    assert output.isascii()
    assert not {c for c in output if c < " "} - {"\n"}


def test_no_line_of_watch_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    job_status = {**status("demo", "running"), "reason": EVIL, "waiting_for": EVIL}
    glance = Glance(at=0.0, status=job_status, restarts=(spoiled(record(1)),), silence=EVIL)
    watching.Lines(began=0.0).show(glance)
    assert is_harmless(capsys.readouterr().out)


def test_no_error_has_one(cli: Cli) -> None:
    assert is_harmless(cli("list", "--label", f"={EVIL}").err)


def test_no_line_that_a_worker_logs_has_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_to_stderr()
    logging.getLogger("temporalio.activity").warning("it said %s", EVIL)
    assert capsys.readouterr().err == "it said red txet  over  \n"
