"""Documents as the `temporal` command line sends them: they run, or end in one line that helps.

A process of that command line takes a quarter of a second: one test compares what it sends with `start`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

import worker
from everstep.core import names
from tests.documents.test_mindcluster_documents import (
    CONFIG_MAP,
    ascend_job,
    deployment,
    volcano_job,
)
from tests.support.devserver import START, DevServer, temporal
from tests.support.stage import Stage, document

WRONG = Path(__file__).parents[1] / "documents" / "wrong"
SAMPLE = (
    "accelerator_unknown.yaml",
    "accelerators_of_no_kind.yaml",
    "accelerators_negative.yaml",
    "accelerators_of_no_kind_in_phase.yaml",
    "budget_without_limit.yaml",
    "checkpoints_without_path.yaml",
    "command_missing.yaml",
    "env_name.yaml",
    "modelarts_command_missing.yaml",
    "modelarts_hang_time_long.yaml",
    "modelarts_retries_many.yaml",
    "modelarts_retries_unquoted.yaml",
)
DEEP = "[" * 9_000 + "]" * 9_000  # the command line itself refuses 10,000
DEEPER_THAN_WE_READ = json.dumps({"spec": json.loads("[" * 60 + "]" * 60)})


@pytest.fixture(scope="module")
async def stage(
    server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    namespace = await server.new_namespace("documents-by-cli")
    async with Stage(server, namespace, tmp_path_factory.mktemp("stage")) as running:
        yield running


async def start_by_cli(stage: Stage, name: str, inputs: Sequence[str], folder: Path) -> int:
    """The exit code of `temporal workflow start`, with each input in a file of its own."""
    arguments: list[str] = []
    for number, text in enumerate(inputs):
        file = folder / f"input-{number}.json"
        file.write_text(text)
        arguments += ["--input-file", str(file)]
    place = ("--address", stage.server.address, "--namespace", stage.namespace)
    code, _output = await temporal(*START, "--workflow-id", name, *place, *arguments)
    return code


async def start(
    stage: Stage, name: str, inputs: Sequence[str], *, encoding: str = "json/plain"
) -> None:
    """Start the job as that command does: each input is the text of its file."""
    await stage.client.start_workflow(
        names.TRAINING_JOB,
        args=[RawValue(payload(text, encoding)) for text in inputs],
        id=name,
        task_queue=names.TASK_QUEUE,
    )


def payload(text: str, encoding: str = "json/plain") -> Payload:
    return Payload(metadata={"encoding": encoding.encode()}, data=text.encode())


@pytest.fixture
def in_brief() -> Iterator[None]:
    """Failures of activities are logged as in a worker's own process."""
    logger = logging.getLogger("temporalio.activity")
    logger.addFilter(worker.in_brief)
    yield
    logger.removeFilter(worker.in_brief)


async def refusal(stage: Stage, name: str) -> ApplicationError:
    """The failure with which the job ended; no workflow task of it may have failed."""
    job = stage.client.get_workflow_handle(name)
    with pytest.raises(WorkflowFailureError) as caught:
        await job.result(rpc_timeout=timedelta(seconds=20))
    history = await job.fetch_history()
    failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    assert failed not in [event.event_type for event in history.events]
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


async def test_a_good_document_runs_and_is_started_once(stage: Stage, tmp_path: Path) -> None:
    text = json.dumps(document("good", env={"STEPS": "20"}))
    assert await start_by_cli(stage, "good", [text], tmp_path) == 0
    report: dict[str, Any] = await stage.client.get_workflow_handle("good").result()
    assert report["status"] == "Completed"
    assert await start_by_cli(stage, "good", [text], tmp_path) != 0


async def test_the_command_line_sends_its_files_as_these_tests_do(
    stage: Stage, tmp_path: Path
) -> None:
    inputs = ["{}", json.dumps(with_text(900_000))]
    assert await start_by_cli(stage, "two-files", inputs, tmp_path) == 0
    job = stage.client.get_workflow_handle("two-files")
    begun = await anext(job.fetch_history_events(page_size=1))
    sent = begun.workflow_execution_started_event_attributes.input.payloads
    assert [*sent] == [payload(text) for text in inputs]
    assert (await refusal(stage, "two-files")).type == "InvalidSpec"


MANIFESTS = {
    "ascend-job": ascend_job(),
    "volcano-job": volcano_job(),
    "deployment": deployment(),
    "list": {"apiVersion": "v1", "kind": "List", "items": [CONFIG_MAP, ascend_job()]},
}


