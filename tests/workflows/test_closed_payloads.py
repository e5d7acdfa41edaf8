"""Jobs whose payloads are encrypted: nothing of them is clear, and no change of keys loses anything."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.worker import Replayer

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.client.jobs.failures import readable
from everstep.client.jobs.found_job import find
from everstep.client.jobs.status import glance
from everstep.core.errors import PayloadClosed
from everstep.encryption.codec import ENCODING, Codec
from everstep.encryption.codec_server import CodecServer, Rules
from everstep.encryption.keys import VARIABLE, KeyFolder
from everstep.plugin import EverstepPlugin, plugin_of
from everstep.worker_settings import WorkerSettings
from tests.support.at_work import at_work, submit
from tests.support.devserver import START, DevServer, temporal
from tests.support.keys import key_folder
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.stage import Handle, document
from worker import workers

VERBS = ("pause", "resume")
SECRET = "hf_5ecre7-of-ada"


class Site:
    """A fake cluster that outlives its workers, and a server on which they share a namespace."""

    def __init__(self, server: DevServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakeBackend(FakeSettings(nodes=6))
        self._server = server
        self._namespace = namespace
        self._monkeypatch = monkeypatch

    async def client(self, keys: Path | None) -> Client:
        """A client with these keys."""
        if keys is None:
            self._monkeypatch.delenv(VARIABLE, raising=False)
        else:
            self._monkeypatch.setenv(VARIABLE, str(keys))
        return await self._server.connect(self._namespace)

    @asynccontextmanager
    async def worker(self, keys: Path | None) -> AsyncIterator[Client]:
        """A worker with these keys serves; yields its client."""
        client = await self.client(keys)
        settings = WorkerSettings(backend="fake", cluster="local", janitor=False)
        plugin = plugin_of(client, self.fake, settings, grace=timedelta(0))
        async with at_work(*workers(client, plugin)):
            yield client


@pytest.fixture
def site(server: DevServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(server, namespace, monkeypatch)


async def until(look: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(HUNG_S):
        while not await look():
            await asyncio.sleep(0.05)


async def stored(client: Client) -> tuple[bytes, set[str]]:
    """What the server stores of every workflow, and where in it payloads are that are not encrypted.

    As bytes, since JSON shows payloads in base64.
    """
    raw, clear = b"", set[str]()
    async for row in client.list_workflows():
        handle = client.get_workflow_handle(row.id, run_id=row.run_id)
        messages: list[Message] = [(await handle.describe()).raw_description]
        messages += [event async for event in handle.fetch_history_events()]
        for message in messages:
            raw += message.SerializeToString()
            clear |= {
                each for each in clear_places(MessageToDict(message)) if OF_SERVER not in each
            }
    return raw, clear


OF_SERVER = ".indexedFields.Temporal"
"""Search attributes that the server sets itself: versions of workers."""


def clear_places(value: Any, place: str = "") -> Iterator[str]:
    """The keys, of three in a row, above each payload that is not encrypted."""
    if isinstance(value, list):
        for each in value:
            yield from clear_places(each, place)
    elif isinstance(value, dict) and "encoding" in value.get("metadata", {}):
        if b64decode(value["metadata"]["encoding"]) != ENCODING:
            yield ".".join(place.split(".")[-3:])
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from clear_places(each, f"{place}.{key}")


ATTRIBUTES = (
    *("TrainJob", "TrainState", "TrainPhase", "TrainCluster", "Restarts", "LastStep", "FaultClass"),
    *("FaultCode", "FaultNodes", "IsolatedNodes", "RecoveryLevel", "RecoveryResult", "BuildIds"),
)
CLEAR = {f"searchAttributes.indexedFields.{name}" for name in ATTRIBUTES} | {
    "header.fields.everstep-labels",
    "details.data.payloads",  # of a local activity: its name, its attempt and when it ended
}
"""Payloads that stay clear, as docs/operations/encryption.md lists them."""


def spiced() -> dict[str, Any]:
    """A document with the secret wherever it takes a text of one's own."""
    body = document(
        env={"TOKEN": SECRET, "STEPS": "60"},
        command=["python", "train.py", f"--token={SECRET}"],
        model_dir=f"out/{SECRET}",
        checkpoints={"path": f"out/{SECRET}/ckpt"},
    )
    body["metadata"]["labels"] = {"team": "nlp", "ticket": SECRET}
    body["metadata"]["links"] = {"board": f"https://example.com/{SECRET}"}
    return body


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["clear", "encrypted"])
async def test_with_keys_nothing_that_the_server_stores_holds_a_text_of_the_job(
    *, is_encrypted: bool, site: Site, tmp_path: Path
) -> None:
    keys = key_folder(tmp_path / "keys", "a") if is_encrypted else None
    async with site.worker(keys) as client:
        clock = StandingClock(site.fake)
        job = await clock.hold_with(site.fake.admin, submit(client, spiced()))
        await clock.pass_to(20.0)
        for rank in (1, 2):
            await site.fake.admin.fault(f"kill demo {rank} exit 1 exception={SECRET} log={SECRET}")
            await clock.pass_for(10.0)
        await job.execute_update("pause", {"reason": SECRET, "id": "p"})
        await job.execute_update("resume", {"reason": SECRET, "id": "r"})
        assert SECRET in json.dumps(await job.query("status"))
        await clock.let_go()
        report = await asyncio.wait_for(job.result(), HUNG_S)
        raw, clear = await stored(client)
    assert (report["status"], SECRET in json.dumps(report)) == ("Completed", True)
    assert (SECRET.encode() in raw, len(raw) > 20_000) == (not is_encrypted, True)
    assert clear >= CLEAR, "docs/operations/encryption.md lists more than there is"
    assert (clear == CLEAR) == is_encrypted


