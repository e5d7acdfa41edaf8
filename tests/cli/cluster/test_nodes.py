"""`everstep nodes` and `release`: what the quarantine of a cluster says, and the books of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from temporalio.client import Client

from everstep.backends.local.database import nodes
from everstep.backends.local.database.store import Store
from everstep.backends.local.settings import LocalSettings
from everstep.cli import pages
from everstep.cli.cluster import nodes as nodes_command
from everstep.core.world import DeviceView, NodeView
from tests.cli.conftest import AsyncCli, Cli, submitted, until
from tests.cli.standin import COUNT, DEVICE, NOTE, ONE_OF_MANY, SLOW, document, working


async def test_without_a_quarantine_no_node_is_isolated(served: AsyncCli) -> None:
    assert (await served("nodes", "--json")).json == []
    end = await served("release", "gpu-07")
    assert end.code == 3
    assert "gpu-07 is not isolated on cluster local" in end.sentence


async def test_an_isolated_node_is_shown_and_released(served: AsyncCli, client: Client) -> None:
    await client.start_workflow("NodeQuarantine", id="quarantine/big", task_queue="everstep")
    async with working(client):
        node, *_ = (await served("nodes", "--cluster", "big", "--json")).json
        assert node == {
            "name": "gpu-07",
            "state": "isolated",
            "reason": "XID 79",
            "by": "demo",
            "since": None,
            "until": None,
            "jobs": None,
            "devices": None,
            "silent": None,
            "counts": None,
            "maintenance": None,
            "avoided_by": [],
            "failing": None,
            "devices_used": None,
            "device_use": [],
        }
        assert "gpu-07" in (await served("nodes", "--cluster", "big")).out
        assert (await served("release", "gpu-07", "--cluster", "big")).code == 0
        isolated = (await served("nodes", "--cluster", "big", "--json")).json
        assert [node["name"] for node in isolated] == ["n0"], "its faults are counted"
        assert (await served("release", "gpu-07", "--cluster", "big")).code == 3


async def test_use_and_memory_of_the_devices_that_jobs_have_are_shown(
    served: AsyncCli, client: Client
) -> None:
    """As the watch of each job saw them last: no worker has to answer."""

    async def is_shown() -> bool:
        rows = (await served("nodes", "--cluster", "big", "--json")).json
        return bool(rows and rows[0]["device_use"])

    async with working(client):
        await submitted(served, document(cluster="big"))
        await submitted(served, document("other", cluster="small"))
        await until(is_shown)
        [node] = (await served("nodes", "--cluster", "big", "--json")).json
        page = (await served("nodes", "--cluster", "big")).out.splitlines()
        await client.get_workflow_handle("demo").terminate()
        await client.get_workflow_handle("other").terminate()
    assert node["name"] == "gpu-01"
    [use] = node["device_use"]
    assert (use["job"], use["slot"], use["devices"]) == ("demo", 0, [DEVICE])
    assert [" ".join(line.split()) for line in page[-2:]] == [
        "NODE JOB SLOT DEVICES USE (%) MEMORY (GB)",
        "gpu-01 demo 0 0 97 70.2 of 80.0",
    ]


async def test_a_count_that_stands_by_the_clock_of_its_cluster_is_shown(
    served: AsyncCli, client: Client
) -> None:
    """That of a fake cluster begins with 2026. The quarantine leaves out what is over."""
    await client.start_workflow("NodeQuarantine", id="quarantine/big", task_queue="everstep")
    async with working(client):
        rows = (await served("nodes", "--cluster", "big", "--json")).json
        await client.get_workflow_handle("quarantine/big").terminate()
    counts = {row["name"]: row["counts"] for row in rows}
    assert counts == {"gpu-07": None, "n0": [COUNT]}


async def test_a_node_and_a_device_are_isolated_by_hand(served: AsyncCli, client: Client) -> None:
    """The quarantine of the cluster is started by the first who needs it."""
    async with working(client):
        for name in ("n1", "n2/3"):
            end = await served("isolate", name, "--cluster", "new", "--reason", "it smokes")
            assert (end.code, end.out) == (
                0,
                f"no new pod gets {name} on cluster new: `everstep release {name}` ends that\n",
            )
        listed = (await served("nodes", "--cluster", "new", "--json")).json
        assert {"n1", "n2/3"} <= {node["name"] for node in listed}
        assert (await served("release", "n2/3", "--cluster", "new")).code == 0


async def test_what_an_operator_should_do_about_the_quarantine_is_printed(
    served: AsyncCli, client: Client
) -> None:
    async with working(client):
        end = await served("isolate", ONE_OF_MANY, "--cluster", "many")
        await client.get_workflow_handle("quarantine/many").terminate()
    assert (end.code, end.err) == (0, f"note: {NOTE}\n")


async def test_a_name_that_no_node_has_is_refused_before_it_is_sent(cli: Cli) -> None:
    end = cli("isolate", "bad name!")
    assert (end.code, end.sentence.count("'bad name!' is no name of a node")) == (2, 1)


async def test_an_isolation_that_waits_for_its_cluster_is_told_from_one_that_no_worker_took(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "2")
    async with working(client):
        end = await served("isolate", SLOW, "--cluster", "gone")
        await client.get_workflow_handle("quarantine/gone").terminate()
    assert end.code == 4
    assert end.sentence.startswith(f"isolate {SLOW} waits for cluster gone (no route to host): ")
    assert f"`everstep release {SLOW} --cluster gone` withdraws it" in end.sentence


async def make_nodes() -> None:
    """Three nodes of this machine and gpu-07, which the stand-in of the quarantine isolates."""
    settings = LocalSettings(home=Path(os.environ["EVERSTEP_HOME"]), nodes=3, devices=1)
    store = Store(settings.database)
    await store.run(lambda db: nodes.set_up(db, settings))
    await store.run(lambda db: nodes.add(db, "gpu-07", 1))
    store.close()


async def test_the_nodes_of_this_machine_are_shown_without_a_worker(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in its books. What is isolated, the quarantine alone has."""
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")
    await client.start_workflow("NodeQuarantine", id="quarantine/local", task_queue="everstep")
    end = await served("nodes")
    assert (end.code, "no worker answered" in end.sentence) == (4, True)  # nor are there books
    await make_nodes()
    assert (await served("fault", "node-down", "n1")).code == 0
    end = await served("nodes", "--json")
    assert [(row["name"], row["state"]) for row in end.json] == [
        ("n0", "ready"),
        ("n1", "down"),
        ("n2", "ready"),
        ("gpu-07", "ready"),
    ]
    assert end.err.startswith("note: which nodes are isolated is not known: ")
    assert "no worker answered within 0.5 s" in end.err
    await client.get_workflow_handle("quarantine/local").terminate()


