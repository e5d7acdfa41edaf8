"""What orders may do to a job, checked inside a transaction of its books."""

from __future__ import annotations

from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.ports import JobBooks
from everstep.backends.rules import ownership
from everstep.core.world import JobRef


def record_of(books: JobBooks, ref: JobRef, generation: int = 0) -> JobRecord:
    """The job's record. Raises WrongCluster if these are not its books, or never gave the generation."""
    books.refuse_others(ref)
    books.refuse_unknown(generation)
    return books.record


def owned_record(books: JobBooks, ref: JobRef, generation: int) -> JobRecord:
    """The job's record. Raises StaleGeneration if another generation owns the job, or as `record_of`."""
    record = record_of(books, ref, generation)
    ownership.refuse_other(record, generation)
    return record
