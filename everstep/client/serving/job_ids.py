"""Which job a `run` is about: IDs of jobs whose scripts have one name, such as train, train-2, train-3."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import count

from temporalio.client import Client

from everstep.client.documents import command_document
from everstep.client.documents.documents import JobDocument
from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs.found_job import FoundJob, look_up
from everstep.client.submitting import with_own_folder

Say = Callable[[str], None]
"""Prints or logs a line about the run."""
Confirms = Callable[[str], Awaitable[bool]]
"""Puts a question to the user and returns whether the answer is yes."""

ID_MOST = 63

OTHER = "{id} is another job: {command}; this one is {own_id}"
COMPLETED = "{id} is completed; run it from the beginning under another ID: `{line}`"
QUESTION = "{id} is completed. Run it from the beginning as {fresh_id}?"
STAY = "checkpoints stay in {path}, where the script saves: it goes on from those there"


async def job_and_id(
    server: Client, job: JobDocument, job_id: str, *, say: Say, confirms: Confirms | None = None
) -> tuple[JobDocument, str]:
    """The job that `run` starts or finds, and its ID.

    If it is to be fresh, or where a user prefers that to a completed job, a new one with an unused ID.
    Without `confirms` no question is put.
    """
    if job.is_fresh:
        return await _fresh(server, job, job_id, say)
    if job.is_from_command and not job.has_chosen_id:
        job_id = await _id_of_script(server, job, job_id, say)
    earlier = await look_up(server, job_id)
    if earlier is None or not await _is_completed(earlier) or confirms is None:
        return job, job_id
    fresh_id = await _unused(server, job_id)
    if await confirms(QUESTION.format(id=job_id, fresh_id=fresh_id)):
        return await _fresh(server, replace(job, is_fresh=True), job_id, say)
    return job, job_id


async def refuse_completed(earlier: FoundJob, job: JobDocument) -> None:
    """Raise `Failed` if the job of this ID is completed, with the line that starts a new one."""
    if await _is_completed(earlier):
        problem = COMPLETED.format(id=earlier.id, line=job.fresh_line)
        raise Failed(Exit.USAGE, problem)


async def _is_completed(job: FoundJob) -> bool:
    return not job.is_open and await job.end() == "completed"


async def _fresh(
    server: Client, job: JobDocument, job_id: str, say: Say
) -> tuple[JobDocument, str]:
    """The job with an unused ID and a new folder."""
    for path in {phase.checkpoints_path for phase in job.spec.phases} - {None}:
        say(STAY.format(path=path))
    return with_own_folder(job), await _unused(server, job_id)


async def _id_of_script(server: Client, job: JobDocument, name: str, say: Say) -> str:
    """The newest ID of this name whose job is this script in this folder; else an unused one."""
    own_id, other_jobs = None, []
    for job_id in _ids(name):
        earlier = await look_up(server, job_id)
        if earlier is None:
            own_id = own_id or job_id
            break
        document = await earlier.document()
        if command_document.is_same_script(job.document, document):
            own_id = job_id
        else:
            other_jobs.append((job_id, document))
    assert own_id is not None, "IDs never end"
    if other_jobs and own_id != name:
        other_id, document = other_jobs[0]
        command = command_document.command_in_words(document)
        say(OTHER.format(id=other_id, command=command, own_id=own_id))
    return own_id


async def _unused(server: Client, job_id: str) -> str:
    """This ID, or the next that no job has had."""
    ids = _ids(job_id)
    chosen = next(ids)
    while await look_up(server, chosen) is not None:
        chosen = next(ids)
    return chosen


def _ids(name: str) -> Iterator[str]:
    """The name, and the same with a number from 2 on, as long as an ID may be."""
    yield name
    for number in count(2):
        end = f"-{number}"
        yield f"{name[: ID_MOST - len(end)]}{end}"
