"""Complete checkpoints are found, unfinished ones are not."""

from __future__ import annotations

import gc
import json
import os
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.agent.storage import checkpoint_formats, checkpoints, fence, space
from everstep.agent.storage.checkpoints import CheckpointWatch, scan
from everstep.protocol import wire
from tests.agent.pod import TELL, Pod
from tests.support.starving import without_descriptors


def steps(folder: Path, kind: str = "auto") -> list[int | None]:
    return [saved["step"] for saved in scan(str(folder), kind) if saved["good"]]


def bad(folder: Path, kind: str = "auto") -> list[int | None]:
    return [saved["step"] for saved in scan(str(folder), kind) if not saved["good"]]


def cut(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def zipped(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 1000)
    return path


def tensors(path: Path) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 16)
    return path


def text(path: Path) -> Path:
    path.write_text(json.dumps({"step": 1, "weights": [0.5] * 50}))
    return path


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("step-10.pt", zipped),
        ("epoch=1-step=10.ckpt", zipped),
        ("step_10.npz", zipped),
        ("model-step10.safetensors", tensors),
        ("step-10.json", text),
        ("checkpoint-10.pth", zipped),
        ("iter_0000010.pt", zipped),
    ],
)
def test_file_counts_at_once_when_it_is_whole_and_never_when_it_is_cut(
    tmp_path: Path, name: str, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path / name)
    (saved,) = scan(str(tmp_path))
    assert saved["step"] == 10
    assert saved["path"] == str(path)
    assert saved["bytes"] == path.stat().st_size
    assert saved["at"] == path.stat().st_mtime
    assert saved["good"]
    cut(path)
    assert steps(tmp_path) == []
    assert bad(tmp_path) == [10]


# What the name says: the step, or by which number it is newer than others.
NAMES_AND_STEPS: tuple[tuple[str, int | None, int | None], ...] = (
    ("model-step_200.pt", 200, 200),
    ("epoch=1-step=200.ckpt", 200, 200),
    ("checkpoint_200.pth.tar", 200, 200),
    ("CKP-3_1875.ckpt", None, 3_000_001_875),
    ("mindformers_rank_0-12_40.safetensors", None, 12_000_000_040),
    ("ckpt-3_1875.ckpt", None, 3_000_001_875),
    ("epoch_3.pth", None, 3),
    ("epoch12.pt", None, 12),
    ("model_12.pth", None, 12),
    ("my_net-0012.pt", None, 12),
    ("last.pt", None, None),
    ("snapshot.pt", None, None),
    ("lenet_latest.ckpt", None, None),
    ("checkpoint.pth.tar", None, None),
)


@pytest.mark.parametrize(
    ("name", "step", "number"), NAMES_AND_STEPS, ids=[row[0] for row in NAMES_AND_STEPS]
)
def test_a_name_says_its_step_or_which_is_newer(
    tmp_path: Path, name: str, step: int | None, number: int | None
) -> None:
    make = tensors if name.endswith(".safetensors") else zipped
    path = make(tmp_path / name)
    (saved,) = scan(str(tmp_path))
    assert (saved["step"], saved["number"], saved["path"]) == (step, number, str(path))
    cut(path)
    assert (steps(tmp_path), bad(tmp_path)) == ([], [step])


