"""`init` and `schema`: a document to begin with, and its schema for editors."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.dialects.native.schema import schema
from everstep.dialects.native.template import TEMPLATE
from tests.cli.conftest import Cli


def test_the_schema_is_printed(cli: Cli) -> None:
    assert cli("schema").json == schema()


def test_a_document_to_begin_with_is_written_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert "`everstep run job.yaml`" in cli("init").out
    assert cli("validate", "job.yaml").out.splitlines() == [
        "native document: valid",
        "levels in_place, suspension, pod, job, rollback",
        "       with everstep.train.torch in every rank also operator_online, process_online",
        "       not elastic: the document asks for a fixed number of nodes",
    ]
    (tmp_path / "job.yaml").write_text("mine")
    assert "job.yaml is there already" in cli("init").sentence
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert cli("init", "no/such/folder.yaml").code == 2
    assert cli("init", "-").out == TEMPLATE
