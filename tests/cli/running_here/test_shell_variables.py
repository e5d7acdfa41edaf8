"""Variables that `run` was started with and its job would not find: they are named."""

from __future__ import annotations

import pytest
from temporalio.worker import Worker

from everstep.client.documents.command_document import job_of
from everstep.client.serving import pollers, shell_variables
from everstep.client.serving.shell_variables import missing_from
from tests.cli.conftest import until
from tests.cli.standin import monitor
from tests.support.devserver import DevServer


def test_what_differs_is_named_but_for_what_belongs_to_a_terminal() -> None:
    variables = {"FOO": "1", "BAR": "1", "SAME": "1", "PWD": "/b", "TERM": "x", "EVERSTEP_UI": "y"}
    assert missing_from({"BAR": "2", "SAME": "1", "PWD": "/a"}, variables) == {"FOO", "BAR"}


@pytest.mark.parametrize(("env", "is_noted"), [({}, True), ({"ES_LR": "0.1"}, False)])
async def test_a_variable_that_the_worker_lacks_is_noted_unless_the_job_has_it(
    server: DevServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    is_noted: bool,
) -> None:
    monkeypatch.setenv("ES_LR", "0.1")  # not in the environment that this process was started with
    client = await server.connect(namespace)
    spec = job_of(["/bin/true"], {"env": env} if env else {}).spec
    _, activities = pollers.needed("local")

    async def is_there() -> bool:
        return bool(await pollers.recent(client, activities))

    async with Worker(client, task_queue=activities.name, activities=[monitor]):
        await until(is_there)
        notes = await shell_variables.notes(client, spec, is_from_command=True)
    matching = [note for note in notes if "ES_LR" in note]
    assert bool(matching) is is_noted
    assert all("--env NAME" in note for note in matching)
