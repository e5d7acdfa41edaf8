"""Half a checkpoint, left by a script that is killed while it saves: an older step, step 0, or a named end.

Only a real SIGKILL leaves it, and only real files are renamed and not found again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.rehearsal import Rehearsal, records

SCRIPT = r"""
import io, os, signal, sys, time, zipfile
from pathlib import Path

folder, wholes, halves = Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3].split()
folder.mkdir(parents=True, exist_ok=True)
left = sorted(str(path.name) for path in folder.glob("*.pt"))
with (folder.parent / "starts").open("a") as starts:
    print(os.environ.get("EVERSTEP_RESUME_PATH", "anew").rpartition("/")[2], *left, file=starts)
if int(os.environ["EVERSTEP_GENERATION"]) > 1:
    sys.exit(0)
packed = io.BytesIO()
with zipfile.ZipFile(packed, "w") as file:
    file.writestr("data", "x" * 10000)
for name in wholes:
    (folder / name).write_bytes(packed.getvalue())
time.sleep(3 if wholes else 0)  # until what is whole was still for long enough
for name in halves:
    (folder / name).write_bytes(packed.getvalue()[:5000])
os.kill(os.getpid(), signal.SIGKILL)
"""


SET_ASIDE = ".everstep/set_aside/*.pt"
STOP, RENAMING = "the stop of the restart", "the renaming"
MOMENTS: dict[str, Callable[[Rehearsal, Path], bool]] = {
    STOP: lambda r, _: r.newest("demo") > 1,
    RENAMING: lambda _, folder: any(folder.glob(SET_ASIDE)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What the killed script leaves, and what comes of it."""

    wholes: str = ""
    halves: str
    starts: tuple[str, ...]  # what each found to resume from, and all that it found
    notes: tuple[str, ...] = ()  # in the notes of the restart
    ended: str = ""  # what the end says; it ends well if nothing


LEFT = {
    "the newest": Left(
        wholes="step_1.pt step_2.pt",
        halves="step_3.pt",
        starts=("anew", "step_2.pt step_1.pt step_2.pt"),
        notes=("set_aside/2-step_3.pt",),
    ),
    "all": Left(
        halves="step_1.pt step_2.pt",
        starts=("anew",),
        ended="no good checkpoint is left to resume from (there are: 2 is bad, 1 is bad)",
    ),
    "the only one": Left(
        wholes="last.pt",
        halves="last.pt",
        starts=("anew", "anew"),
        notes=(
            "the only checkpoint is bad: training starts from the beginning",
            "set_aside/2-last.pt",
        ),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "killed"),
    [(n, k) for n in LEFT for k in (None, STOP, RENAMING) if k != RENAMING or LEFT[n].notes],
)
async def test_half_a_checkpoint_is_never_resumed_from(
    name: str, killed: str | None, tmp_path: Path
) -> None:
    """Only this one has the whole way: a writer killed, its files judged, renamed and not found again.

    The worker is killed at the stop of the restart, or as soon as a checkpoint is renamed: whether it
    received the answer is unknown then.
    """
    left, folder = LEFT[name], tmp_path / "out" / "ckpt"
    command = [sys.executable, "-c", SCRIPT, str(folder), left.wholes, left.halves]
    async with Rehearsal(tmp_path / "r", nodes=1) as r:
        job = await r.submit(document(command, folder))
        if killed is not None:
            await r.until(lambda: MOMENTS[killed](r, folder), killed)
            r.worker.kill9()
            await r.worker.start()
        report = await r.report(job)
        starts = (folder.parent / "starts").read_text().splitlines()
        assert tuple(starts) == left.starts, r.summary()
        assert report["status"] == ("Failed" if left.ended else "Completed")
        assert left.ended in (report["reason"] or "")
        (restart,) = records(report)
        notes = " ".join(restart["notes"])
        assert [line for line in left.notes if line not in notes] == []
        assert len([*folder.glob(SET_ASIDE)]) == len(starts) - 1


def document(command: list[str], folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "demo"},
        "spec": {
            "command": command,
            "model_dir": str(folder.parent),
            "checkpoints": {"path": str(folder)},
        },
    }
