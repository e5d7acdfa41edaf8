"""`--command` for manifests whose containers start what their image says: it is not known here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.dialects.registry import compile_document, read_text
from everstep.documents.text import to_yaml
from tests.cli.conftest import Cli
from tests.documents.test_mindcluster_documents import ascend_job, deployment, volcano_job
from tests.documents.test_wrong_manifests import WRONG, Wrong, changed

AT = "everstep.command"


def without_commands(document: dict[str, Any]) -> dict[str, Any]:
    """The manifest of containers that say only their image."""
    spec = document["spec"]
    pods = [*spec.get("replicaSpecs", {}).values(), *spec.get("tasks", []), spec]
    for template in [one["template"] for one in pods if "template" in one]:
        for container in template["spec"]["containers"]:
            container.pop("command")
            container.pop("args")
    return document


@pytest.mark.parametrize("wrong", WRONG, ids=[str(n) for n, _ in enumerate(WRONG)])
def test_a_wrong_one_ends_with_2_and_says_where_and_what(
    cli: Cli, tmp_path: Path, wrong: Wrong
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(to_yaml(changed(wrong)))
    for command in ("validate", "submit"):
        ended = cli(command, str(file))
        assert ended.code == 2
        output = ended.out + ended.err
        assert wrong.message in " ".join(output.split())
        assert ".".join(map(str, wrong.field or wrong.at)) in output


DOCUMENTS = {
    "AscendJob": without_commands(ascend_job()),
    "Volcano Job": without_commands(volcano_job()),
    "Deployment": without_commands(deployment()),
    "a list": {"kind": "List", "apiVersion": "v1", "items": [without_commands(ascend_job())]},
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_command_is_asked_for_and_can_be_given(
    cli: Cli, tmp_path: Path, document: dict[str, Any]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(to_yaml(document))
    report = cli("validate", str(file), "--json").json
    assert [note for note in report["notes"] if note["field"] == AT]
    assert cli("run", str(file), "--print").code == 2
    ended = cli("run", str(file), "--command", "exec train", "--print")
    assert ended.code == 0, ended.err
    spec = compile_document(read_text(ended.out))
    assert spec.phases[0].command == ("/bin/sh", "-c", "exec train")
    assert [note for note in spec.notes if note.field == AT] == []