def handle(client: Client) -> Handle:
    """The job, as a client with its keys sees it."""
    return client.get_workflow_handle("demo")


async def paused_and_resumed(client: Client, name: str) -> None:
    for verb in VERBS:
        update = {"reason": name, "id": f"{name}-{verb}"}
        await handle(client).execute_update(verb, update, id=update["id"])


def update_id(event: HistoryEvent) -> str:
    """The update that was answered; empty for any other event."""
    return event.workflow_execution_update_completed_event_attributes.meta.update_id


async def pending(client: Client) -> list[PendingActivityInfo]:
    raw = (await handle(client).describe()).raw_description
    return await readable(client, raw.pending_activities)


async def has_beaten(client: Client, encoding: bytes | None = None) -> bool:
    """Whether the heartbeat of its monitor holds something, which the next attempt has to read."""
    payloads = [one for each in await pending(client) for one in each.heartbeat_details.payloads]
    return any(encoding in (None, payload.metadata["encoding"]) for payload in payloads)


async def fails_at_it(client: Client) -> bool:
    """Whether a worker tried to carry on the activity, and could not."""
    return "Closed" in await monitor_failure(client)


async def monitor_failure(client: Client) -> str:
    """The message and the type of the newest failure of the monitor and its cause."""
    failures = [each.last_failure for each in await pending(client)]
    return " ".join(
        f"{part.message} {part.application_failure_info.type}"
        for failure in failures
        for part in (failure, failure.cause)
    )


