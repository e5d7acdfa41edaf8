"""One job does what delays its observers; the jobs beside it notice nothing.

Only real processes are hard to look at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Rehearsal, gist, records, small

STEPS = 40
SCRIPT = """
import os, pathlib, struct, sys
folder = pathlib.Path("out/ckpt")
again = (folder / "latest").exists()
if not again:
    (folder / "checkpoint-7").mkdir(parents=True)
    for name in ("latest", "latest_checkpointed_iteration.txt", "step_9.pt", "last.ckpt"):
        os.mkfifo(folder / name)
    os.mkfifo(folder / "checkpoint-7" / "trainer_state.json")
    (folder / "step_8.pt").symlink_to("/dev/zero")
    header = b'{"w": {"data_offsets": [0, Infinity]}}'
    (folder / "step_6.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
for _ in range(50):
    print("a" * 4000 + "!", flush=True)
sys.exit(0 if again else 3)
"""
ENDLESS = "(a+)+"
HUGE = "9" * 26
BEYOND_BOUNDS = f"""
import os, pathlib, sys
if os.environ["EVERSTEP_GENERATION"] == "1":
    folder = pathlib.Path("out/ckpt")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step_{HUGE}.pt").write_bytes(b"x")
    (folder / os.fsdecode(b"step_7\\xff.pt")).write_bytes(b"x")
    print("step 3", flush=True)
    print("step {HUGE}", flush=True)
    words = '{{"message": "OSError: cannot open data-\\\\udcff.bin"}}'
    pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(words)
    sys.exit(3)
print("step 4", flush=True)
"""
"""Steps that no training counts to, and a file's name that is no UTF-8 among the last words."""


def hostile(folder: Path) -> dict[str, Any]:
    """Its checkpoints are pipes, its patterns go back and try again for ever."""
    rules = [
        {"match": {"log": f"{ENDLESS}$"}, "action": "fail", "why": "never found"},
        {"match": {"exception": f"({ENDLESS})*$"}, "action": "fail", "why": "never found"},
    ]
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "hostile"},
        "spec": {
            "command": ["python3", "-c", SCRIPT],
            "workdir": str(folder),
            "model_dir": str(folder / "out"),
            "checkpoints": {"path": str(folder / "out" / "ckpt")},
            "progress": {"log_pattern": f"{ENDLESS}=(?P<step>[0-9]+)"},
            "recovery": {"rules": rules},
        },
    }


@pytest.mark.long
async def test_a_job_that_is_hard_to_look_at_holds_up_nobody(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone", steps=STEPS)
    (tmp_path / "hostile").mkdir()
    async with Rehearsal(tmp_path / "r", nodes=3) as r:
        healthy = await r.submit(small(tmp_path / "job", "healthy", steps=STEPS))
        other = await r.submit(hostile(tmp_path / "hostile"))
        report = await r.report(other)
        assert report["status"] == "Completed", (report, r.summary())
        assert gist(report) == [("crash", "in_place", "success")]
        report = await r.report(healthy)
        assert (report["status"], gist(report)) == ("Completed", []), r.summary()
        assert r.newest("healthy") == 1
        assert final(tmp_path / "job") == expected
        assert await r.is_clean(tmp_path / "job", tmp_path / "hostile") == []


@pytest.mark.long
async def test_a_job_whose_numbers_and_texts_are_beyond_all_bounds_goes_on(tmp_path: Path) -> None:
    """Only here all of them together come from a script: as a line, a file's name and last words."""
    command = ["python3", "-c", BEYOND_BOUNDS]
    async with Rehearsal(tmp_path / "r", nodes=1) as r:
        job = hostile(tmp_path / "job")
        (tmp_path / "job").mkdir()
        job["spec"] = {**job["spec"], "command": command, "progress": {}, "recovery": {}}
        report = await r.report(await r.submit(job))
        assert report["status"] == "Completed", (report, r.summary())
        assert gist(report) == [("crash", "in_place", "success")]
        (record,) = records(report)
        assert "OSError: cannot open data-\N{REPLACEMENT CHARACTER}.bin" in record["reason"]
        assert await r.is_clean(tmp_path / "job") == []