@pytest.mark.parametrize("name", MANIFESTS)
async def test_a_manifest_of_mindcluster_runs_too(stage: Stage, name: str) -> None:
    spec = {"env": {"STEPS": "20"}, "model_dir": f"out/{name}"}
    text = json.dumps({**MANIFESTS[name], "everstep": spec})
    await start(stage, name, [text])
    report: dict[str, Any] = await stage.client.get_workflow_handle(name).result()
    assert report["status"] == "Completed"
    assert report["runs"][0]["nodes"] == (4 if name in ("ascend-job", "list") else 2)


@pytest.mark.usefixtures("in_brief")
@pytest.mark.parametrize("name", SAMPLE)
async def test_a_wrong_document_fails_in_one_line_that_names_the_field(
    stage: Stage, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = (WRONG / name).read_text()
    field, fragment = text.partition("\n")[0].removeprefix("# expect: ").split(" | ", 1)
    job = name.removesuffix(".yaml")
    await start(stage, job, [json.dumps(yaml.safe_load(text))])
    error = await refusal(stage, job)
    assert error.type == "InvalidSpec"
    assert error.message.startswith(f"{field}: ")
    assert fragment in error.message
    assert "\n" not in error.message
    records = [record for record in caplog.records if f" of {job}:" in record.getMessage()]
    assert [record.getMessage().startswith("compile of ") for record in records] == [True]
    assert "Traceback" not in caplog.text


def with_text(size: int, phases: int = 1, name: str = "large") -> dict[str, Any]:
    """A document whose environment has so many bytes of text, for each of its phases."""
    texts = {f"DATA_{n}": "x" * 10_000 for n in range(size // 10_000)}
    several = [{"name": f"phase-{n}"} for n in range(phases)]
    return document(name, env={"STEPS": "10", **texts}, phases=several)


LARGE = {
    "near-what-the-server-takes": (with_text(2_000_000), "is larger than 1 MB; keep data in files"),
    "near-ours": (with_text(990_000), "comes to 2.0 MB when it is read; a job may have 1.5 MB"),
    "repeated": (with_text(200_000, phases=10), "the phases are larger than 1 MB"),
}


@pytest.mark.parametrize("name", LARGE)
async def test_a_document_that_is_too_large_fails_in_one_line_and_wedges_nothing(
    stage: Stage, name: str
) -> None:
    body, fragment = LARGE[name]
    await start(stage, name, [json.dumps(body)])
    error = await refusal(stage, name)
    assert error.type == "InvalidSpec"
    assert "\n" not in error.message
    assert fragment in error.message


async def test_the_largest_document_that_is_taken_runs_through_its_phases(
    stage: Stage,
) -> None:
    text = json.dumps(with_text(490_000, phases=2))
    await start(stage, "large", [text])
    report: dict[str, Any] = await stage.client.get_workflow_handle("large").result()
    assert [phase["state"] for phase in report["phases"]] == ["completed", "completed"]


UNREADABLE = {
    "no-input": ([], "exactly one JSON document is needed, not 0"),
    "two-inputs": (["{}", "{}"], "exactly one JSON document is needed, not 2"),
    "a-list": (["[1]"], "must be a mapping"),
    "a-number": (["7"], "must be a mapping"),
    "null": (["null"], "document"),
    "deep": ([DEEP], "not readable JSON"),
    "deeper-than-we-read": ([DEEPER_THAN_WE_READ], "deep"),
    "other-dialect": (
        [json.dumps({"trainer": {}})],
        "trainer.init: missing",
    ),
    "a-long-text": ([json.dumps("{" * 900_000)], "must be a mapping"),
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_what_is_no_document_fails_in_one_line_and_wedges_nothing(
    stage: Stage, name: str
) -> None:
    inputs, fragment = UNREADABLE[name]
    await start(stage, name, inputs)
    error = await refusal(stage, name)
    assert error.type == "InvalidSpec"
    assert fragment in error.message
    assert "\n" not in error.message


async def test_an_id_that_leaves_no_room_for_restarts_fails_in_one_line(
    stage: Stage,
) -> None:
    body = document("long", env={"STEPS": "20"})
    long, fine = "x" * (names.JOB_ID_MOST + 1), "x" * names.JOB_ID_MOST
    await stage.submit(body, job_id=long)
    error = await refusal(stage, long)
    assert error.type == "InvalidSpec"
    assert error.message.startswith(f"id: the workflow's ID has {len(long)} bytes")
    await stage.admin.fault(f"at step 10 of {fine} kill {fine} 0 exit 1")
    job = await stage.submit(body, job_id=fine)
    report: dict[str, Any] = await job.result()
    assert [r["recover_result"] for r in report["phases"][0]["restarts"]] == ["success"]


async def test_an_input_of_an_unknown_encoding_fails_in_one_line(stage: Stage) -> None:
    await start(stage, "encoded", ["{}"], encoding="binary/of-somebody")
    error = await refusal(stage, "encoded")
    assert (error.type, "binary/of-somebody" in error.message) == ("InvalidSpec", True)
