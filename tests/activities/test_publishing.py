"""Journal entries and notices are published independently, each in order, under one identity."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from activities import publishing
from activities.publishing import Listener, Publishing
from activities.webhook import Webhook
from everstep.backends.fake.backend import FakeBackend
from everstep.chronicle.chronicle import Entry, JobTotals, QueuedSpan
from everstep.chronicle.fleet_totals import JobReport
from everstep.chronicle.happenings import Notice
from everstep.chronicle.incidents import IncidentSummary, RestartLine
from everstep.chronicle.publishing import Publication, PublishedUpTo
from everstep.core.world import JobRef
from tests.support.hook import hooked

JOB = JobRef(id="demo", run="r2")
IDS = ["demo/r1/1-f4628", "demo/r1/2-f4a10", "demo/r1/3-f4df8"]
"""A notice's job, first run, number and milliseconds."""


def unpublished(*, entries: int = 2, notices: int = 3) -> Publication:
    return Publication(
        job=JOB,
        first_run="r1",
        topic="urn:nlp",
        entries=tuple(
            Entry(number=n, phase="main", model_dir=None, began=1_000.0, at=n, run=0, text=f"{n}")
            for n in range(1, entries + 1)
        ),
        notices=tuple(
            Notice(number=n, event="JobRestarted", at=1_000.0 + n, level="Info", message=f"no. {n}")
            for n in range(1, notices + 1)
        ),
    )


class Moody:
    """Takes so many notices, then none."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.posted: list[str] = []

    async def take(self, message: Mapping[str, Any]) -> bool:
        self.posted.append(message["id"])
        self.patience -= 1
        return self.patience >= 0


async def cluster(*faults: str) -> FakeBackend:
    backend = FakeBackend()
    await backend.ensure_generation(JOB, "first")
    for line in faults:
        await backend.admin.fault(line)
    return backend


async def publish(
    backend: FakeBackend, listener: Listener | None, publication: Publication
) -> PublishedUpTo:
    work: Any = Publishing(backend=backend, listener=listener).publish
    done: PublishedUpTo = await ActivityEnvironment().run(work, publication)
    return done


def written(backend: FakeBackend) -> tuple[str, ...]:
    return backend.cluster.state.storage.recorded("demo")


async def test_a_message_says_all_there_is_to_know() -> None:
    async with hooked() as hook:
        await publish(await cluster(), Webhook(url=hook.url), unpublished(notices=1))
    assert hook.accepted == [
        {
            "id": IDS[0],
            "job": "demo",
            "run": "r1",
            "event": "JobRestarted",
            "time": "1970-01-01T00:16:41.000Z",
            "level": "Info",
            "message": "no. 1",
            "topic": "urn:nlp",
            "text": "demo: no. 1",
            "waiting_reason": None,
            "incident": None,
        }
    ]


async def test_a_message_of_a_restart_tells_its_incident_whole() -> None:
    incident = IncidentSummary(
        phase="main",
        number=4,
        cls="node",
        owner="infra",
        cause="node on n2",
        code=None,
        node="n2",
        began=990.0,
        restarts=(
            RestartLine(n=6, level="pod", result="downgrade"),
            RestartLine(n=7, level="job", result="success"),
        ),
    )
    publication = unpublished(notices=1)
    publication = replace(
        publication, notices=(replace(publication.notices[0], incident=incident),)
    )
    async with hooked() as hook:
        await publish(await cluster(), Webhook(url=hook.url), publication)
    (message,) = hook.accepted
    assert message["text"] == "demo: no. 1, 11.0 s after node on n2 (pod -> job)"
    assert message["incident"] == {
        "phase": "main",
        "incident": 4,
        "class": "node",
        "owner": "infra",
        "cause": "node on n2",
        "code": None,
        "node": "n2",
        "began": "1970-01-01T00:16:30.000Z",
        "took_s": 11.0,
        "restarts": [
            {"n": 6, "level": "pod", "result": "downgrade"},
            {"n": 7, "level": "job", "result": "success"},
        ],
    }


async def test_a_reset_job_reuses_a_number_under_another_id() -> None:
    moody, publication = Moody(patience=2), unpublished(notices=1)
    later = replace(publication.notices[0], at=2_000.0)
    await publish(await cluster(), moody, publication)
    await publish(await cluster(), moody, replace(publication, notices=(later,)))
    assert len(set(moody.posted)) == 2


async def test_all_is_written_and_told_in_its_order_and_twice_changes_nothing() -> None:
    backend, moody = await cluster(), Moody(patience=100)
    for _ in range(2):
        assert await publish(backend, moody, unpublished()) == PublishedUpTo(entry=2, notice=3)
    assert moody.posted == IDS * 2
    assert written(backend) == ("1", "2")


async def test_who_takes_some_is_told_the_rest_by_the_next_try() -> None:
    backend, moody = await cluster(), Moody(patience=1)
    assert await publish(backend, moody, unpublished()) == PublishedUpTo(entry=2, notice=1)
    assert moody.posted == IDS[:2]
    assert written(backend) == ("1", "2")


async def test_where_nobody_listens_everything_is_told() -> None:
    assert (await publish(await cluster(), None, unpublished())).notice == 3


async def test_a_storage_that_takes_nothing_holds_up_no_notice() -> None:
    backend = await cluster("storage demo")
    done = await publish(backend, Moody(patience=3), unpublished())
    assert (done, written(backend)) == (PublishedUpTo(entry=0, notice=3), ())
    await backend.admin.fault("storage demo writable")
    assert (await publish(backend, None, unpublished(notices=0))).entry == 2
    assert written(backend) == ("1", "2")


async def test_a_storage_that_hangs_holds_up_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "WRITTEN_WITHIN_S", 0.1)
    backend = await cluster()
    await backend.admin.hold("ensure_recorded")
    done = await publish(backend, Moody(patience=3), unpublished())
    assert done == PublishedUpTo(entry=0, notice=3)


@pytest.mark.parametrize(
    ("publication", "why"),
    [
        (unpublished(), "storage"),
        (unpublished(entries=0), "the webhook takes no notices"),
        (unpublished(notices=0), "storage"),
    ],
    ids=["both", "notices", "entries"],
)
async def test_what_comes_to_nothing_fails_and_is_tried_again(
    publication: Publication, why: str
) -> None:
    backend = await cluster("storage demo")
    with pytest.raises(ApplicationError, match=why) as failed:
        await publish(backend, Moody(patience=0), publication)
    assert not failed.value.non_retryable


class Counters:
    """Takes reports, or is away, or is another program's."""

    def __init__(self, problem: str = "", *, is_away: bool = False) -> None:
        self.problem, self.is_away = problem, is_away
        self.reports: list[JobReport] = []

    async def take(self, report: JobReport) -> str:
        if self.is_away:
            raise RPCError("the server is away", RPCStatusCode.UNAVAILABLE, b"")
        self.reports.append(report)
        return self.problem


