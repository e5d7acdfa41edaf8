"""Prints the JSON schemas of what workers send each other, of the version in whose folder it runs."""

from __future__ import annotations

import json
import sys
from dataclasses import is_dataclass
from typing import Any

from pydantic import TypeAdapter

from everstep.core.loop.next_actions import RunPlan
from workflows import signatures
from workflows.opening import Carried


def main() -> None:
    of_activities: list[Any] = [each for each in vars(signatures).values() if is_dataclass(each)]
    values: list[Any] = [*of_activities, RunPlan, Carried]
    _, schemas = TypeAdapter.json_schemas(
        [(each.__name__, "serialization", TypeAdapter(each)) for each in values]
    )
    json.dump(schemas["$defs"], sys.stdout)


if __name__ == "__main__":
    main()