@pytest.mark.parametrize(
    "names",
    [
        ("epoch_3.pth", "epoch_10.pth"),
        ("CKP-2_1875.ckpt", "CKP-3_5.ckpt"),
        ("model_9.pth", "model_10.pth"),
        ("last.pt", "epoch_1.pt"),
        ("last.pt", "model_1.pt"),
        ("epoch_7.pt", "step_5.pt"),
        ("snapshot.pt", "last.pt"),
    ],
)
def test_the_greater_number_is_newer_and_what_tells_more_comes_first(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for at, name in enumerate(names):
        os.utime(zipped(tmp_path / name), (1_000 + at, 1_000 + at))
    assert [Path(saved["path"]).name for saved in scan(str(tmp_path))] == [*reversed(names)]


def test_without_a_number_the_newer_one_is_that_which_was_written_last(tmp_path: Path) -> None:
    last = zipped(tmp_path / "last.pt")
    os.utime(last, (1_000, 1_000))
    (before,) = scan(str(tmp_path))
    zipped(last)
    (after,) = scan(str(tmp_path))
    assert (before["at"], before["at"] < after["at"]) == (1_000, True)


@pytest.mark.parametrize(
    "name",
    [
        *("step-1.json.tmp", "step-1.json.part", ".step-1.json", "notes.json"),
        *("resnet_50.pt", "llama3.pt", "model-00001-of-00002.safetensors", "best_model.pt"),
        *("model_best.pth.tar", "optimizer.pt", "rng_state_0.pth", "rank_0.pt", "latest"),
        *("last.log", "model_12.txt"),
    ],
)
def test_other_files_are_none(tmp_path: Path, name: str) -> None:
    text(tmp_path / name)
    assert scan(str(tmp_path)) == []


def test_a_name_that_leads_nowhere_hides_no_other(tmp_path: Path) -> None:
    """`last.pt` is often a link, and what it named may be gone; a file may go while we look, too."""
    zipped(tmp_path / "step_5.pt")
    (tmp_path / "last.pt").symlink_to("removed.pt")
    assert steps(tmp_path) == [5]


def test_a_link_counts_as_what_it_leads_to_in_the_folder(tmp_path: Path) -> None:
    link_path, folder = tmp_path / "named", tmp_path / "disk" / "saves"
    folder.mkdir(parents=True)
    link_path.symlink_to(folder)  # by who wrote the document
    zipped(folder / "abc.pt")
    (folder / "last.pt").symlink_to("abc.pt")
    (folder / "step_7").mkdir()
    (folder / "step_7" / "model.pt").symlink_to(folder / "abc.pt")
    (folder / "step_7" / "around").symlink_to(".")
    scan_result = scan(str(link_path))
    assert [saved["path"] for saved in scan_result] == [
        str(link_path / "step_7"),
        str(link_path / "last.pt"),
    ]
    cut(folder / "abc.pt")
    assert steps(link_path) == []


def test_a_link_out_of_the_folder_counts_by_name_and_time_and_is_not_opened(tmp_path: Path) -> None:
    folder, outside = tmp_path / "saves", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "model.pt").write_bytes(b"nothing that could be read as a checkpoint")
    for name, target in (("step_5.pt", outside / "model.pt"), ("step_6", outside)):
        (folder / name).symlink_to(target)
        assert steps(folder) == []
    old = time.time() - 5
    for path in (outside / "model.pt", outside):
        os.utime(path, (old, old))
    assert steps(folder) == [6, 5]
    assert steps(folder, "dcp") == []


# What is no file, and would keep whoever opens it waiting, or busy.
NO_FILES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("put", NO_FILES.values(), ids=NO_FILES)
@pytest.mark.parametrize(
    "name",
    [
        *("latest_checkpointed_iteration.txt", "latest", "step_9.pt", "step_9.json", "last.pt"),
        *("checkpoint-5/trainer_state.json", "step_3/.metadata", "step_3/pipe.safetensors"),
    ],
)
def test_nobody_waits_for_what_is_no_file(
    tmp_path: Path, name: str, put: Callable[[Path], object]
) -> None:
    (tmp_path / "step_3").mkdir()
    zipped(tmp_path / "step_3" / "model.pt")
    (tmp_path / "checkpoint-5").mkdir()
    zipped(tmp_path / "checkpoint-5" / "training_args.bin")
    zipped(tmp_path / "step_4.pt")
    put(tmp_path / name)
    assert steps(tmp_path)[0] == 4


