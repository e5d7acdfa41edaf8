"""The short-lived pod that releases the folders of an ended job, and what may hold it up."""

from __future__ import annotations

import pytest

from everstep.backends.kubernetes.books import JobSession
from everstep.backends.kubernetes.releasing import FolderReleaser
from everstep.core.errors import BackendUnavailable
from everstep.core.waits import sentence_of
from everstep.protocol import wire
from tests.backends.objects_in_memory import (
    AGENT,
    BOOKS,
    JOB,
    NAMESPACE,
    ObjectsInMemory,
    Request,
    launched,
    order_of,
    refused,
)

COMMAND: wire.ReleaseCommand = {
    "cluster": BOOKS,
    "job": JOB.id,
    "generation": 1,
    "folders": ["/storage"],
    "earlier": [],
}
NO_RIGHT = 'pods is forbidden: User "worker" cannot create resource "pods" in API group ""'


async def after_the_last_pod(api: ObjectsInMemory) -> FolderReleaser:
    """The releaser of a job whose pods are gone."""
    placer = await launched(api)
    await placer.ensure_placed(order_of(0))

    def drop_pods(session: JobSession) -> None:
        for entry in session.entries:
            session.remove(entry.name)

    await placer.books.transact(JOB.id, drop_pods)
    return FolderReleaser(
        api=api,
        namespace=NAMESPACE,
        books=placer.books,
        settings=placer.settings,
        agent=placer.agent,
    )


def agent_path() -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/configmaps/{AGENT}"


async def test_the_agent_that_it_mounts_is_made_again_before_it_and_while_it_waits() -> None:
    api = ObjectsInMemory()
    releaser = await after_the_last_pod(api)
    for _ in range(2):
        del api.objects[agent_path()]
        assert await releaser.release(COMMAND)
        assert agent_path() in api.objects


@pytest.mark.parametrize("message", ['pods "x" is forbidden: exceeded quota: few', NO_RIGHT])
async def test_a_quota_or_a_right_that_is_missing_for_now_is_waited_for(message: str) -> None:
    """The quota of the job's own pods is given back a moment after they are gone."""
    api = ObjectsInMemory()
    releaser = await after_the_last_pod(api)
    refusals = iter([refused(403, message, "Forbidden")])

    def refuse_once(request: Request) -> None:
        if request.method == "POST" and request.path.endswith("/pods"):
            for refusal in refusals:
                raise refusal

    api.before = refuse_once
    assert message in sentence_of(await releaser.release(COMMAND))
    await releaser.release(COMMAND)
    assert "train-release-g1" in api.of("pods")


async def test_an_api_server_that_is_away_for_a_moment_gives_up_no_folder() -> None:
    api = ObjectsInMemory()
    releaser = await after_the_last_pod(api)
    refusals = iter([refused(503, "overloaded")])

    def refuse_once(request: Request) -> None:
        for refusal in refusals:
            raise refusal

    api.before = refuse_once
    with pytest.raises(BackendUnavailable):
        await releaser.release(COMMAND)
    await releaser.release(COMMAND)
    assert "train-release-g1" in api.of("pods")


async def test_the_log_says_once_what_the_folders_of_an_ended_job_wait_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its end waits for that without a limit: given up, they would stay its own for good."""
    api = ObjectsInMemory()
    releaser = await after_the_last_pod(api)
    message = 'pods "x" is forbidden: exceeded quota: few'

    def refuse(request: Request) -> None:
        if request.method == "POST" and request.path.endswith("/pods"):
            raise refused(403, message, "Forbidden")

    api.before = refuse
    for _ in range(3):
        assert message in sentence_of(await releaser.release(COMMAND))
    [sentence] = [line for line in caplog.messages if message in line]
    assert sentence.startswith(
        f"job {JOB.id} has ended, but keeps /storage until a pod that releases them can be created"
    )
