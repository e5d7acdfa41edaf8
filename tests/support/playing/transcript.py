"""The transcript of a scenario: what was seen, decided and done, a line each, in virtual time.

Made of what can be read after a job (decisions, records, status, effects on the cluster), never
of what only one driver has.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from everstep.backends.fake.settings import EPOCH
from everstep.backends.fake.simulated.state import Effect
from everstep.chronicle import record_rows
from everstep.core.deciding.decision import Decision
from tests.support.playing.scenario import JOB, Played

WIDTH = 108
INDENT = " " * 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One happening."""

    at_s: float
    what: str
    text: str


def transcript(played: Played) -> str:
    """The whole story: happenings, the table of restarts, the end."""
    lines = [*_note(played), *_decided(played), *_done(played.effects)]
    lines_written = [_written(line) for line in sorted(lines, key=lambda line: line.at_s)]
    table = _table(played.restarts, several=len(played.report["phases"]) > 1)
    return "\n".join([*lines_written, "", *table, *_end(played)]) + "\n"


def _written(line: Line) -> str:
    head = f"{line.at_s:9.3f}  {line.what:<10} "
    text = textwrap.wrap(line.text, WIDTH - len(INDENT), break_long_words=False) or [""]
    return "\n".join([f"{head}{text[0]}", *(f"{INDENT}{rest}" for rest in text[1:])])


# -- What was decided ---------------------------------------------------------------------------


def _decided(played: Played) -> Iterator[Line]:
    earlier_facts: tuple[str, ...] = ()
    for decision in played.decisions:
        at_s = round(decision.at - EPOCH, 3)
        if decision.instead_of is None or decision.new_incident:
            for fact_id in decision.seen:
                if fact_id not in earlier_facts:
                    yield Line(at_s=at_s, what="seen", text=fact_id)
        earlier_facts = () if decision.new_incident else earlier_facts
        earlier_facts += decision.seen
        for refusal in decision.refused:
            refused = f"{refusal.level}: the budget {refusal.budget} is used up"
            yield Line(at_s=at_s, what="refused", text=refused)
        yield Line(at_s=at_s, what="decided", text=_decision(decision))
        for passed_over in decision.passed_over:
            yield Line(at_s=at_s, what="not", text=passed_over)


def _decision(decision: Decision) -> str:
    bills = ", ".join(f"{units} {name}" for name, units in decision.bills.items())
    return f"{decision.level}: {decision.reason}" + (f" [bills {bills}]" if bills else "")


def _note(played: Played) -> Iterator[Line]:
    for answer in played.notes:
        yield Line(at_s=answer.at_s, what=answer.what, text=answer.text)


# -- What was done ------------------------------------------------------------------------------

FENCED = "the start waits until every older process must have ended"

