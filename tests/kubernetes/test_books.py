"""The record of a job in a ConfigMap: two workers, and what is stored when one of them is late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from everstep.backends.agents.ports import JobBooks
from everstep.backends.kubernetes.api import Json, KubernetesApi
from everstep.backends.kubernetes.books import (
    FACTS_MOST,
    BooksOfOneCall,
    ConfigMapBooks,
    JobSession,
    PodEntry,
    Reports,
)
from everstep.backends.rules.ownership import FolderClaim, FolderPlace
from everstep.core.errors import BackendUnavailable
from everstep.core.facts import Fact
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.support.patience import HUNG_S
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess


async def test_what_two_workers_write_at_once_is_all_stored_once(lab: KubernetesLab) -> None:
    other = await type(lab.backend).open(lab.settings)
    workers = {"a": lab.backend, "b": other}

    async def report(worker: str, number: int) -> None:
        fact = Fact(id=f"{worker}-{number}", kind="node.down", at=1.0)
        await workers[worker].books.change("two-writers", lambda books: books.add_fact(fact))

    try:
        assert other.books.identity == lab.backend.books.identity
        calls = [(worker, number) for worker in workers for number in range(8)]
        await asyncio.gather(*(report(*call) for call in [*calls, *calls]))  # each of them twice
        document = (await other.books.read("two-writers")).document
    finally:
        await other.close()
    assert sorted(fact.id for _, fact in document.facts) == sorted(f"{w}-{n}" for w, n in calls)
    assert [number for number, _ in document.facts] == list(range(1, 17))


async def test_one_call_sees_a_record_as_it_was_and_loses_nothing_of_another_worker_s(
    lab: KubernetesLab,
) -> None:
    def report(books: JobBooks, number: int) -> None:
        books.add_fact(Fact(id=f"f{number}", kind="node.down", at=1.0))

    def ids(books: JobBooks) -> list[str]:
        return [fact.id for fact in books.facts_after("")[0]]

    call, lab_books = BooksOfOneCall(books=lab.backend.books), lab.backend.books
    await call.change("one-call", lambda books: report(books, 1))
    await lab_books.change("one-call", lambda books: report(books, 2))
    assert await call.change("one-call", ids) == ["f1"]
    await call.change("one-call", lambda books: report(books, 3))
    assert await call.change("one-call", ids) == ["f1", "f2", "f3"]
    assert await lab_books.change("one-call", ids) == ["f1", "f2", "f3"]


async def test_a_cursor_reads_each_fact_once_and_an_object_never_grows_too_large(
    lab: KubernetesLab,
) -> None:
    def flood(session: JobSession) -> None:
        for number in range(FACTS_MOST + 10):
            session.add_fact(Fact(id=f"f{number}", kind="node.down", at=1.0, message="x" * 200))

    await lab.backend.books.transact("flood", flood)
    read = lab.backend.books.transact
    facts, cursor = await read("flood", lambda session: session.facts_after(""))
    assert [facts[0].id, facts[-1].id] == ["f10", f"f{FACTS_MOST + 9}"]
    assert await read("flood", lambda session: session.facts_after(cursor)) == ((), cursor)


async def test_long_facts_leave_the_newest_of_them_and_an_object_that_the_server_takes(
    lab: KubernetesLab,
) -> None:
    def flood(session: JobSession) -> None:
        for number in range(FACTS_MOST):
            session.add_fact(
                Fact(id=f"f{number}", kind="process.exit", at=1.0, message="é" * 2_000)
            )

    await lab.backend.books.transact("long", flood)
    facts, _ = await lab.backend.books.transact("long", lambda session: session.facts_after(""))
    assert len(facts) > 50
    assert facts[-1].id == f"f{FACTS_MOST - 1}"


async def test_a_thousand_pods_that_failed_with_long_words_leave_an_object_that_the_server_takes(
    lab: KubernetesLab,
) -> None:
    """A container may end with 4 KB of them. The facts of the job are kept beside them."""
    fact = Fact(id="f", kind="node.down", at=1.0, message="x" * 2_000)

    def fail(session: JobSession) -> None:
        for slot in range(1_000):
            name = f"wordy-{slot}-g1"
            node = f"node-{slot}.{'pool.' * 20}example.test"
            uid = f"{slot:036}"
            session.update(
                PodEntry(
                    name=name,
                    slot=slot,
                    generation=1,
                    uid=uid,
                    node=node,
                    failures=2,
                    failed_at=1.0,
                    failure="Zündung fehlgeschlagen, " * 170,
                )
            )
        for number in range(100):
            session.add_fact(replace(fact, id=f"f{number}"))

    await lab.backend.books.transact("wordy", fail)
    read = lab.backend.books.transact
    facts, _ = await read("wordy", lambda session: session.facts_after(""))
    assert len(facts) == 100
    entries = await read("wordy", lambda session: session.entries)
    assert entries[0].failure.startswith("Zündung")


async def test_a_config_map_that_somebody_edited_is_named(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    fact = Fact(id="one", kind="node.down", at=1.0)
    await lab.backend.books.change("edited", lambda books: books.add_fact(fact))
    path = f"/api/v1/namespaces/{namespace}/configmaps/everstep-job-edited"
    await api.patch(path, {"data": {"job.json": '{"record": 5}'}})
    with pytest.raises(BackendUnavailable, match="everstep-job-edited is not as Everstep wrote it"):
        await lab.backend.books.change("edited", lambda books: books.add_fact(fact))


async def test_a_record_that_somebody_edited_keeps_no_other_job_from_being_removed(
    lab: KubernetesLab, api: Api, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = KubernetesRun(lab, id="left", env=NEVER_ENDS)
    await job.launch()
    fact = Fact(id="one", kind="node.down", at=1.0)
    await lab.backend.books.change("spoilt", lambda books: books.add_fact(fact))
    path = f"/api/v1/namespaces/{namespace}/configmaps/everstep-job-spoilt"
    await api.patch(path, {"data": None})
    for _ in range(2):  # the janitor looks again and again
        assert [left.job for left in await lab.backend.leftovers()] == [job.ref]
    assert caplog.text.count("everstep-job-spoilt is not as Everstep wrote it") == 1
    await job.gone()


async def test_records_are_listed_page_by_page(
    lab: KubernetesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of ended jobs stay: thousands in one answer took an API server and a worker too long."""
    monkeypatch.setattr("everstep.backends.kubernetes.api.PAGE", 2)
    get, pages = KubernetesApi.get, list[int]()

    async def count(self: KubernetesApi, path: str, query: Mapping[str, str]) -> Json:
        reply = await get(self, path, query)
        pages.append(len(reply["items"]))
        return reply

    names = {f"page-{number}" for number in range(5)}
    fact = Fact(id="one", kind="node.down", at=1.0)
    for name in names:
        await lab.backend.books.change(name, lambda books: books.add_fact(fact))
    monkeypatch.setattr(KubernetesApi, "get", count)
    listed = [document.record.id for document in await lab.backend.books.jobs()]
    assert names <= {*listed}
    assert len(listed) == len({*listed})
    assert pages[0] == 2
    assert sum(pages) == len(listed)


