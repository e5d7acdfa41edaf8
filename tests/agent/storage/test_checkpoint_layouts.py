"""What training frameworks leave in a folder: the newest that loads is chosen, whatever the rest is."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.agent.storage import checkpoint_formats, checkpoints
from everstep.agent.storage.checkpoints import CheckpointWatch, scan
from everstep.protocol import wire
from tests.agent.storage import layouts
from tests.support.patience import HUNG_S

SEED = 20
KILLS = 50

ALL = pytest.mark.parametrize("layout", layouts.LAYOUTS)


def good(folder: Path) -> list[int | None]:
    return [saved["step"] for saved in scan(str(folder)) if saved["good"] and saved["step"]]


def bad(folder: Path) -> list[int | None]:
    return [saved["step"] for saved in scan(str(folder)) if not saved["good"] and saved["step"]]


def newest(folder: Path) -> wire.SavedState | None:
    return next((saved for saved in scan(str(folder)) if saved["good"]), None)


def saved(layout: str, folder: Path, *steps: int) -> Path:
    """The path of the last."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        layouts.save(layout, folder, step)
    return Path(scan(str(folder))[0]["path"])


# -- Whole, and not whole -----------------------------------------------------------------------


@ALL
def test_what_a_framework_has_saved_counts_at_once(layout: str, tmp_path: Path) -> None:
    saved(layout, tmp_path, 7, 8)
    assert (good(tmp_path), bad(tmp_path)) == ([8, 7], [])


@pytest.mark.long
@ALL
def test_what_is_chosen_after_a_kill_at_any_moment_loads(layout: str, tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} {layout}")
    chosen = 0
    for _ in range(KILLS):
        at = chance.randrange(1, 120)
        words = (layouts.__file__, layout, str(tmp_path), str(chosen + 1), str(at))
        ended = subprocess.run([sys.executable, *words], timeout=HUNG_S, check=False)
        assert ended.returncode == -9
        newest_checkpoint = newest(tmp_path)
        if newest_checkpoint is None:
            assert chosen == 0, f"{layout}: seed {SEED}: nothing is left of step {chosen}"
            continue
        step = newest_checkpoint["step"]
        assert step is not None
        assert step >= chosen, f"{layout}: seed {SEED}: step {chosen} was whole"
        assert layouts.loads(layout, Path(newest_checkpoint["path"]), step), (
            f"{layout}: seed {SEED}"
        )
        chosen = step
    sys.stdout.write(f"\n{layout}: seed {SEED}, {KILLS} kills, reached step {chosen}\n")
    assert chosen > KILLS // 2