@pytest.mark.parametrize(
    "text",
    [
        '{"global_step": Infinity}',
        '{"global_step": NaN}',
        "[" * 100_000,
        "[7]",
        '{"global_step": 7' + " " * checkpoint_formats.STATE_MAX + "}",
    ],
    ids=["infinite", "nan", "deep", "list", "large"],
)
def test_a_state_that_nobody_can_read_hides_no_other(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    tensors(folder / "model.safetensors")
    (folder / "trainer_state.json").write_text(text)
    zipped(tmp_path / "step_5.pt")
    assert steps(tmp_path) == [5]


@pytest.mark.parametrize("header", ['{"w": {"data_offsets": [0, Infinity]}}', "[" * 100_000])
def test_a_header_that_nobody_can_read_hides_no_other(tmp_path: Path, header: str) -> None:
    (tmp_path / "step_9.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    zipped(tmp_path / "step_5.pt")
    assert steps(tmp_path) == [5]


def test_newest_comes_first_and_no_folder_is_no_checkpoint(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        text(tmp_path / f"step-{step}.json")
    assert steps(tmp_path) == [10, 9, 2]
    assert scan(str(tmp_path / "nowhere")) == []


def test_folder_of_torch_counts_with_its_metadata_and_every_file_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "step-5"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"data")
    (folder / "__1_0.distcp").write_bytes(b"data")
    old = time.time() - 60
    assert steps(tmp_path, "dcp") == []
    (folder / ".metadata").write_bytes(b"\x80__0_0.distcp__1_0.distcp.")
    assert steps(tmp_path) == [5]
    (folder / "__1_0.distcp").unlink()
    os.utime(folder / "__0_0.distcp", (old, old))
    assert steps(tmp_path) == []


@pytest.mark.parametrize(
    ("tracker", "tracker_text", "name"),
    [
        ("latest_checkpointed_iteration.txt", "20", "iter_{:07d}"),
        ("latest", "global_step20", "global_step{}"),
    ],
)
def test_tracker_says_up_to_where_everything_is_complete(
    tmp_path: Path, tracker: str, tracker_text: str, name: str
) -> None:
    for step in (10, 20, 30):
        folder = tmp_path / name.format(step)
        folder.mkdir()
        zipped(folder / "model.pt")
    (tmp_path / tracker).write_text(tracker_text)
    assert steps(tmp_path) == [20, 10]


def test_folder_of_a_trainer_counts_with_its_state(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    tensors(folder / "model.safetensors")
    (folder / "trainer_state.json").write_text('{"global_step": 7}')
    assert steps(tmp_path) == [7]
    cut(folder / "model.safetensors")
    assert steps(tmp_path) == []


def test_what_a_trainer_writes_before_its_state_is_no_checkpoint_yet(tmp_path: Path) -> None:
    """In the order in which it does; another rank saves its random numbers meanwhile."""
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    for name in ("rng_state_1.pth", "config.json", "generation_config.json", "model.safetensors"):
        {".json": text, ".pth": zipped}.get(Path(name).suffix, tensors)(folder / name)
        assert steps(tmp_path) == []
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"):
        zipped(folder / name)
        assert steps(tmp_path) == []
    (folder / "trainer_state.json").write_text('{"global_step": 7}')
    assert steps(tmp_path) == [7]


def test_file_that_says_nothing_of_itself_counts_once_it_has_settled(tmp_path: Path) -> None:
    path = tmp_path / "step-3.weights"
    path.write_bytes(b"data")
    assert steps(tmp_path) == []
    old = time.time() - 5
    os.utime(path, (old, old))
    assert steps(tmp_path) == [3]


def test_file_that_says_nothing_and_was_touched_just_before_its_writer_ended_never_counts(
    tmp_path: Path,
) -> None:
    (tmp_path / "step-1.weights").write_bytes(b"x" * 10)
    (tmp_path / "step-2.weights").write_bytes(b"x" * 10)
    ended = time.time() - 60
    os.utime(tmp_path / "step-1.weights", (ended - 60, ended - 60))
    os.utime(tmp_path / "step-2.weights", (ended - 0.5, ended - 0.5))
    assert [saved["step"] for saved in scan(str(tmp_path))] == [2, 1]
    scan_result = scan(str(tmp_path), "auto", [(ended, ended)])
    assert [(saved["step"], saved["good"]) for saved in scan_result] == [(2, False), (1, True)]


def test_a_checkpoint_that_is_not_good_comes_with_the_reason_in_words(tmp_path: Path) -> None:
    ended = time.time() - 60
    for step, changed_at in ((1, ended - 60), (2, ended), (3, time.time())):
        path = tmp_path / f"step_{step}.weights"
        path.write_bytes(b"x")
        os.utime(path, (changed_at, changed_at))
    cut(zipped(tmp_path / "step_4.pt"))
    listed = scan(str(tmp_path), ended_between=[(ended, ended)])
    assert [(saved["step"], saved["good"], saved["doubt"]) for saved in listed] == [
        (4, False, "step_4.pt is cut off"),
        (3, False, "it changed a moment ago"),
        (2, False, "its writer ended within moments of the last change"),
        (1, True, ""),
    ]


def test_watch_sees_for_itself_what_has_settled(tmp_path: Path) -> None:
    writers: set[Path] = set()
    watch = CheckpointWatch(str(tmp_path), "auto", lambda path: path in writers)
    path = tmp_path / "step-3.weights"
    path.write_bytes(b"data")
    ahead = time.time() + 3_000  # of a storage whose clock is wrong
    os.utime(path, (ahead, ahead))
    assert watch.newest(100.0) is None
    assert watch.newest(100.5) is None
    path.write_bytes(b"more data")
    assert watch.newest(101.2) is None
    writers.add(path)
    assert watch.newest(103.0) is None
    writers.clear()
    newest = watch.newest(103.0)
    assert newest is not None
    assert newest["step"] == 3


def test_the_files_of_one_checkpoint_settle_together(tmp_path: Path) -> None:
    folder = tmp_path / "step-3"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.weights").write_bytes(b"data")
    watch = CheckpointWatch(str(tmp_path), "auto", lambda _: False)
    assert watch.newest(100.0) is None
    assert watch.newest(101.0) is not None


def test_a_watch_keeps_nothing_of_checkpoints_that_are_gone(tmp_path: Path) -> None:
    """A run saves for weeks, in hundreds of files each time."""
    watch, ticks = CheckpointWatch(str(tmp_path), "auto", lambda _: False), 100.0
    for step in range(1, 4):
        (tmp_path / f"step-{step}.weights").write_bytes(b"data")
        (tmp_path / f"step-{step - 1}.weights").unlink(missing_ok=True)
        watch.newest(ticks)
        newest = watch.newest(ticks + 1.0)
        ticks += 2.0
        assert newest is not None
        assert newest["step"] == step
    gc.collect()
    items = [one for one in gc.get_objects() if isinstance(one, checkpoint_formats.Item)]
    names = {item.path.name for item in items if item.path.parent == tmp_path}
    assert names == {"step-3.weights"}


def test_agent_tells_the_newest_checkpoint_of_the_run(pod: Pod, tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    saves.mkdir()
    script = (
        f"{TELL}\nimport sys, time\n"
        f"open({str(saves / 'step-4.json')!r}, 'w').write('{{}}')\n"
        f"open({str(saves / 'step-9.json')!r}, 'w').write('{{')\nsys.exit(0)"
    )
    pod.run(script, checkpoints_path=str(saves))
    state = pod.until(lambda s: s["run"] and s["run"]["checkpoint"])
    assert state["run"] is not None
    assert state["run"]["checkpoint"] is not None
    assert state["run"]["checkpoint"]["step"] == 4


def test_file_that_a_rank_has_open_for_writing_does_not_count(pod: Pod, tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    saves.mkdir()
    pod.runs(
        f"import os, time\nfile = open({str(saves / 'step-4.weights')!r}, 'w')\n"
        "file.write('data')\nfile.flush()\nprint('step 1', flush=True)\n"
        "while not os.path.exists('close'): time.sleep(0.01)\nfile.close()\ntime.sleep(60)",
        checkpoints_path=str(saves),
    )
    pod.until(lambda s: s["run"] and s["run"]["step"])
    assert pod.state()["run"]["checkpoint"] is None  # type: ignore[index]  # it runs
    (pod.home / "close").touch()
    state = pod.until(lambda s: s["run"] and s["run"]["checkpoint"])
    assert state["run"] is not None
    assert state["run"]["checkpoint"] is not None
    assert state["run"]["checkpoint"]["step"] == 4


def test_pace_is_the_usual_time_between_those_that_were_noticed() -> None:
    pace = checkpoints.Pace(saved(1))
    for step, now in ((1, 0.0), (2, 100.0), (2, 101.0), (3, 110.0)):
        pace.saw(saved(step), now)
    assert (pace.newest_at, pace.usual_s) == (110.0, None), "two of them say little"
    for step, now in ((4, 120.0), (5, 150.0), (6, 160.0)):
        pace.saw(saved(step), now)
    assert (pace.newest_at, pace.usual_s) == (160.0, 10.0)


def saved(step: int) -> wire.SavedState:
    return {
        "step": step,
        "number": None,
        "path": f"step_{step}",
        "bytes": 1,
        "at": 0.0,
        "good": True,
        "is_sure": True,
        "doubt": "",
    }


def test_free_space_is_that_of_the_folder_to_be(tmp_path: Path) -> None:
    disk_stat = os.statvfs(tmp_path)
    free = space.free_bytes(space.nearest(tmp_path / "not" / "yet"))
    assert free == pytest.approx(disk_stat.f_bavail * disk_stat.f_frsize, rel=0.2), (
        "others write meanwhile"
    )


def test_who_has_no_descriptors_does_not_know_what_is_there(tmp_path: Path) -> None:
    """Taking that for no checkpoint would start the training from step 0."""
    zipped(tmp_path / "step_1.pt")
    watch = CheckpointWatch(str(tmp_path), "auto", lambda _: False)
    with without_descriptors(os.getpid()):
        with pytest.raises(OSError, match="Too many open files"):
            scan(str(tmp_path))
        assert watch.newest(0.0) is None
    assert steps(tmp_path) == [1]


def test_whoever_asks_is_told_what_is_complete_and_not_cut_off(pod: Pod, tmp_path: Path) -> None:
    ended = time.time() - 60
    for step, before_s in ((1, 60.0), (2, 0.5)):
        path = tmp_path / f"step-{step}.weights"
        path.write_bytes(b"x" * 10)
        os.utime(path, (ended - before_s, ended - before_s))

    def steps(*times: wire.TimeSpan) -> list[int]:
        query = {
            "path": str(tmp_path),
            "format": "auto",
            "ended_between": times,
            "is_over": False,
        }
        answer = pod.ask("POST", wire.CHECKPOINTS, query)["checkpoints"]
        return [one["step"] for one in answer if one["good"]]

    assert steps() == [2, 1]
    assert steps((ended, ended)) == [1]
    assert steps((ended - 100, ended - 50)) == [2], "the whole of the time counts"


@pytest.mark.parametrize("ahead_s", [-3.0, 0.0, 60.5, 3_600.0])
@pytest.mark.parametrize("below", ["", "out/saves"], ids=["in the fenced folder", "below it"])
def test_the_clock_of_the_storage_is_measured_by_the_fence(
    tmp_path: Path, ahead_s: float, below: str
) -> None:
    """A file that was written when its writer ended may be cut off, whatever the storage says of its time."""
    written = fence.write(str(tmp_path), fence.Fence("demo", "run", "cluster", 1))
    fenced_at = json.loads(written.read_text())["written_at"]
    os.utime(written, (fenced_at + ahead_s,) * 2)
    folder = tmp_path / below
    folder.mkdir(parents=True, exist_ok=True)
    ended = fenced_at - 600
    for step, at in ((1, ended - 200), (2, ended)):
        path = folder / f"step_{step}.weights"
        path.write_bytes(b"x")
        os.utime(path, (at + ahead_s,) * 2)
    listed = scan(str(folder), ended_between=[(ended, ended)])
    assert [(saved["step"], saved["good"]) for saved in listed] == [(2, False), (1, True)]


def test_a_fence_without_its_time_leaves_the_clock_of_the_storage_unknown(tmp_path: Path) -> None:
    written = fence.write(str(tmp_path), fence.Fence("demo", "run", "cluster", 1))
    content = json.loads(written.read_text())
    for unknown in (None, "yesterday", True, [1]):
        written.write_text(json.dumps({**content, "written_at": unknown}))
        assert fence.clock_ahead_s(tmp_path) == 0.0
    assert fence.clock_ahead_s(tmp_path.parent / "elsewhere") == 0.0