async def count(counters: Counters, publication: Publication, *, run: str = "r2") -> PublishedUpTo:
    """What is published by a worker with metrics, in this run; all but the fingerprint of the totals."""
    return replace(await counted(counters, publication, run=run), totals_sent="")


async def counted(
    counters: Counters, publication: Publication, *, run: str = "r2"
) -> PublishedUpTo:
    work: Any = Publishing(backend=await cluster(), counters=counters).publish
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, workflow_run_id=run)
    done: PublishedUpTo = await environment.run(work, publication)
    return done


async def test_totals_are_sent_where_they_changed() -> None:
    counters = Counters()
    first = replace(unpublished(notices=0), totals=JobTotals(restarts={"crash/pod/success": 1}))
    done = await counted(counters, first)
    again = replace(first, totals_sent=done.totals_sent)
    assert await counted(counters, again) == replace(done, totals_sent="")
    assert [report.totals for report in counters.reports] == [first.totals]

    more = replace(again, totals=JobTotals(restarts={"crash/pod/success": 2}))
    assert (await counted(counters, more)).totals_sent not in ("", done.totals_sent)
    assert [report.totals for report in counters.reports] == [first.totals, more.totals]


async def test_totals_that_could_not_be_sent_are_still_to_be_sent() -> None:
    for counters in (Counters(is_away=True), Counters("totals/local is a Stranger")):
        assert (await counted(counters, unpublished(notices=0))).totals_sent == ""


async def test_a_run_that_a_reset_began_sends_totals_that_its_history_had_sent() -> None:
    counters = Counters()
    done = await counted(counters, unpublished(notices=0), run="replaced")
    after = replace(unpublished(notices=0), totals_sent=done.totals_sent)
    await counted(counters, after, run="by-the-reset")
    assert len(counters.reports) == 2