async def test_a_node_that_the_cluster_does_not_have_is_isolated_with_a_note(
    served: AsyncCli, client: Client
) -> None:
    """It may join later; but a name that is mistyped leaves the one that was meant in use."""
    await make_nodes()
    async with working(client):
        ends = {name: await served("isolate", name) for name in ("n1", "n2/0", "n11", "n2/7")}
        await client.get_workflow_handle("quarantine/local").terminate()
    assert {name: (end.code, end.err) for name, end in ends.items()} == {
        "n1": (0, ""),
        "n2/0": (0, ""),
        "n11": (0, "note: cluster local has no n11 now; `everstep nodes` shows what it has\n"),
        "n2/7": (0, "note: cluster local has no n2/7 now; `everstep nodes` shows what it has\n"),
    }


async def test_the_nodes_of_this_machine_are_shown_with_what_the_quarantine_says(
    served: AsyncCli, client: Client
) -> None:
    await make_nodes()
    for line in ("node-down n1", "device n2 0 80C98002"):
        assert (await served("fault", *line.split())).code == 0
    sound, broken = (
        [{"index": 0, "health": health, "codes": codes, "job": None}]
        for health, codes in (("ok", []), ("faulty", ["80C98002"]))
    )

    await client.start_workflow("NodeQuarantine", id="quarantine/local", task_queue="everstep")
    async with working(client):
        node_rows = (await served("nodes", "--json")).json
        page = (await served("nodes")).out
    assert [(n["name"], n["state"], n["jobs"], n["devices"]) for n in node_rows] == [
        ("n0", "ready", [], sound),
        ("n1", "down", [], sound),
        ("n2", "ready", [], broken),
        ("gpu-07", "isolated", [], sound),
    ]
    assert node_rows[3]["reason"] == "XID 79"
    assert "0 of 1 used; 0 80C98002" in page
    assert (await served("nodes", "--cluster", "big", "--json")).json == []


@pytest.mark.parametrize(
    ("view", "used", "cell"),
    [
        pytest.param(NodeView(name="n0"), 0, "-", id="it has none"),
        pytest.param(
            NodeView(name="n0", devices=tuple(DeviceView(index=n) for n in range(8))),
            0,
            "0 of 8 used",
            id="no job",
        ),
        pytest.param(
            NodeView(
                name="n0",
                devices=tuple(DeviceView(index=n, job="demo" if n < 4 else None) for n in range(8)),
            ),
            4,
            "4 of 8 used",
            id="a job has four",
        ),
        pytest.param(
            NodeView(
                name="n0",
                devices=(DeviceView(index=0), DeviceView(index=1, health="faulty", codes=("79",))),
                devices_used=1,
            ),
            1,
            "1 of 2 used; 1 79",
            id="the cluster shows no more than their number",
        ),
    ],
)
def test_devices_of_a_node_are_shown_by_how_many_jobs_have(
    view: NodeView, used: int, cell: str
) -> None:
    row = {**nodes_command.BLANK, **nodes_command.row_of(view, [])}
    assert row["devices_used"] == used
    [column] = [one for one in pages.NODES if one.title == "DEVICES"]
    assert column.cell(row) == cell