EFFECTS: tuple[tuple[str, str, str], ...] = (
    # what the fake cluster notes, the word for it, how one of a group is told
    (
        rf"create pod {JOB}/(?P<slot>\d+) on (?P<node>\S+) \((?P<g>g\d+)\)",
        "place",
        "{slot} on {node}",
    ),
    (
        rf"(?P<verb>stand by|take) pod {JOB}/(?P<slot>\d+) on (?P<node>\S+) \((?P<g>g\d+)\)",
        "{verb}",
        "{slot} on {node}",
    ),
    (
        rf"remove pod {JOB}/(?P<slot>\d+) from (?P<node>\S+) \(g\d+\)",
        "remove",
        "{slot} from {node}",
    ),
    (rf"stop slot (?P<slot>\d+) of {JOB} \((?P<g>g\d+)\)", "stop", "{slot}"),
    (rf"check {JOB}/(?P<slot>\d+) on \S+ \((?P<g>g\d+)\)", "check", "{slot}"),
    (rf"start {JOB}/(?P<slot>\d+) \((?P<g>g\d+)\)", "start", "{slot}"),
    (rf"fence {JOB} (?P<g>g\d+)", "fence", FENCED),
    (r"(?P<verb>isolate|release|heal) (?P<place>\S+)", "{verb}", "{place}"),
    (r"(?P<all>.*)", "note", "{all}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deed:
    """An effect, read."""

    at_s: float
    what: str
    generation: str
    text: str

    @property
    def occasion(self) -> tuple[float, str, str]:
        return self.at_s, self.what, self.generation


def _done(effects: Iterable[Effect]) -> Iterator[Line]:
    """The effects, those of one kind and moment in one line."""
    deeds = [_deed(effect) for effect in effects]
    starts = {(d.generation, d.at_s) for d in deeds if d.what == "start"}
    # A fence is worth a line only where the start had to wait for its proof.
    deeds_shown = (d for d in deeds if d.what != "fence" or (d.generation, d.at_s) not in starts)
    for (at_s, what, generation), group in groupby(deeds_shown, key=lambda d: d.occasion):
        where = ", ".join(deed.text for deed in group)
        ending = f" ({generation})" if generation else ""
        yield Line(at_s=at_s, what=what, text=f"{where}{ending}")


def _deed(effect: Effect) -> _Deed:
    for pattern, what, text in EFFECTS:
        if match := re.fullmatch(pattern, effect.what):
            groups = match.groupdict()
            return _Deed(
                at_s=round(effect.at, 3),
                what=what.format(**groups),
                generation=groups.get("g", ""),
                text=text.format(**groups),
            )
    raise AssertionError("the last row catches everything")


# -- The books and the end ----------------------------------------------------------------------

COLUMNS = ("n", "phase", "class", "level", "result", "bills", "generation", "resume", "took")


def _table(restarts: Sequence[Mapping[str, Any]], *, several: bool) -> list[str]:
    rows = [row(record) for record in restarts]
    if not rows:
        return ["no restarts"]
    columns = [i for i, name in enumerate(COLUMNS) if several or name != "phase"]
    cells = [[row[i] for i in columns] for row in (COLUMNS, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    notes = [f"note of {record['n']}: {note}" for record in restarts for note in record["notes"]]
    return [*table, *notes]


def row(record: Mapping[str, Any]) -> tuple[str, ...]:
    generation = record["generation"]
    took = sum(seconds or 0 for seconds in record["stages_s"].values())
    return (
        str(record["n"]),
        record["phase"],
        record["fault"]["class"],
        record["level"],
        record_rows.result(record),
        ", ".join(f"{units} {name}" for name, units in record["bills"].items()) or "-",
        f"{generation['from']} > {generation['to'] or '-'}",
        "-" if record["resume_step"] is None else f"step {record['resume_step']}",
        f"{took:.1f} s" if took else "-",
    )


def _end(played: Played) -> list[str]:
    report, status = played.report, played.status
    summary = [
        f"{report['status']}: {report['reason']}",
        f"step {status['step']}, checkpoint {status['checkpoint_step']}, "
        f"{status['reschedules']} rescheduled, isolated: {' '.join(status['isolated_nodes']) or 'none'}",
    ]
    return [line for text in summary for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]


def status_line(status: Mapping[str, Any]) -> str:
    """What `status` shows, in one line."""
    waiting = status["waiting_for"]
    used = {name: f"{b['used']}/{b['limit']}" for name, b in status["budgets"].items()}
    pods = [_pod(pod) for pod in status["pods"]]
    return "; ".join(
        (
            f"{status['state']}, phase {status['phase']}, g{status['generation']}, "
            f"step {status['step']}, checkpoint {status['checkpoint_step']}",
            *([f"waiting for {waiting}"] if waiting else []),
            *(f"budget {name} {of}" for name, of in used.items()),
            f"slots: {', '.join(pods)}",
        )
    )


def _pod(pod: Mapping[str, Any]) -> str:
    where = f" on {pod['node']}" if pod["node"] else ""
    return f"{pod['slot']} {pod['state']}{where}"