@pytest.mark.parametrize("pattern", ["*.pt", "*.distcp", "*.safetensors", "*.mdl", "epoch*.ckpt"])
def test_a_file_that_was_cut_off_afterwards_costs_one_step_back(
    pattern: str, tmp_path: Path
) -> None:
    """Its name is there, and everything else says that it is whole."""
    for layout in layouts.LAYOUTS:
        folder = tmp_path / layout
        path = saved(layout, folder, 3, 4)
        files = sorted(path.rglob(pattern)) if path.is_dir() else [path]
        if not any(file.match(pattern) for file in files):
            continue
        for file in files:
            whole = file.read_bytes()
            for length in (0, 2, 5, len(whole) // 2, len(whole) - 1):
                file.write_bytes(whole[:length])
                assert (good(folder), bad(folder)) == ([3], [4]), (file.name, length)
            file.write_bytes(whole)
        assert good(folder) == [4, 3]


@pytest.mark.parametrize("layout", ["deepspeed", "megatron", "torch", "trainer"])
def test_a_file_that_is_missing_costs_one_step_back(layout: str, tmp_path: Path) -> None:
    """One of several rank files, not the last: the total number is unknown."""
    path = saved(layout, tmp_path, 3, 4)
    file = next(
        one for one in sorted(path.rglob("*")) if one.suffix in (".pt", ".distcp", ".safetensors")
    )
    if layout == "deepspeed":
        file = path / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    file.unlink()
    assert (good(tmp_path), bad(tmp_path)) == ([3], [4])


@pytest.mark.parametrize(
    ("layout", "tracker"),
    [("deepspeed", "latest"), ("megatron", "latest_checkpointed_iteration.txt")],
)
def test_without_its_tracker_nobody_knows_whether_all_ranks_have_saved(
    layout: str, tracker: str, tmp_path: Path
) -> None:
    saved(layout, tmp_path, 3, 4)
    (tmp_path / tracker).unlink()
    assert (good(tmp_path), bad(tmp_path)) == ([], [4, 3])


@pytest.mark.parametrize(
    ("layout", "tracker", "tracker_text", "steps"),
    [
        ("deepspeed", "latest", "global_step9", [4, 3]),
        ("megatron", "latest_checkpointed_iteration.txt", "9", [4, 3]),
        ("deepspeed", "latest", "", [4, 3]),
        ("deepspeed", "latest", "global_step3", [3]),
        ("megatron", "latest_checkpointed_iteration.txt", "release", [4, 3]),
    ],
)
def test_a_tracker_that_names_what_is_not_there_hides_nothing_that_is(
    layout: str, tracker: str, tracker_text: str, steps: list[int], tmp_path: Path
) -> None:
    saved(layout, tmp_path, 3, 4)
    (tmp_path / tracker).write_text(tracker_text)
    assert good(tmp_path) == steps


def test_a_folder_of_a_trainer_with_the_files_of_deepspeed_or_torch_in_it(tmp_path: Path) -> None:
    for layout in ("deepspeed", "torch"):
        folder = tmp_path / layout
        inside = saved(layout, folder / "checkpoint-4", 4)
        (folder / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 4}')
        assert good(folder) == [4]
        next(file for file in inside.iterdir() if file.suffix in (".pt", ".distcp")).write_bytes(
            b""
        )
        assert (good(folder), bad(folder)) == ([], [4])


def test_a_folder_of_accelerate_needs_no_state_of_a_trainer(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-4"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(layouts.tensors(b"weights"))
    (folder / "random_states_0.pkl").write_bytes(b"state")
    old = time.time() - 5
    os.utime(folder / "random_states_0.pkl", (old, old))
    assert good(tmp_path) == [4]


def test_a_folder_that_is_called_like_a_trainers_is_one_only_beside_theirs(tmp_path: Path) -> None:
    """A script of one's own may save just a model: it is not to lose what it saved."""
    for step in (4, 8):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        assert step not in good(tmp_path)
        (folder / "model.safetensors").write_bytes(layouts.tensors(b"weights"))
        assert step in good(tmp_path)
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"global_step": 4}')
    assert (good(tmp_path), bad(tmp_path)) == ([4], [8])


@pytest.mark.parametrize(
    ("before", "files", "at_once"),
    [((0, 1), (0, 1), [8, 4]), ((0, 1), (0,), [4]), ((0,), (0, 1), [8, 4]), ((), (0,), [8])],
)
def test_where_the_checkpoint_before_has_more_ranks_only_time_tells(
    before: tuple[int, ...], files: tuple[int, ...], at_once: list[int], tmp_path: Path
) -> None:
    """The trainer of rank 0 does not wait for the random numbers of the others."""
    for step, ranks in ((4, before), (8, files)):
        for rank in ranks:
            folder = tmp_path / f"checkpoint-{step}"
            folder.mkdir(exist_ok=True)
            (folder / f"rng_state_{rank}.pth").write_bytes(layouts.zipped(b"numbers"))
            (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    ended = time.time()
    scan_result = scan(str(tmp_path), ended_between=[(ended, ended)])
    assert [saved["step"] for saved in scan_result if saved["good"]] == at_once
    old = time.time() - 5
    for path in tmp_path.glob("*/*"):
        os.utime(path, (old, old))
    assert good(tmp_path) == [8, 4][: 1 + bool(before)], "there may be fewer ranks now"


def test_a_shard_that_is_a_link_to_elsewhere_counts_by_its_length(tmp_path: Path) -> None:
    path = saved("torch", tmp_path / "saves", 4)
    shard, outside = path / "__1_0.distcp", tmp_path / "shard"
    shard.rename(outside)
    shard.symlink_to(outside)
    assert good(tmp_path / "saves") == [4]
    outside.write_bytes(b"cut")
    assert bad(tmp_path / "saves") == [4]


def test_metadata_that_is_no_pickle_of_torch_is_believed_by_the_names_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "step-5"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"data")
    for content in (b"\x80\x04\xff__0_0.distcp.", b"\x80\x04__0_0.distcp" + b"(" * 100_000 + b"."):
        (folder / ".metadata").write_bytes(content)
        assert good(tmp_path) == [5]
    (folder / ".metadata").write_bytes(b"\x80\x04__0_0.distcp")
    assert bad(tmp_path) == [5]


# -- At work on it ------------------------------------------------------------------------------


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@ALL
def test_one_that_somebody_writes_into_again_does_not_count_meanwhile(
    layout: str, tmp_path: Path
) -> None:
    """A second writer of the same step, or the first one that was not done."""
    path = saved(layout, tmp_path, 3, 4)
    watch = CheckpointWatch(str(tmp_path), "auto", lambda _: False)
    assert step_of(watch) == 4
    if path.is_file():
        whole = path.read_bytes()
        path.write_bytes(whole[:100])
        assert step_of(watch) == 3
        path.write_bytes(whole)
    else:
        (path / "weights.tmp").write_bytes(b"")
        assert step_of(watch) == 3
        (path / "weights.tmp").unlink()
    assert step_of(watch) == 4


def step_of(watch: CheckpointWatch) -> int | None:
    newest_checkpoint = watch.newest(100.0)
    return None if newest_checkpoint is None else newest_checkpoint["step"]


def test_two_writers_in_one_folder_are_told_apart_by_their_names(tmp_path: Path) -> None:
    saved("torch", tmp_path, 4)
    saved("lightning", tmp_path, 6)
    half = tmp_path / "step-7"
    half.mkdir()
    (half / "__0_0.distcp").write_bytes(b"data")
    assert (good(tmp_path), bad(tmp_path)) == ([6, 4], [7])


# -- Large ones ---------------------------------------------------------------------------------


class Count:
    """How often the work was done."""

    def __init__(self, work: Callable[..., checkpoint_formats.Verdict]) -> None:
        self.work = work
        self.times = 0

    def __call__(self, *arguments: object) -> checkpoint_formats.Verdict:
        self.times += 1
        return self.work(*arguments)


def test_what_has_not_changed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = Count(checkpoint_formats.check)
    monkeypatch.setattr(checkpoint_formats, "check", count)
    path = saved("trainer", tmp_path, 3, 4)
    verdicts, count.times = checkpoints.Verdicts(), 0
    for _ in range(3):
        scan(str(tmp_path), verdicts=verdicts)
    assert count.times == 2
    optimizer = path / "optimizer.pt"
    file_stat = optimizer.stat()
    optimizer.write_bytes(optimizer.read_bytes()[:-1] + b"x")
    os.utime(
        optimizer, ns=(file_stat.st_atime_ns, file_stat.st_mtime_ns)
    )  # as long and as old as it was
    scan(str(tmp_path), verdicts=verdicts)
    assert count.times == 3


def test_no_more_is_told_than_anybody_goes_back(tmp_path: Path) -> None:
    steps = range(1, checkpoints.LISTED_MOST + 10)
    for step in steps:
        layouts.save("lightning", tmp_path, step)
    assert good(tmp_path) == [*reversed(steps)][: checkpoints.LISTED_MOST]


def test_of_very_many_names_the_newest_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "NAMED_MOST", 5)
    for step in range(20):
        layouts.save("cerebras", tmp_path, step)
    assert good(tmp_path) == [19, 18, 17, 16]


def test_one_of_very_many_files_counts_by_its_name_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "FILES_MOST", 5)
    path = saved("trainer", tmp_path, 3)
    assert good(tmp_path) == [3]
    (path / "one_more.bin").write_bytes(b"data")
    assert (good(tmp_path), bad(tmp_path)) == ([], [3]), "it may be cut off"
    old = time.time() - 5
    os.utime(path, (old, old))
    assert good(tmp_path) == [3]
