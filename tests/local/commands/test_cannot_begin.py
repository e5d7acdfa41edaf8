"""Jobs that cannot begin: each says why, and soon. Only real interpreters and folders say why.

One server and one worker begin all of them at once. What `everstep run` prints of such an end is the job's
reason: one of them is run by the command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import Machine
from tests.support.rehearsal import Rehearsal, records

SCRIPTED = {"command": ["python3", "-c", "pass"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A spec that keeps a job from beginning, by the job's folder; and what the job's reason then has."""

    spec: Callable[[Path], Mapping[str, object]]
    reason: str


def exits(command: object, reason: str) -> Row:
    return Row(spec=lambda _: {"command": command}, reason=reason)


def in_the_place(key: str, what: str) -> Row:
    """A file, or a link to nothing, is where the folder of this name should be."""

    def spec(folder: Path) -> Mapping[str, object]:
        place = folder / "place"
        if what == "file":
            place.touch()
        else:
            place.symlink_to(folder / "nowhere")
        value = {"path": str(place)} if key == "checkpoints" else str(place)
        # A job that has no other folder than its workdir: its rank alone enters it.
        model_dir = "out" if key == "workdir" else str(folder / "out")
        return {**SCRIPTED, "model_dir": model_dir, key: value}

    return Row(spec=spec, reason="/place is ")


ROWS: Mapping[str, Row] = {
    "no such program": exits(
        ["nosuchprog"], "slot 0 cannot start its ranks: nosuchprog: No such file or directory"
    ),
    "a variable that the worker lacks": Row(
        spec=lambda _: {**SCRIPTED, "env": {"T": {"from": "NO_SUCH"}}},
        reason="slot 0 cannot start its ranks: the worker has no variable NO_SUCH",
    ),
    "no such workdir": Row(
        spec=lambda folder: {**SCRIPTED, "workdir": "nowhere", "model_dir": str(folder / "out")},
        reason="slot 0 cannot start its ranks: ",
    ),
    "a mistyped workdir, with folders below it": Row(
        spec=lambda _: {
            **SCRIPTED,
            "workdir": "nowhere",
            "model_dir": "out",
            "checkpoints": {"path": "out/saved"},
        },
        reason="/nowhere is no folder",
    ),
    "no such script": exits(
        ["python3", "nosuch.py"], "nosuch.py': [Errno 2] No such file or directory"
    ),
    "no such module": exits(["python3", "-m", "nosuch"], "No module named nosuch"),
    "no such program in a shell": exits("nosuchprog --steps 5", "nosuchprog: not found"),
    **{
        f"a {what} in the place of {key}": in_the_place(key, what)
        for key in ("model_dir", "checkpoints", "workdir")
        for what in ("file", "link")
    },
}


def document(folder: Path, **spec_fields: object) -> Path:
    path = folder / "job.json"
    spec = {"command": ["python3", "-c", "pass"], "model_dir": str(folder / "out"), **spec_fields}
    head = {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": {"name": "demo"}}
    path.write_text(json.dumps({**head, "spec": spec}))
    return path


@pytest.mark.long
async def test_each_job_that_cannot_begin_fails_at_once_with_its_own_reason(tmp_path: Path) -> None:
    async with Rehearsal(tmp_path / "r", nodes=1) as r:
        jobs = {}
        for number, (name, row) in enumerate(ROWS.items()):
            folder = tmp_path / str(number)
            folder.mkdir()
            path = document(folder, **row.spec(folder))
            jobs[name] = await r.submit(path, job_id=f"job-{number}")
        reports = {name: await r.report(job) for name, job in jobs.items()}
        assert {
            name: wrong for name, report in reports.items() if (wrong := wrongs(ROWS[name], report))
        } == {}
        assert not [*tmp_path.glob("*/nowhere")], "a folder that is missing is never made"
        assert await r.is_clean() == []


def wrongs(row: Row, report: Mapping[str, Any]) -> list[str]:
    """What is not as it must be, of a job that cannot begin."""
    claims = {
        f"it is {report['status']}": report["status"] == "Failed",
        f"its reason is {report['reason']!r}": row.reason in report["reason"],
        f"the restarts are {records(report)}": records(report) == [],
    }
    return [claim for claim, holds in claims.items() if not holds]


@pytest.mark.long
def test_a_folder_that_cannot_be_written_is_named_and_not_waited_for_without_end(
    machine: Machine, tmp_path: Path
) -> None:
    """By the command, which prints what the job waits for and then its reason."""
    spec = {"model_dir": "/proc/out", "limits": {"requeue_s": 4}}
    ended = machine.everstep("run", str(document(tmp_path, **spec)))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    why = "/proc/out: No such file or directory"
    assert f"the storage: {why}" in ended.stdout, "what it waits for"
    assert f"could not be written for 4 s: {why}" in ended.stdout.splitlines()[-1]
    assert "restart" not in ended.stdout
    assert machine.processes() == []
