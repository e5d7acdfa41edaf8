"""Which job a `run` is about: IDs of jobs whose scripts have one name, such as train, train-2, train-3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from temporalio.client import Client

from everstep.cli.authoring import from_command
from everstep.cli.authoring.documents import JobDocument
from everstep.cli.exits import Exit, Failed
from everstep.cli.jobs.job import FoundJob, look_up
from everstep.cli.output import shown
from everstep.cli.running_here import choosing
from everstep.cli.running_here.starting import with_own_folder

ID_MOST = 63

OTHER = "{id} is another job: {command}; this one is {own_id}"
COMPLETED = "{id} is completed; run it from the beginning under another ID: `{line}`"
QUESTION = "{id} is completed. Run it from the beginning as {fresh_id}?"
STAY = "checkpoints stay in {path}, where the script saves: it goes on from those there"


async def job_and_id(server: Client, job: JobDocument, job_id: str) -> tuple[JobDocument, str]:
    """The job that `run` starts or finds, and its ID.

    With `--fresh`, or where a user prefers that to a completed job, a new one with an unused ID.
    """
    if job.is_fresh:
        return await _fresh(server, job, job_id)
    if job.is_from_command and not job.has_chosen_id:
        job_id = await _id_of_script(server, job, job_id)
    earlier = await look_up(server, job_id)
    if earlier is None or not await _is_completed(earlier) or not choosing.can_prompt():
        return job, job_id
    fresh_id = await _unused(server, job_id)
    if await choosing.confirms(QUESTION.format(id=job_id, fresh_id=fresh_id)):
        return await _fresh(server, replace(job, is_fresh=True), job_id)
    return job, job_id


async def refuse_completed(earlier: FoundJob, job: JobDocument) -> None:
    """Raise `Failed` if the job of this ID is completed, with the line that starts a new one."""
    if await _is_completed(earlier):
        problem = COMPLETED.format(id=earlier.id, line=job.fresh_line)
        raise Failed(Exit.USAGE, problem)


async def _is_completed(job: FoundJob) -> bool:
    return not job.is_open and await job.end() == "completed"


async def _fresh(server: Client, job: JobDocument, job_id: str) -> tuple[JobDocument, str]:
    """The job with an unused ID and a new folder."""
    for path in {phase.checkpoints_path for phase in job.spec.phases} - {None}:
        print(STAY.format(path=shown(path)))
    return with_own_folder(job), await _unused(server, job_id)


async def _id_of_script(server: Client, job: JobDocument, name: str) -> str:
    """The newest ID of this name whose job is this script in this folder; else an unused one."""
    own_id, other_jobs = None, []
    for job_id in _ids(name):
        earlier = await look_up(server, job_id)
        if earlier is None:
            own_id = own_id or job_id
            break
        document = await earlier.document()
        if from_command.is_same_script(job.document, document):
            own_id = job_id
        else:
            other_jobs.append((job_id, document))
    assert own_id is not None, "IDs never end"
    if other_jobs and own_id != name:
        other_id, document = other_jobs[0]
        command = from_command.command_in_words(document)
        print(shown(OTHER.format(id=other_id, command=command, own_id=own_id)), flush=True)
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