class Contested(KubernetesApi):
    """Another worker is first, each time this one writes."""

    async def replace(self, path: str, body: Json) -> Json:
        await super().patch(path, {"metadata": {"annotations": {"seen": str(time.monotonic())}}})
        return await super().replace(path, body)


async def test_a_record_that_changes_at_each_write_is_an_error_that_names_it(
    cluster: ClusterAccess, namespace: str
) -> None:
    def report(number: int) -> Callable[[JobBooks], None]:
        return lambda books: books.add_fact(Fact(id=f"f{number}", kind="node.down", at=1.0))

    folder = FolderClaim(
        path="/m", field="model_dir", places=(FolderPlace("claim contested", "/"),)
    )
    async with (
        await Contested.from_kubeconfig(cluster.kubeconfig) as api,
        asyncio.timeout(HUNG_S),
    ):
        books = ConfigMapBooks(
            api, namespace, "books", reports=Reports(service_of=lambda _node: ("ready", None))
        )
        await books.change("contested", report(1))
        with pytest.raises(
            BackendUnavailable, match=r"ConfigMap everstep-job-contested .* changed"
        ):
            await books.change("contested", report(2))
        await books.claim("first", [folder])
        other = replace(folder, places=(FolderPlace("claim contested", "/other"),))
        with pytest.raises(BackendUnavailable, match=r"ConfigMap everstep-folders .* changed"):
            await books.claim("contested", [other])


async def test_a_namespace_that_was_deleted_is_an_error_instead_of_a_wait_without_end(
    cluster: ClusterAccess,
) -> None:
    """The worker has rights in all namespaces; rights in one are deleted with it."""
    fact = Fact(id="one", kind="node.down", at=1.0)
    folder = FolderClaim(
        path="/m", field="model_dir", places=(FolderPlace("claim deleted/one", "/"),)
    )
    async with (
        await KubernetesApi.from_kubeconfig(cluster.kubeconfig) as api,
        asyncio.timeout(HUNG_S),
    ):
        books = ConfigMapBooks(
            api, "deleted", "books", reports=Reports(service_of=lambda _node: ("ready", None))
        )
        with pytest.raises(BackendUnavailable, match='namespaces "deleted" not found'):
            await books.change("job", lambda job_books: job_books.add_fact(fact))
        with pytest.raises(BackendUnavailable, match='namespaces "deleted" not found'):
            await books.claim("job", [folder])
