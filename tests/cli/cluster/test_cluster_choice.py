"""`isolate`, `release` and `nodes` without `--cluster`: the only cluster that has the node."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.client import Client

from tests.cli.cluster.test_nodes import make_nodes
from tests.cli.conftest import AsyncCli, submitted, until
from tests.cli.standin import document, working


async def with_quarantines(client: Client, *clusters: str) -> None:
    """A quarantine of each cluster, in which gpu-07 is isolated, and the server lists them."""
    for cluster in clusters:
        await client.start_workflow(
            "NodeQuarantine", id=f"quarantine/{cluster}", task_queue="everstep"
        )

    async def are_listed() -> bool:
        return len([row async for row in client.list_workflows()]) == len(clusters)

    await until(are_listed)


async def end(client: Client, clusters: Sequence[str]) -> None:
    for cluster in clusters:
        await client.get_workflow_handle(f"quarantine/{cluster}").terminate()


async def test_the_only_cluster_is_meant(served: AsyncCli, client: Client) -> None:
    await with_quarantines(client, "gpu")
    async with working(client):
        listed = (await served("nodes", "--json")).json
        assert [node["name"] for node in listed] == ["gpu-07", "n0"]
        isolated = await served("isolate", "gpu-99")
        assert isolated.out.startswith("no new pod gets gpu-99 on cluster gpu")
        released = await served("release", "gpu-07")
        assert "gpu-07 may be used again on cluster gpu" in released.out
        await end(client, ["gpu"])


async def test_a_job_is_enough_to_know_its_cluster(served: AsyncCli, client: Client) -> None:
    """No worker of the cluster has started a janitor yet, and nothing is isolated there."""
    async with working(client):
        assert (await submitted(served, document())).code == 0

        async def is_listed() -> bool:
            return bool([row async for row in client.list_workflows()])

        await until(is_listed)
        isolated = await served("isolate", "n1", "--json")
        await client.get_workflow_handle("demo").terminate()
        await client.get_workflow_handle("quarantine/local").terminate()
    assert isolated.json["cluster"] == "local"


async def test_of_several_clusters_the_one_with_the_node_is_meant(
    served: AsyncCli, client: Client
) -> None:
    await make_nodes()  # n0, n1, n2 and gpu-07 of this machine
    await with_quarantines(client, "gpu")
    async with working(client):
        isolated = (await served("isolate", "n1/0", "--json")).json
        assert isolated["cluster"] == "local"
        absent = await served("isolate", "n8")
        assert (absent.code, absent.sentence) == (
            2,
            "none of clusters gpu and local shows a node n8: name one with --cluster",
        )
        both = await served("release", "gpu-07")
        assert (both.code, both.sentence) == (
            2,
            "gpu-07 is a node of clusters gpu and local: name one with --cluster",
        )
        assert (await served("release", "gpu-07", "--cluster", "gpu")).code == 0
        listed = (await served("nodes", "--json")).json
        assert {"n1", "n2"} <= {node["name"] for node in listed}, "those of this machine"
        await end(client, ["gpu", "local"])


async def test_nodes_of_several_clusters_elsewhere_need_a_name(
    served: AsyncCli, client: Client
) -> None:
    await with_quarantines(client, "a", "b")
    refused = await served("nodes")
    await end(client, ["a", "b"])
    assert (refused.code, refused.sentence) == (
        2,
        "there are clusters a and b: name one with --cluster",
    )