@pytest.mark.long
async def test_a_job_goes_on_while_keys_come_change_go_and_come_back(
    site: Site, tmp_path: Path
) -> None:
    old, both = key_folder(tmp_path / "old", "a"), key_folder(tmp_path / "both", "b", "a")
    strange = key_folder(tmp_path / "strange", "c")
    clock = StandingClock(site.fake)
    async with site.worker(None) as client:
        await clock.hold_with(site.fake.admin, submit(client, document()))
        await clock.pass_to(20.0)
        await until(lambda: has_beaten(client))
    for keys in (old, both):  # turned on, and rotated: a writes no more, and reads
        async with site.worker(keys) as client:
            await paused_and_resumed(client, keys.name)
            await clock.pass_for(5.0)
            await until(lambda: has_beaten(client))
    reader = await site.client(both)
    late = asyncio.ensure_future(paused_and_resumed(reader, "late"))
    for lacking, sentence in ((None, "has no keys"), (strange, "does not have")):
        async with site.worker(lacking) as client:
            await until(lambda: fails_at_it(reader))
            job = await find(client, "demo")
            assert await job.document() == document(), "it was written before there were keys"
            with pytest.raises(PayloadClosed, match=sentence):
                await glance(job)
    async with site.worker(both):
        await asyncio.wait_for(late, HUNG_S)
        await site.fake.admin.fault("kill demo 1 exit 1")
        await clock.let_go()
        report = await asyncio.wait_for(handle(reader).result(), HUNG_S)
    assert (report["status"], len(report["phases"][0]["restarts"])) == ("Completed", 1)
    history = await handle(reader).fetch_history()
    updates = {update_id(event) for event in history.events} - {""}
    assert updates == {f"{name}-{verb}" for name in ("old", "both", "late") for verb in VERBS}
    await Replayer(workflows=[], plugins=[EverstepPlugin()]).replay_workflow(history)


@pytest.mark.long
async def test_the_temporal_command_line_starts_and_reads_a_job_by_the_codec_server(
    site: Site, server: DevServer, namespace: str, tmp_path: Path
) -> None:
    keys, token = key_folder(tmp_path / "keys", "a"), "t" * 20
    place = ("--address", server.address, "--namespace", namespace)
    codec = Codec(KeyFolder(keys))
    with CodecServer(("127.0.0.1", 0), Rules(token=token), codec) as serving:
        threading.Thread(target=serving.serve_forever).start()
        url = f"http://127.0.0.1:{serving.server_port}"
        pass_words = ("--codec-endpoint", url, "--codec-auth", f"Bearer {token}")
        async with site.worker(keys) as client:
            body = json.dumps(spiced())
            started = await temporal(*START, "-w", "demo", "--input", body, *place, *pass_words)
            assert started[0] == 0, started[1]
            await asyncio.wait_for(handle(client).result(), HUNG_S)
            raw, _ = await stored(client)
        show = ("workflow", "show", "-w", "demo", "--output", "json", *place)
        (_, opened), (_, closed) = [await temporal(*show, *words) for words in (pass_words, ())]
        serving.shutdown()
    assert SECRET.encode() not in raw
    inputs = [json.loads(text)["events"][0][STARTED]["input"] for text in (opened, closed)]
    contents = [b64decode(each["payloads"][0]["data"]) for each in inputs]
    assert [SECRET.encode() in content for content in contents] == [True, False]


STARTED = "workflowExecutionStartedEventAttributes"


async def test_a_worker_without_the_key_of_a_heartbeat_ends_no_activity(
    site: Site, tmp_path: Path
) -> None:
    """Its arguments are clear: they are older than the keys. The SDK would end it for good."""
    keys = key_folder(tmp_path / "keys", "a")
    reader = await site.client(keys)
    clock = StandingClock(site.fake)
    async with site.worker(None) as client:
        await clock.hold_with(site.fake.admin, submit(client, document()))
        await clock.pass_to(20.0)
        await until(lambda: has_beaten(client))
    async with site.worker(keys):
        await until(lambda: has_beaten(reader, encoding=ENCODING))
    async with site.worker(None):
        await until(lambda: fails_at_it(reader))
        assert "and this process has no keys" in await monitor_failure(reader)
    async with site.worker(keys):
        await clock.let_go()
        report = await asyncio.wait_for(handle(reader).result(), HUNG_S)
    assert (report["status"], report["phases"][0]["restarts"]) == ("Completed", [])
