"""How many nodes a `run` gives this machine: those of the job, or the number given to `dev`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everstep.agent.observing.hardware import Devices
from everstep.client.exit_codes import Exit, Failed
from everstep.client.machine import own_tools
from everstep.client.serving import holding
from everstep.client.serving.holding import ServerAddress
from everstep.client.serving.working import machine_for
from everstep.core.spec import JobSpec, PhaseSpec

EIGHT = Devices("simulated", 8, "said so")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    return tmp_path


@contextmanager
def served(home: Path, nodes: int | None) -> Iterator[None]:
    held = holding.take(home)
    assert held is not None
    held.write_address(ServerAddress(port=7, ui_port=8, nodes=nodes))
    yield
    held.release()


def job(nodes: int, *, least: int | None = None) -> JobSpec:
    phase = PhaseSpec(name="main", command=("train",), nodes=nodes, nodes_min=least or nodes)
    return JobSpec(name="demo", phases=(phase,))


@pytest.mark.parametrize(
    ("spec", "of_dev", "nodes"),
    [(job(1), 2, 1), (job(2), 2, 2), (job(4, least=1), 2, 2), (job(4), None, 4)],
    ids=["fewer", "as many", "fewer will do", "no dev, another run"],
)
async def test_the_machine_is_as_large_as_it_may_be(
    home: Path, spec: JobSpec, of_dev: int | None, nodes: int
) -> None:
    with served(home, of_dev):
        assert (await machine_for(spec, nodes=None, devices=EIGHT)).nodes == nodes
    assert not (home / "local.db").exists(), "nothing was made"


async def test_where_nobody_serves_it_is_as_large_as_the_job_wants() -> None:
    assert (await machine_for(job(4), nodes=None, devices=EIGHT)).nodes == 4
    assert (await machine_for(job(4), nodes=2, devices=EIGHT)).nodes == 2


async def test_what_dev_serves_grows_only_when_asked_to(home: Path) -> None:
    with served(home, 2):
        with pytest.raises(Failed, match=r"needs 4 nodes.*with 2; --nodes 4") as refused:
            await machine_for(job(4), nodes=None, devices=EIGHT)
        assert refused.value.code is Exit.USAGE
        assert (await machine_for(job(4), nodes=4, devices=EIGHT)).nodes == 4
        assert [node.name for node in await own_tools().nodes()] == ["n0", "n1", "n2", "n3"]
        assert (await machine_for(job(4), nodes=None, devices=EIGHT)).nodes == 4, "it has them now"


async def test_the_server_of_others_has_its_own_machine(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:9")
    with served(home, 2):
        assert (await machine_for(job(4), nodes=None, devices=EIGHT)).nodes == 4
