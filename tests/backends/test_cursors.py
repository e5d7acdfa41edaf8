"""A cursor may outlive its record: an operator deletes that record, or restores an older copy of it."""

from __future__ import annotations

import pytest

from everstep.backends.agents.job_record import JobRecord
from everstep.backends.kubernetes.books import JobDocument, JobSession, Reports, Stored
from everstep.core.facts import Fact

BOOKS = "b00c5"


def record(*ids: str) -> JobSession:
    """The session of a job to which these facts were reported."""
    stored = Stored(document=JobDocument(record=JobRecord(id="demo")))
    session = JobSession(stored, BOOKS, Reports(service_of=lambda _node: ("ready", None)))
    for fact_id in ids:
        session.add_fact(Fact(id=fact_id, kind="agent.gone", at=1.0))
    return session


def ids_after(cursor: str, session: JobSession) -> list[str]:
    return [fact.id for fact in session.facts_after(cursor)[0]]


@pytest.mark.parametrize(
    ("before", "after", "read"),
    [
        pytest.param("abc", "abc", "", id="the same record"),
        pytest.param("abc", "abcd", "d", id="the same record with a new fact"),
        pytest.param("abc", "", "", id="a new record without facts"),
        pytest.param("abc", "x", "x", id="a new record with fewer facts"),
        pytest.param("abc", "xyz", "xyz", id="a new record with as many"),
        pytest.param("abc", "uvwxyz", "uvwxyz", id="a new record with more"),
        pytest.param("abc", "aby", "aby", id="an older copy that went on in another way"),
        pytest.param("", "x", "x", id="a record that had no facts"),
    ],
)
def test_a_cursor_hides_no_fact_of_another_record(before: str, after: str, read: str) -> None:
    _, cursor = record(*before).facts_after("")
    session = record(*after)
    assert ids_after(cursor, session) == list(read)
    _, behind = session.facts_after(cursor)
    assert ids_after(behind, session) == [], "each fact is read once"


def test_facts_that_were_dropped_leave_a_cursor_as_it_is() -> None:
    session = record(*"abc")
    _, cursor = session.facts_after("")
    session.forget()
    assert session.facts_after(cursor) == ((), cursor)
    session.add_fact(Fact(id="d", kind="agent.gone", at=1.0))
    assert ids_after(cursor, session) == ["d"]
