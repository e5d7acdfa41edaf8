"""Commands about a trainer configuration, as somebody types them."""

from __future__ import annotations

import json
from pathlib import Path

from everstep.documents.text import written
from tests.cli.conftest import Cli
from tests.documents import test_wrong_trainer_configurations as table


@table.ROWS
def test_a_wrong_one_ends_with_2_and_one_line(wrong: table.Wrong, cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(written(table.changed(wrong)))
    validated, submitted = cli("validate", str(file), "--json"), cli("submit", str(file))
    (error,) = json.loads(validated.out)["errors"]
    assert (validated.code, submitted.code) == (2, 2)
    assert error["field"] == wrong.field
    assert wrong.message in error["message"]
    assert submitted.sentence.startswith(f"{file}: {wrong.field}: ")
