"""The fake cluster in a process of its own: what goes over the wire, and what a lost one looks like."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.backends import BACKENDS, settings_class
from everstep.backends.fake import calls
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.client import FakeClient
from everstep.backends.fake.server import FakeServer, serve
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.core.errors import BackendUnavailable, InvalidSpec, StaleGeneration
from everstep.core.world import PlaceState, PodRef
from tests.backends.conftest import READY, FakeLab, FakeRun
from tests.backends.lab import NODES, Run
from tests.support.child import Child
from tests.support.patience import HUNG_S


async def test_the_cluster_outlives_its_clients(fake_client: FakeClient, fake_address: str) -> None:
    first = Run(FakeLab(fake_client))
    await first.launch()
    await fake_client.close()
    other = FakeClient(fake_address)
    assert (await other.observe(first.ref, cursor="")).generation == first.generation
    assert len(await other.nodes()) == NODES
    await other.close()


async def test_a_killed_cluster_is_unavailable(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "everstep.backends.fake.server"]
    options = ["--nodes", "3", "--pod-s", "0.5", "--fault", "at 1s node-down n2"]
    server = Child([*command, *options], name="fake", log=tmp_path / "log")

    async def is_ready() -> bool:
        return READY in server.output()

    await server.until(is_ready, within_s=HUNG_S)
    client = FakeClient(server.output().split(READY)[1].split()[0])
    assert [node.ready for node in await client.nodes()] == [True, True, True]
    assert await client.admin.advance(1) == EPOCH + 1
    assert [node.ready for node in await client.nodes()] == [True, True, False]
    server.kill()
    with pytest.raises(BackendUnavailable, match="does not answer"):
        await client.nodes()
    await client.close()


async def test_a_client_comes_back_to_a_cluster_that_was_started_again() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    client = FakeClient(f"127.0.0.1:{port}")
    for nodes in (2, 3):
        cluster = FakeServer(FakeBackend(FakeSettings(nodes=nodes)))
        async with cluster.listening("127.0.0.1", port):
            assert len(await client.nodes()) == nodes
    await client.close()


@pytest.mark.parametrize("sent", [b"", b"clo", b"clock {}\n"], ids=["no call", "half", "held"])
async def test_no_connection_outlives_the_cluster(sent: bytes) -> None:
    """Nor does that of a killed worker, whose end the cluster has not read yet."""
    backend = FakeBackend(FakeSettings())
    await backend.admin.hold("clock")
    async with FakeServer(backend).listening("127.0.0.1", 0) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        await writer.drain()
        if sent.endswith(b"\n"):
            await backend.admin.wait_held()
    with suppress(ConnectionResetError):  # of what the cluster has not read
        assert await asyncio.wait_for(reader.read(), HUNG_S) == b""
    writer.close()
    with suppress(ConnectionResetError):
        await writer.wait_closed()


async def test_a_connection_that_was_made_as_the_cluster_ends_is_closed_too() -> None:
    """Its call has not begun then, and a cancel that comes before ends it without a step."""
    server = FakeServer(FakeBackend(FakeSettings()))
    async with server.listening("127.0.0.1", 0) as address:
        client = socket.create_connection(address)
        while not server._connections:
            await asyncio.sleep(0)
        (writer,) = server._connections.values()
        await server._close()
    client.close()
    assert writer.transport.get_extra_info("socket").fileno() < 0


async def test_a_connection_that_was_accepted_as_the_cluster_ends_is_closed_too() -> None:
    """It has no transport yet: a listener that is closed in between takes it no more, and it stays open."""
    async with FakeServer(FakeBackend(FakeSettings())).listening("127.0.0.1", 0) as address:
        client = socket.create_connection(address)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the loop has accepted it, and what makes its transport comes next
    client.settimeout(HUNG_S)
    with client, suppress(ConnectionResetError):
        assert await asyncio.to_thread(client.recv, 1) == b""


async def test_many_calls_go_on_at_once(fake_client: FakeClient) -> None:
    jobs = [Run(FakeLab(fake_client), id=f"job-{n}", cursor="1") for n in range(20)]
    await asyncio.gather(*(job.new_generation("a") for job in jobs))
    observations = await asyncio.gather(*(job.observe(until=EPOCH + 7) for job in jobs))
    assert {one.now for one in observations} == {EPOCH + 7}


async def test_errors_arrive_as_what_they_were(fake_client: FakeClient) -> None:
    job = FakeRun(FakeLab(fake_client))
    await job.new_generation("a")
    late = job.place_order()
    await job.new_generation("b")
    with pytest.raises(StaleGeneration) as refused:
        await fake_client.ensure_placed(late)
    assert str(refused.value) == str(StaleGeneration("demo", ordered=1, current=2))
    with pytest.raises(ValueError, match="there is no node 'n9'"):
        await job.fault("node-up n9")


async def test_a_bug_there_is_a_bug_here(fake_client: FakeClient) -> None:
    with pytest.raises(RuntimeError, match=r"bug in the fake cluster: KeyError\('argument'\)"):
        calls.read_answer("clock", calls.write_error(KeyError("argument")))


def test_what_is_written_is_what_is_read() -> None:
    state = PlaceState(
        placed=True, pods={0: PodRef(node="n0", uid="u"), 11: PodRef(node="n1", uid="v")}
    )
    assert calls.read_answer("ensure_placed", calls.write_answer("ensure_placed", state)) == state


async def test_the_cluster_serves_this_machine_only() -> None:
    with pytest.raises(ValueError, match="this machine only"):
        await serve("0.0.0.0:0", FakeSettings())


# --- choosing a backend -------------------------------------------------------------------------


async def test_the_fake_backend_is_opened_by_name(
    fake_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await settings_class("fake")().open(make_home=Path, server="")
    assert isinstance(here, FakeBackend)
    monkeypatch.setenv("EVERSTEP_FAKE_ADDRESS", fake_address)
    there = await settings_class("fake")().open(make_home=Path, server="")
    assert isinstance(there, FakeClient)


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidSpec, match="there is no 'slurm'; try one of fake, kubernetes, local"
    ):
        settings_class("slurm")


def test_a_backend_is_imported_only_when_chosen() -> None:
    code = "import sys, everstep.backends; print([m for m in sys.modules if 'backends.fake' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert BACKENDS["fake"] == "everstep.backends.fake"
