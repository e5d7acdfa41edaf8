"""An agent that listens with TLS answers a worker of its job and no other client."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest

from everstep.backends.agents.client.link import HttpLink, NoAnswer, Refused, request_once, tls_link
from everstep.backends.agents.client.watch import STATE_NOW
from everstep.backends.kubernetes import credentials
from everstep.processes import free_port
from everstep.protocol import wire
from tests.agent.memory.test_snapshots import ENV, train
from tests.agent.pod import LIBRARIES, Pod
from tests.support.patience import HUNG_S

CONNECTIONS = 10
REQUESTS = 20
OUR_CREDENTIALS = credentials.make("demo")
OTHER_CREDENTIALS = credentials.make("demo")
"""The credentials of another job; names and times are the same."""


def write_secret(folder: Path, entries: Mapping[str, str]) -> Path:
    """As a kubelet mounts one: the files are links into a folder that it replaces as a whole."""
    data = folder / "..data"
    data.mkdir(parents=True)
    for name in credentials.OF_AGENTS:
        (data / name).write_text(entries[name])
        (folder / name).symlink_to(f"..data/{name}")
    return folder


@pytest.fixture
def port(idle: Pod, tmp_path: Path) -> int:
    port = free_port()
    (idle.home / wire.TOKEN).write_text(OUR_CREDENTIALS[wire.TOKEN])  # for the test's own requests
    secret = write_secret(tmp_path / "secret", OUR_CREDENTIALS)
    idle.launch("--listen", f"tcp:127.0.0.1:{port}", "--credentials", str(secret))
    return port


def link(port: int, entries: Mapping[str, str], *, token: str | None = None) -> HttpLink:
    return tls_link(
        "demo",
        host="127.0.0.1",
        port=port,
        tls=credentials.client_context(entries),
        token=entries[wire.TOKEN] if token is None else token,
        connect_s=HUNG_S,
    )


async def answer(
    port: int, entries: Mapping[str, str], *, token: str | None = None
) -> dict[str, object]:
    """The first one, once the agent listens."""
    agent_link = link(port, entries, token=token)
    async with asyncio.timeout(HUNG_S):
        while True:
            try:
                return await agent_link.request("GET", wire.STATE, within_s=HUNG_S)
            except NoAnswer as error:
                if "ConnectionRefused" not in str(error):
                    raise
                await asyncio.sleep(0.01)
            finally:
                agent_link.close()
                agent_link.is_closed = False


async def test_an_agent_answers_a_worker_of_its_job(port: int, idle: Pod) -> None:
    assert (await answer(port, OUR_CREDENTIALS))["uid"] == idle.uid


async def test_one_connection_serves_many_requests(port: int) -> None:
    await answer(port, OUR_CREDENTIALS)
    open_link = link(port, OUR_CREDENTIALS)
    await open_link.request("GET", wire.STATE, within_s=HUNG_S)
    first = open_link.idle
    await open_link.request("GET", wire.STATE, within_s=HUNG_S)
    assert first is not None
    assert open_link.idle is first
    open_link.close()


@pytest.mark.parametrize(
    "token", ["", OTHER_CREDENTIALS[wire.TOKEN]], ids=["none", "of another job"]
)
async def test_a_wrong_token_is_refused(port: int, token: str) -> None:
    with pytest.raises(Refused) as refused:
        await answer(port, OUR_CREDENTIALS, token=token)
    assert refused.value.status == wire.UNAUTHORIZED


async def test_a_worker_of_another_job_gets_no_answer(port: int) -> None:
    await answer(port, OUR_CREDENTIALS)
    mixed_credentials = {
        **OTHER_CREDENTIALS,
        wire.AUTHORITY: OUR_CREDENTIALS[wire.AUTHORITY],
        wire.TOKEN: OUR_CREDENTIALS[wire.TOKEN],
    }
    with pytest.raises(NoAnswer):
        await answer(port, mixed_credentials)
    assert await answer(port, OUR_CREDENTIALS)


COMMANDS = sorted(
    {getattr(wire, name) for name in dir(wire) if str(getattr(wire, name)).startswith("/v1/")}
)


@pytest.mark.parametrize("path", sorted({*COMMANDS} - {*wire.OF_AGENTS}))
async def test_a_pod_cannot_speak_for_the_worker(port: int, path: str) -> None:
    """It has a certificate of the same authority, which is good for answers and copies alone."""
    await answer(port, OUR_CREDENTIALS)
    for method in ("GET", "POST"):
        with pytest.raises(Refused, match=f"404: there is no {path}"):
            await request_once(link(port, of_a_pod()), method, path, {}, within_s=HUNG_S)


def of_a_pod() -> dict[str, str]:
    """The credentials that a pod has: its certificate is that of its agent."""
    return {
        **OUR_CREDENTIALS,
        credentials.CLIENT_CERTIFICATE: OUR_CREDENTIALS[wire.CERTIFICATE],
        credentials.CLIENT_KEY: OUR_CREDENTIALS[wire.CERTIFICATE_KEY],
    }


async def test_a_copy_over_tls_is_as_one_over_a_socket(
    port: int, idle: Pod, pyz: Path, tmp_path: Path
) -> None:
    """With the certificate that a pod has, and only with one of the same job."""
    await answer(port, OUR_CREDENTIALS)
    copier = Pod(pyz, tmp_path / "copier", f"{idle.uid}-2")
    secret = write_secret(tmp_path / "secret2", OUR_CREDENTIALS)
    (copier.home / wire.TOKEN).write_text(OUR_CREDENTIALS[wire.TOKEN])
    listens = ("--listen", f"tcp:127.0.0.1:{free_port()}", "--credentials", str(secret))
    try:
        copier.launch(*listens)
        await answer(int(listens[1].rpartition(":")[2]), OUR_CREDENTIALS)
        body = {
            "generation": 1,
            "command": [sys.executable, "-c", train(3)],
            "env": {**LIBRARIES, **ENV, "HOMEDIR": str(copier.home), "EVERSTEP_GENERATION": "1"},
            "workdir": str(copier.home),
            "ranks": [{"rank": 0, "local_rank": 0, "env": {"RANK": "0"}}],
            "neighbour": {"slot": 1, "uid": idle.uid, "address": f"tcp:127.0.0.1:{port}"},
        }
        token = OUR_CREDENTIALS[wire.TOKEN]
        copier.ask("POST", wire.RUN, body, token=token)
        async with asyncio.timeout(HUNG_S):
            while not (copies := (await answer(port, OUR_CREDENTIALS))["copies"]):
                await asyncio.sleep(0.01)
        assert copies[0]["rank"] == 0  # type: ignore[index]  # a list of copies
        report = {
            "to": idle.uid,
            "run": 1,
            "slot": 1,
            "number": 1,
            "step": None,
            "next_from": 3,
            "done": 0,
            "has": None,
            "is_missed": False,
            "newest": 3,
        }
        pins = await request_once(link(port, of_a_pod()), "POST", wire.COPY_PINS, report)
        assert pins == {"number": 0, "step": None, "next_from": None}
    finally:
        copier.end()


async def test_a_client_without_a_certificate_gets_no_answer(port: int) -> None:
    await answer(port, OUR_CREDENTIALS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=OUR_CREDENTIALS[wire.AUTHORITY])
    stranger = tls_link(
        "demo",
        host="127.0.0.1",
        port=port,
        tls=context,
        token=OUR_CREDENTIALS[wire.TOKEN],
        connect_s=HUNG_S,
    )
    with pytest.raises(NoAnswer):
        await stranger.request("GET", wire.STATE, within_s=HUNG_S)
    stranger.close()


async def test_a_client_that_says_nothing_keeps_no_other_one_waiting(port: int) -> None:
    await answer(port, OUR_CREDENTIALS)
    _, silent = await asyncio.open_connection("127.0.0.1", port)
    try:
        assert await answer(port, OUR_CREDENTIALS)
    finally:
        silent.close()


async def test_a_worker_believes_no_other_agent(port: int) -> None:
    await answer(port, OUR_CREDENTIALS)
    with pytest.raises(NoAnswer):
        await answer(port, {**OUR_CREDENTIALS, wire.AUTHORITY: OTHER_CREDENTIALS[wire.AUTHORITY]})


def test_credentials_that_make_no_sense_end_in_a_line(idle: Pod, tmp_path: Path) -> None:
    secret = write_secret(tmp_path / "secret", {**OUR_CREDENTIALS, wire.AUTHORITY: "nonsense"})
    agent = idle.launch("--listen", f"tcp:127.0.0.1:{free_port()}", "--credentials", str(secret))
    assert agent.wait(HUNG_S) != 0
    assert "TLS cannot be set up" in idle.log_text()
    assert "Traceback" not in idle.log_text()


async def test_an_answer_is_not_held_back_until_the_one_before_is_confirmed(port: int) -> None:
    """A kernel confirms what it received after 40 ms where it has nothing to send itself."""
    agent_link, took_s = link(port, OUR_CREDENTIALS), []
    await answer(port, OUR_CREDENTIALS)
    for _ in range(REQUESTS):
        began = time.monotonic()
        await agent_link.request("GET", STATE_NOW, within_s=HUNG_S)
        took_s.append(time.monotonic() - began)
    agent_link.close()
    assert min(took_s) < 0.03  # of which a machine under load may take more for some


async def test_a_connection_takes_little_memory_of_a_worker(port: int) -> None:
    """A worker has one to each of its pods, of which there may be thousands."""
    await answer(port, OUR_CREDENTIALS)
    context, links = credentials.client_context(OUR_CREDENTIALS), []
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(CONNECTIONS):
            links.append(
                tls_link(
                    str(number),
                    host="127.0.0.1",
                    port=port,
                    tls=context,
                    token=OUR_CREDENTIALS[wire.TOKEN],
                )
            )
            await links[-1].request("GET", STATE_NOW)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        for one in links:
            one.close()
    assert (after - before) / CONNECTIONS < 100_000
