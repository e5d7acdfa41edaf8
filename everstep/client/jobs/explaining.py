"""Why a job restarted, or what it waits for: the shape of the query `explain`, over records of any age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everstep.chronicle import record_rows, shapes
from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs.ended_jobs import EndedJob
from everstep.client.jobs.evidence import evidence_lines
from everstep.client.jobs.found_job import FoundJob
from everstep.client.jobs.history import all_records
from everstep.client.jobs.lives import lives_known
from everstep.client.jobs.records import newest_restarts
from everstep.client.jobs.status import status_of

Value = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartChoice:
    """Which restart to show, by default the newest. Numbers count within a phase."""

    n: int | None = None
    phase: str | None = None

    def of(self, records: list[Value]) -> Value | None:
        """The newest of these records that is meant."""
        meant = (
            r
            for r in reversed(records)
            if self.n in (None, r["n"]) and self.phase in (None, r["phase"])
        )
        return next(meant, None)

    def __str__(self) -> str:
        number = "" if self.n is None else f" {self.n}"
        return f"restart{number}" + (f" of phase {self.phase}" if self.phase else "")


async def explained_of_lives(job: FoundJob, choice: RestartChoice, number: int | None) -> Value:
    """The shape of the query `explain`, from the newest life that has the restart, or from this one."""
    lives = await lives_known(job)
    chosen = [life for life in lives if number in (None, life.number)]
    if not chosen:
        problem = f"{job.id} has no life {number}; it has {len(lives)}"
        raise Failed(Exit.NOT_FOUND, f"{problem}: `everstep restarts {job.id}` lists them")
    if choice == RestartChoice():
        chosen = chosen[-1:]
    for life in reversed(chosen):
        explanation = await explained(life.job, choice)
        if explanation is not None:
            text = "\n".join([*_heading(life.number, len(lives)), explanation["text"]])
            return {**explanation, "life": life.number, "text": text}
    raise _no_restart(job.id, choice, number)


def _no_restart(job_id: str, choice: RestartChoice, number: int | None) -> Failed:
    where = "" if number is None else f" in life {number}"
    hint = f"`everstep restarts {job_id} --all` lists all"
    return Failed(Exit.NOT_FOUND, f"{job_id} has no {choice}{where}; {hint}")


def explained_from_file(ended: EndedJob, choice: RestartChoice, number: int | None) -> Value:
    """The explanation of a job that has ended, from its file."""
    if choice == RestartChoice() and number is None:
        return ended.explanation
    row = choice.of([row for row in ended.restarts if number in (None, row["life"])])
    if row is None:
        raise _no_restart(ended.id, choice, number)
    life = row["life"]
    record = {key: value for key, value in row.items() if key != "life"}
    text = "\n".join([*_heading(life, ended.lives), *_story(record)])
    return {"id": ended.id, "restart": record, "text": text, "life": life}


def _heading(life: int, lives: int) -> list[str]:
    """Which life of the ID it is, where there are several."""
    return [f"life {life} of {lives}"] if lives > 1 else []


async def explained(job: FoundJob, choice: RestartChoice) -> Value | None:
    """The shape of the query `explain`, over records of any age. None if this job has no such restart."""
    record = choice.of(await newest_restarts(job))
    if record is None and choice != RestartChoice():
        record = choice.of(await all_records(job, newest=[]))
        if record is None:
            return None
    status = await status_of(job) if choice == RestartChoice() else None
    if record is None:
        return _nothing(job, status or {})
    waits = shapes.present_lines(status) if status is not None and job.is_open else []
    return {"id": job.id, "restart": record, "text": "\n".join([*_story(record), *waits])}


def _story(record: Value) -> list[str]:
    """The restart in words, with what was kept of its ranks."""
    return [record_rows.story(record), *evidence_lines(record.get("evidence"))]


def _nothing(job: FoundJob, status: Value) -> Value:
    """Without a restart there is still the end to explain if it has come, or what the job waits for."""
    reason = f"; {status['state']}: {status['reason']}" if status.get("reason") else ""
    text = "\n".join([f"no restart yet{reason}", *shapes.present_lines(status)])
    return {"id": job.id, "restart": None, "text": text}
