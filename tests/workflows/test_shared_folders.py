"""Two jobs never write to one folder: the second one is refused, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.support.byhand import at
from tests.support.devserver import DevServer
from tests.support.moments import Call, Incident
from tests.support.stage import document

FIRST = document("demo", env={"STEPS": "60"})
QUIET = Incident(body=FIRST, faults=[], begins_s=34)
PHASES = [{"name": "warmup"}, {"name": "main", "checkpoints": {"path": "out/demo/ckpt"}}]

MODELARTS = {
    "kind": "job",
    "metadata": {"name": "other"},
    "algorithm": {"command": "python train.py", "outputs": [{"local_dir": "out/demo/ckpt"}]},
    "spec": {"resource": {"node_count": 4}},
    "everstep": {"env": {"STEPS": "100"}},
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (document("other", model_dir="out/demo"), "model_dir: "),
        (document("other", checkpoints={"path": "out/demo/ckpt"}), "checkpoints.path: "),
        (document("other", phases=PHASES), "checkpoints.path: "),
        (MODELARTS, "algorithm.outputs.0.local_dir: "),
    ],
    ids=["model_dir", "checkpoints", "a later phase", "modelarts"],
)
async def test_the_second_of_two_jobs_with_one_folder_is_refused(
    server: DevServer, namespace: str, tmp_path: Path, body: dict[str, object], field: str
) -> None:
    async with at(server, namespace, tmp_path, QUIET, Call("observe", "before")) as (stage, job):
        for _ in range(3):  # of a monitor that a busy machine takes for dead, and tries again
            await stage.admin.hold("observe", job="demo")
        second = await stage.submit(body)
        with pytest.raises(WorkflowFailureError) as failed:
            await second.result()
        cause = failed.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "InvalidSpec"
        assert cause.message.startswith(field)
        assert "job demo, which has not ended, writes to out/demo" in cause.message
        memo = await (await second.describe()).memo()
        assert memo["status"]["state"] == "failed"
        assert memo["status"]["reason"] == cause.message
        assert [left.job.id for left in await stage.fake.leftovers()] == ["demo"]

        await stage.admin.release()
        assert (await job.result())["status"] == "Completed"
        assert await stage.fake.leftovers() == ()
        after = await stage.submit(body, job_id="later")
        assert (await after.result())["status"] == "Completed"
