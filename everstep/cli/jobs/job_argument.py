"""The argument ID of commands about one job."""

from __future__ import annotations

from typing import Annotated

import typer

from everstep.cli import completion
from everstep.cli.output import not_empty

JobId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The job's ID.",
        autocompletion=completion.job_ids,
        callback=not_empty,
    ),
]
