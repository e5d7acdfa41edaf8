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
            owner = {"workflow_id": job, "phase": phase, "began": moment(began) or ""}
            beside = mine[-1].beside
            files = {name: text for e in mine if e.beside for name, text in e.beside.files.items()}
            yield {
                "model_dir": place,
                "began": began,
                "owner": owner,
                "lines": [_line(entry) for entry in mine],
                "summary": owner if beside is None else {"workflow_id": job, **beside.summary},
                "runs": _runs(mine),
                "files": files,
                "folders": [] if beside is None else [*beside.folders],
            }


def _line(entry: Entry) -> str:
    who = f"run_{entry.run}" if entry.run else "main"
    text = "".join(c if c.isprintable() else " " for c in entry.text)
    return f"[{who}] {moment(entry.at)} {text}"


def _runs(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    numbers = ((entry.about or entry.run, entry) for entry in entries if entry.told)
    return {str(number): _row(number, entry) for number, entry in numbers if number}


def _row(number: int, entry: Entry) -> dict[str, Any]:
    said = {
        key: moment(value) if key in TIMES and isinstance(value, int | float) else value
        for key, value in entry.told.items()
    }
    return {"run": number, **said} if entry.beside is None else said
