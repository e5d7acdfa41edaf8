"""Tables at every width: what matters is on its row, no line is too long, and nothing is lost."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from typer import rich_utils

from everstep.cli import pages, status_page
from everstep.cli.jobs import watching
from everstep.cli.main import build
from everstep.cli.output import Page, TextLine, console
from everstep.cli.tables import Column, table
from everstep.client.jobs.glances import Glance
from tests.cli.standin import record, status

WIDTHS = (40, 80, 120, 200)
LONG = "节点-计算-gpu-000007.rack-12.cluster.internal"


def drawn(page: Page, width: int) -> list[str]:
    there = Console(file=io.StringIO(), width=width, soft_wrap=True, highlight=False)
    for part in page:
        there.print(part)
    assert isinstance(there.file, io.StringIO)
    return there.file.getvalue().splitlines()


def squeezed(lines: list[str]) -> str:
    """Everything that is printed, however it is broken into lines."""
    return "".join("".join(lines).split())


def restarts() -> list[dict[str, Any]]:
    usual, odd = record(1), record(12)
    odd |= {"phase": "warmup-with-a-long-name", "level": "operator_online"}
    odd |= {"recover_result": "quotaExceeded", "fault": {**usual["fault"], "node": LONG}}
    return [usual, odd]


def nodes(count: int = 4) -> list[dict[str, Any]]:
    sound: dict[str, Any] = {"state": "ready", "jobs": ["demo"], "devices": []}
    sound |= dict.fromkeys(("reason", "by", "since", "until"))
    broken = {"state": "isolated", "reason": "XID 79: it fell off the bus", "by": "demo"}
    broken |= {"since": "2026-01-31T12:00:07.000Z"}
    rows = [{"name": f"gpu-{n:04}", **sound} for n in range(count)]
    return [*rows[:3], {**rows[3], **broken, "name": LONG}, *rows[4:]]


def jobs() -> list[dict[str, Any]]:
    job = {"state": "unreachable", "phase": "main", "restarts": 7, "reschedules": 2}
    job |= {"started_at": "2026-01-31T12:00:07.000Z", "age_s": 7000, "step": 123_456}
    job |= {"labels": {"team": "nlp", "size": "x" * 60}}
    return [{"id": "训练" * 15, **job}, {"id": "demo", **job}]


def events() -> list[dict[str, Any]]:
    reason = "restart 3, pod_reschedule: " + "XID 79 on gpu-07/3; " * 5
    return [
        {"time": "2026-01-31T12:00:07.123Z", "level": "Warning", "source": "K8S"}
        | {"event": "JobTerminated", "message": reason}
    ]


PAGES: Mapping[str, tuple[Callable[[Any], Page], list[dict[str, Any]], list[str]]] = {
    "restarts": (pages.restarts, restarts(), ["N", "CAUSE", "LEVEL", "RESULT"]),
    "nodes": (pages.nodes, nodes(), ["NODE", "STATE"]),
    "list": (pages.jobs, jobs(), ["ID", "STATE"]),
    "events": (pages.events, events(), ["TIME", "LEVEL"]),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_what_matters_stays_on_its_row_and_no_line_is_too_long(name: str, width: int) -> None:
    page, rows, columns_kept = PAGES[name]
    heading, *lines = drawn(page(rows), width)
    assert [title for title in heading.split() if title in columns_kept] == columns_kept
    assert max(map(cell_len, (heading, *lines))) <= width
    firsts = [line for line in lines if not line.startswith(" ")]
    assert len(firsts) == len(rows)


@pytest.mark.parametrize("width", [80, 200])
def test_at_80_and_200_columns_nothing_of_a_restart_is_lost(width: int) -> None:
    (heading, *lines) = drawn(pages.restarts(restarts()), width)
    first = next(line for line in lines if line.startswith("1 "))
    assert first.split("  ")[0] == "1"
    for word in ("XID 79 on gpu-07/3", "pod", "started"):
        assert word in first
    squeezed_lines = squeezed(lines)
    for word in ("2026-01-3112:00:01Z", "3.5s", "40", "thedevicecannotrepairitself"):
        assert word in squeezed_lines
    assert ("WHY" in heading) is (width == 200)


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_a_restart_that_ended_before_a_step_says_so_on_its_row(width: int) -> None:
    early = {**record(1), "ended": "ended before a step"}
    lines = drawn(pages.restarts([early, record(2)]), width)
    assert ["started, ended before a step" in line for line in lines].count(True) == 1


def test_the_cause_is_cut_with_an_ellipsis_where_there_is_no_room() -> None:
    lines = drawn(pages.restarts(restarts()), 60)
    (row,) = [line for line in lines if line.startswith("12")]
    assert "XID 79 on 节点" in row
    assert "…" in row
    assert row.endswith("quotaExceeded")


@pytest.mark.parametrize("width", [80, 200])
def test_a_thousand_pods_are_a_few_rows_with_every_slot_named(width: int) -> None:
    job_status = status("demo", "running")
    (pod,) = job_status["pods"]
    lost = {4, 77, 78}
    job_status["pods"] = [
        {**pod, "slot": n, "node": f"gpu-{n:04}", "state": "lost" if n in lost else "running"}
        for n in range(1000)
    ]
    lines = drawn(status_page.status(job_status), width)
    at = next(n for n, line in enumerate(lines) if line.startswith("SLOT"))
    heading, *rows = lines[at:]
    assert heading.split() == ["SLOT", "NODE", "STATE", "SCHEDULED", "STARTED"]
    assert [row.split("  ")[0] for row in rows] == ["0-3 5-76 79-999", "4 77-78"]
    assert "gpu-0000 to gpu-0999 (997)" in rows[0]


def test_of_a_thousand_isolated_nodes_a_few_are_named() -> None:
    job_status = {
        **status("demo", "running"),
        "isolated_nodes": [f"gpu-{n:04}" for n in range(1000)],
    }
    lines = drawn(status_page.status(job_status), 80)
    assert "gpu-0015,and984more" in squeezed(lines)


def test_a_thousand_nodes_are_folded_and_a_few_are_not() -> None:
    lines = drawn(pages.nodes(nodes(1000)), 200)
    assert [line.split("  ")[0] for line in lines[1:]] == ["gpu-0000 to gpu-0999 (999)", LONG]
    assert len(drawn(pages.nodes(nodes(16)), 200)) == 17


def test_what_is_not_known_is_not_said_below_a_row() -> None:
    lines = drawn(pages.nodes(nodes()), 40)
    assert not any("until" in line for line in lines)
    assert "since2026-01-3112:00:07Z" in squeezed(lines)


def test_a_link_stays_whole_and_other_values_wrap_beside_their_name() -> None:
    link = "http://127.0.0.1:8233/namespaces/default/workflows/" + "a" * 60
    job_status = {**status("demo", "recovering"), "ui": link, "waiting_for": "place " * 20}
    lines = drawn(status_page.status(job_status), 80)
    assert f"ui          {link}" in lines
    waits = next(n for n, line in enumerate(lines) if line.startswith("waits for"))
    assert lines[waits + 1].startswith(" " * 12 + "place")
    assert all(cell_len(line) <= 80 for line in lines if link not in line)


@given(
    st.lists(st.lists(st.text(), min_size=3, max_size=3), max_size=4),
    st.integers(20, 200),
)
def test_no_text_makes_a_line_too_long(rows: list[list[str]], width: int) -> None:
    columns = (
        Column("A", lambda row: row["cells"][0], is_pinned=True),
        Column("B", lambda row: row["cells"][1]),
        Column("C", lambda row: row["cells"][2], wraps=True),
    )
    lines = drawn([table([{"cells": row} for row in rows], columns)], width)
    assert all(cell_len(line) <= width for line in lines)


def test_help_flows_with_the_terminal_and_not_with_our_source() -> None:
    helps = [command.help or "" for command in build().registered_commands]
    assert len(helps) > 10
    assert not any("\n" in part for text in helps for part in text.split("\n\n"))


# -- a terminal ---------------------------------------------------------------------------------


LINE = "  decided  pod: " + "the gentlest level that can work " * 4 + "http://there/" + "a" * 80


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_long_line_is_broken_between_words_on_a_terminal_and_nowhere_else(
    is_terminal: bool,
) -> None:
    there = Console(file=io.StringIO(), width=80, force_terminal=is_terminal, soft_wrap=True)
    there.print(TextLine(LINE))
    assert isinstance(there.file, io.StringIO)
    first, *other_lines = there.file.getvalue().splitlines()
    assert (first == LINE) is not is_terminal
    assert all(line.startswith(" " * 11 + line.strip()[:1]) for line in other_lines)
    assert squeezed([first, *other_lines]) == squeezed([LINE])
    assert any(line.endswith("http://there/" + "a" * 80) for line in (first, *other_lines))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that claims to be a terminal."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("setting", "is_styled"), [("", True), ("1", False)])
def test_no_color_means_no_style_at_all(
    monkeypatch: pytest.MonkeyPatch, setting: str, is_styled: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", setting)
    monkeypatch.setattr(rich_utils, "COLOR_SYSTEM", "auto")
    there = console()
    with there.capture() as capture:
        for part in pages.restarts(restarts()):
            there.print(part)
    assert ("\x1b[" in capture.get()) is is_styled
    build()
    assert (rich_utils.COLOR_SYSTEM is not None) is is_styled


@pytest.mark.parametrize(("height", "newest"), [(24, 4), (50, 10)])
def test_the_live_page_fits_the_terminal_and_shows_the_newest_restarts(
    monkeypatch: pytest.MonkeyPatch, height: int, newest: int
) -> None:
    there = Console(file=io.StringIO(), width=80, height=height, force_terminal=True)
    live = Live(console=there, auto_refresh=False)
    page = watching.LivePage()
    monkeypatch.setattr(page, "_drawn", lambda: live)
    page.show(
        Glance(at=1, status=status("demo", "running"), restarts=tuple(map(record, range(1, 30))))
    )
    lines = [
        "".join(part.text for part in line).rstrip()
        for line in there.render_lines(live.get_renderable())
    ]
    assert len(lines) < height
    first_words = [line.split()[0] for line in lines[-newest:]]
    assert first_words == [str(n) for n in range(30 - newest, 30)]
    assert all("XID 79 on gpu-07/3" in line for line in lines[-newest:])


@pytest.mark.parametrize(
    ("seen_age_s", "row"),
    [(3.0, None), (52.0, "not seen for 52s: the API server does not answer")],
)
def test_a_status_says_how_old_the_step_is_and_since_when_nothing_was_seen(
    seen_age_s: float, row: str | None
) -> None:
    times = {"as_of": "2026-01-31T12:01:00.000Z", "step_at": "2026-01-31T12:01:00.000Z"}
    ages = {"step_age_s": seen_age_s, "seen_age_s": seen_age_s}
    why = {"unseen_why": "the API server does not answer"}
    still = {"still_s": 45.0, "still_limit_s": 60.0}
    value = {**status("demo", "running"), **times, **ages, **why, **still}
    there = console()
    with there.capture() as capture:
        for part in status_page.status(value):
            there.print(part)
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert f"step 41, {seen_age_s:.0f}s ago" in lines
    assert [line for line in lines if line.startswith("not seen")] == ([row] if row else [])
    is_judged = row is None
    assert any(line.startswith("still for 45 s of 60 s") for line in lines) is is_judged


def test_without_a_worker_the_age_of_a_step_counts_from_now_and_nothing_is_about_to_hang() -> None:
    """What the server has is 20 s old, and no monitor judges what stands still."""
    value = {
        **status("demo", "running"),
        "as_of": "2026-01-31T12:01:00.000Z",
        "age_s": 20,
        "silence": "no worker answered within 10 s",
        "step_at": "2026-01-31T12:00:59.000Z",
        "still_s": 45.0,
        "still_limit_s": 60.0,
    }
    there = console()
    with there.capture() as capture:
        for part in status_page.status(value):
            there.print(part)
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert "step 41, 21s ago" in lines
    assert not [line for line in lines if line.startswith("still")]


def test_a_status_says_when_it_stepped_and_how_long_a_silence_may_last() -> None:
    times = {
        "as_of": "2026-01-31T12:01:00.000Z",
        "started_at": "2026-01-31T12:00:00.000Z",
        "step_at": "2026-01-31T12:00:15.000Z",
        "duration_s": 65.0,
    }
    still = {"still_s": 45.0, "still_limit_s": 300.0}
    counts = {"restarts": 3, "reschedules": 2, "failed_levels": 1}
    value = {**status("demo", "running"), **times, **still, **counts}
    there = console()
    with there.capture() as capture:
        for part in status_page.status(value):
            there.print(part)
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert "step 41, 45s ago" in lines
    assert not [line for line in lines if line.startswith("not seen")]
    assert "still for 45 s of 300 s, then it counts as a hang" in lines
    assert "started 2026-01-31 12:00:00Z, here for 1m" in lines
    assert "restarts 3 (2 rescheduled, 1 failed)" in lines
