"""The file that a comparison leaves: every single measurement, with all that says where it comes from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

PLACE = Path(__file__).with_name("results.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A fault under a launcher; `took_s` None: it had not recovered when `given_up_s` had passed."""

    row: str
    launcher: str
    round: int
    at_s: float  # since the run began
    load: float  # of one minute, at the fault
    given_up_s: float
    took_s: float | None
    begun_s: float | None = None
    paused_s: float | None = None
    lost_steps: int | None = None
    wasted_starts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRun:
    """Why a launcher was not measured in a row."""

    row: str
    launcher: str
    reason: str


@dataclass(kw_only=True)
class Results:
    date: str
    seed: int
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, str]
    took_s: float = 0.0
    load_at_end: float = 0.0
    order: list[str] = field(default_factory=list)  # of the turns
    measured: list[Measurement] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)

    def of(self, row: str, launcher: str) -> Sequence[Measurement]:
        return [one for one in self.measured if (one.row, one.launcher) == (row, launcher)]

    def reason(self, row: str, launcher: str) -> str | None:
        """Why it was not measured at all."""
        reasons = [one.reason for one in self.not_run if (one.row, one.launcher) == (row, launcher)]
        return reasons[0] if reasons else None

    def write(self, path: Path) -> None:
        """A line for each measurement, so that two runs can be compared."""
        content = asdict(self)
        lines = [
            f"{json.dumps(name)}: {_lines(value) if name in LISTS else json.dumps(value)}"
            for name, value in content.items()
        ]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        content = json.loads(path.read_text())
        content["measured"] = [Measurement(**one) for one in content["measured"]]
        content["not_run"] = [NotRun(**one) for one in content["not_run"]]
        return cls(**content)


LISTS = ("measured", "not_run", "order")


def _lines(values: Sequence[object]) -> str:
    return "[" + ",".join(f"\n  {json.dumps(value)}" for value in values) + "\n]"
