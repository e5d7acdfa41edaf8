"""Commands about a trainer configuration, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from everstep.core.spec import PhaseSpec
from everstep.core.world import JobRef, SlotStart, StartOrder
from everstep.dialects.command_files import command_files
from everstep.dialects.registry import compile_document, read_text
from everstep.documents.text import to_yaml
from everstep.protocol.wire import RunOrder
from tests.cli.conftest import AsyncCli, Cli
from tests.documents import test_wrong_trainer_configurations as table


@table.ROWS
def test_a_wrong_one_ends_with_2_and_one_line(wrong: table.Wrong, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(to_yaml(table.changed(wrong)))
    validated, submitted = cli("validate", str(file), "--json"), cli("submit", str(file))
    (error,) = json.loads(validated.out)["errors"]
    assert (validated.code, submitted.code) == (2, 2)
    assert error["field"] == wrong.field
    assert wrong.message in error["message"]
    assert submitted.sentence.startswith(f"{file}: {wrong.field}: ")


INIT = {"model_dir": "out", "checkpoint": {"steps": 10}, "autorestart": {"max_num_restarts": 2}}
TRAINER = {"trainer": [{"init": INIT, "fit": {}}, {"init": {**INIT, "model_dir": "b"}, "fit": {}}]}
NATIVE = {
    "apiVersion": "everstep/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "demo"},
    "spec": {"command": "a", "phases": [{"name": "main", "command": "b"}]},
}
PHASES = {"phases": [{"name": "a", "command": "mine"}, {"name": "b"}]}


def printed(cli: Cli, file: Path, document: dict[str, Any], command: str) -> dict[str, Any]:
    """The document that `run` would hand in."""
    file.write_text(to_yaml(document))
    ended = cli("run", str(file), "--command", command, "--print")
    assert ended.code == 0, ended.err
    return read_text(ended.out)


@pytest.mark.parametrize(
    "document", [TRAINER, {**TRAINER, "everstep": PHASES}, NATIVE], ids=["trainer", "own", "native"]
)
def test_a_command_given_there_is_that_of_every_phase(
    cli: Cli, tmp_path: Path, document: dict[str, Any]
) -> None:
    output = printed(cli, tmp_path / "job.yaml", document, "exec train {params}")
    phases = compile_document(output).phases
    assert {phase.command for phase in phases} == {("/bin/sh", "-c", "exec train {params}")}


async def test_it_is_handed_in_and_reads_the_configuration_of_its_phase(
    served: AsyncCli, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(to_yaml(TRAINER))
    ended = await served("submit", str(file), "--command", "cat {params}", "--id", "zoo")
    assert ended.code == 0, ended.err
    history = await client.get_workflow_handle("zoo").fetch_history()
    started = history.events[0].workflow_execution_started_event_attributes
    (document,) = await client.data_converter.decode([*started.input.payloads])
    orders = [start_of(phase) for phase in compile_document(document).phases]
    texts = [command_files(order)["params.yaml"] for order in orders]
    assert [read_text(text)["trainer"]["init"]["model_dir"] for text in texts] == ["out", "b"]


def start_of(phase: PhaseSpec) -> StartOrder:
    return StartOrder(
        job=JobRef(id="zoo", run="run"),
        phase=phase.name,
        generation=1,
        run=RunOrder(command=[*phase.command]),
        slots={0: SlotStart(0, 1, 1)},
        files=phase.files,
    )


def test_validate_judges_the_document_with_it(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(to_yaml(NATIVE))
    assert cli("validate", str(file), "--command", "train").code == 0
    ended = cli("validate", str(file), "--command", "", "--json")
    assert ended.code == 2
    fields = [error["field"] for error in json.loads(ended.out)["errors"]]
    assert fields == ["spec.command", "spec.phases.0.command"]