async def test_an_end_that_could_not_be_counted_is_left() -> None:
    ended = replace(unpublished(notices=0), is_end_due=True)
    assert await count(Counters(), ended) == PublishedUpTo(entry=2, first_step=0)
    assert await count(Counters(is_away=True), ended) == PublishedUpTo(
        entry=2, first_step=0, is_end_left=True
    )
    with pytest.raises(ApplicationError, match="the server is away"):
        await count(Counters(is_away=True), replace(ended, entries=()))
    alone = Counters()
    assert await count(alone, replace(ended, entries=())) == PublishedUpTo(first_step=0)
    assert [report.key for report in alone.reports] == ["demo/r1"]


async def test_a_first_step_that_could_not_be_counted_is_left() -> None:
    due = replace(unpublished(notices=0), first_step=2, is_first_step_due=True)
    assert await count(Counters(), due) == PublishedUpTo(entry=2, first_step=2)
    assert await count(Counters(is_away=True), due) == PublishedUpTo(entry=2, first_step=0)
    with pytest.raises(ApplicationError, match="the server is away"):
        await count(Counters(is_away=True), replace(due, entries=()))
    assert await count(Counters(), replace(due, entries=())) == PublishedUpTo(first_step=2)


async def test_a_first_step_waits_for_no_collector() -> None:
    """Its spans go out with the next publication."""
    due = replace(unpublished(entries=0, notices=0), first_step=2, is_first_step_due=True)
    assert await trace(Collector(is_away=True), due) == PublishedUpTo(first_step=2)
    assert await trace(None, due) == PublishedUpTo()


class Collector:
    """Takes spans, or does not."""

    def __init__(self, *, is_away: bool = False) -> None:
        self.is_away = is_away
        self.exported: list[QueuedSpan] = []

    async def export(self, publication: Publication) -> bool:
        self.exported += publication.spans
        return not self.is_away


async def trace(collector: Collector | None, publication: Publication) -> PublishedUpTo:
    work: Any = Publishing(backend=await cluster(), span_exporter=collector).publish
    done: PublishedUpTo = await ActivityEnvironment().run(work, publication)
    return done


async def test_spans_that_were_not_taken_are_left_and_so_is_the_end() -> None:
    span = QueuedSpan(key="job", parent="", name="job", began=1.0, ended=2.0, number=7)
    publication = replace(unpublished(notices=0), spans=(span,))
    assert await trace(Collector(), publication) == PublishedUpTo(entry=2, span=7, first_step=0)
    assert await trace(None, publication) == PublishedUpTo(entry=2, span=7)
    assert await trace(Collector(is_away=True), publication) == PublishedUpTo(entry=2, first_step=0)
    ended = replace(publication, is_end_due=True)
    assert await trace(Collector(is_away=True), ended) == PublishedUpTo(
        entry=2, first_step=0, is_end_left=True
    )
    with pytest.raises(ApplicationError, match="the collector takes no spans"):
        await trace(Collector(is_away=True), replace(ended, entries=()))


async def test_totals_that_never_can_be_sent_hold_up_no_end() -> None:
    ended = replace(unpublished(entries=0, notices=0), is_end_due=True)
    assert await count(Counters("totals/local is a Stranger"), ended) == PublishedUpTo(first_step=0)


async def test_one_that_is_ended_in_between_is_followed_by_one_that_says_the_same() -> None:
    backend = await cluster()
    async with hooked("hangs") as hook:
        publication = unpublished(entries=0)
        task = asyncio.create_task(publish(backend, Webhook(url=hook.url), publication))
        await hook.until(lambda h: len(h.received) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hook.mood = "takes"
        done = await publish(backend, Webhook(url=hook.url), unpublished())
    assert done == PublishedUpTo(entry=2, notice=3)
    assert [message["id"] for message in hook.accepted] == IDS
    assert written(backend) == ("1", "2")


async def test_one_that_is_asked_to_leave_says_what_was_taken() -> None:
    backend = await cluster()
    async with hooked() as hook:
        work: Any = Publishing(backend=backend, listener=Webhook(url=hook.url)).publish
        environment = ActivityEnvironment()
        hook.mood = "takes once, then hangs"
        task = asyncio.create_task(environment.run(work, unpublished()))
        await hook.until(lambda h: len(h.received) == 2)
        environment.cancel()
        assert await task == PublishedUpTo(entry=2, notice=1)


async def test_a_job_of_other_books_is_written_by_nobody_here() -> None:
    backend = await cluster()
    strange = replace(unpublished(notices=0), job=replace(JOB, books="others"))
    with pytest.raises(ApplicationError, match="cluster database"):
        await publish(backend, None, strange)
    assert written(backend) == ()
