"""The journal of a job, in the words of who writes it: an agent, beside the job's model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from everstep.agent import wire
from everstep.chronicle.chronicle import Entry
from everstep.chronicle.views import moment

TIMES = frozenset({"start_time", "end_time"})


def commands(
    job: str, entries: Iterable[Entry], model_dir: Callable[[str | None], str | None]
) -> Iterator[wire.JournalCommand]:
    """One for each phase. `model_dir`: where the folder is that the job's document names so, if any."""
    for (named, phase, began), found in groupby(
        entries, key=lambda e: (e.model_dir, e.phase, e.began)
    ):
        place = model_dir(named)
        if place is not None:
            mine = list(found)
            yield {
                "model_dir": place,
                "began": began,
                "owner": {"workflow_id": job, "phase": phase, "began": moment(began) or ""},
                "lines": [_line(entry) for entry in mine],
                "runs": _runs(mine),
            }


def _line(entry: Entry) -> str:
    who = f"run_{entry.run}" if entry.run else "main"
    text = "".join(c if c.isprintable() else " " for c in entry.text)
    return f"[{who}] {moment(entry.at)} {text}"


def _runs(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if (number := entry.about or entry.run) and entry.told:
            runs.setdefault(str(number), {}).update(_said(entry))
    return runs


def _said(entry: Entry) -> dict[str, Any]:
    return {
        key: moment(value) if key in TIMES and isinstance(value, int | float) else value
        for key, value in entry.told.items()
    }
