"""Checkpoints that must not be resumed: renamed, never deleted, and removed from trackers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everstep.agent.storage import set_aside
from everstep.agent.storage.checkpoints import scan
from everstep.protocol import wire
from tests.agent.pod import Pod, Refused
from tests.agent.storage import layouts
from tests.support.starving import without_descriptors

SET_ASIDE_FOLDER = Path(wire.FENCE_FOLDER, set_aside.SET_ASIDE)


def ensure(folder: Path, *names: str, resume: str | None, generation: int = 5) -> list[str]:
    moved, why = set_aside.ensure(
        folder,
        [str(folder / name) for name in names],
        resume=None if resume is None else str(folder / resume),
        generation=generation,
        require_stopped=lambda: None,
    )
    assert not why
    return [str(Path(path).relative_to(folder / SET_ASIDE_FOLDER)) for path in moved]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("layout", "tracker", "tracker_text"),
    [
        ("deepspeed", "latest", "global_step3"),
        ("megatron", "latest_checkpointed_iteration.txt", "3"),
    ],
)
def test_a_tracker_names_the_chosen_one_afterwards(
    layout: str, tracker: str, tracker_text: str, tmp_path: Path
) -> None:
    for step in (3, 4):
        layouts.save(layout, tmp_path, step)
    newer, chosen = (Path(saved["path"]) for saved in scan(str(tmp_path)))
    assert ensure(tmp_path, newer.name, resume=chosen.name) == [f"5-{newer.name}"]
    assert (tmp_path / tracker).read_text() == tracker_text
    assert [saved["step"] for saved in scan(str(tmp_path)) if saved["good"]] == [3]
    assert layouts.loads(layout, tmp_path / SET_ASIDE_FOLDER / f"5-{newer.name}", 4), (
        "it is whole where it is"
    )
    assert (tmp_path / SET_ASIDE_FOLDER / f"5-{tracker}").exists()


def test_without_one_to_resume_from_no_tracker_is_left(tmp_path: Path) -> None:
    layouts.save("deepspeed", tmp_path, 3)
    assert ensure(tmp_path, "global_step3", resume=None) == ["5-global_step3"]
    assert names(tmp_path) == [wire.FENCE_FOLDER]
    assert names(tmp_path / SET_ASIDE_FOLDER) == ["5-global_step3", "5-latest"]


def test_everything_of_that_name_goes_and_nothing_else(tmp_path: Path) -> None:
    for name in ("step_4.pt", "step_4.json", "step_40.pt", "step_3.pt", "notes.txt"):
        (tmp_path / name).write_text(name)
    assert ensure(tmp_path, "step_4.json", resume="step_3.pt") == ["5-step_4.json", "5-step_4.pt"]
    assert names(tmp_path) == [wire.FENCE_FOLDER, "notes.txt", "step_3.pt", "step_40.pt"]


def test_a_link_is_renamed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    layouts.save("lightning", tmp_path, 4)
    assert ensure(tmp_path, "last.ckpt", resume=None) == ["5-last.ckpt"]
    assert names(tmp_path) == [wire.FENCE_FOLDER, "epoch=0-step=4.ckpt"]


@pytest.mark.parametrize("name", ["../step_4.pt", "/etc/step_4.pt", "notes.txt", ".everstep"])
def test_what_is_no_checkpoint_of_the_folder_stays(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "saves"
    folder.mkdir()
    for path in (folder / "notes.txt", tmp_path / "step_4.pt"):
        path.write_text("kept")
    assert ensure(folder, name, resume=None) == []
    assert (folder / "notes.txt").exists()
    assert (tmp_path / "step_4.pt").exists()


def test_twice_is_as_good_as_once_whenever_it_was_interrupted(tmp_path: Path) -> None:
    for step in (3, 4, 5):
        layouts.save("deepspeed", tmp_path, step)
    newer = ("global_step5", "global_step4")
    (tmp_path / SET_ASIDE_FOLDER).mkdir(parents=True)
    (tmp_path / "global_step5").rename(tmp_path / SET_ASIDE_FOLDER / "5-global_step5")
    both = ["5-global_step4", "5-global_step5"]
    assert ensure(tmp_path, *newer, resume="global_step3") == both
    assert ensure(tmp_path, *newer, resume="global_step3") == both
    assert ensure(tmp_path, resume="global_step3") == both
    assert names(tmp_path) == [wire.FENCE_FOLDER, "global_step3", "latest"]
    assert (tmp_path / "latest").read_text() == "global_step3"


def test_who_names_none_changes_nothing(tmp_path: Path) -> None:
    layouts.save("deepspeed", tmp_path, 3)
    before = names(tmp_path)
    assert ensure(tmp_path, resume=None) == []
    assert names(tmp_path) == before


def test_the_same_name_again_takes_the_place_of_none(tmp_path: Path) -> None:
    for generation in (5, 6):
        layouts.save("deepspeed", tmp_path, 3)
        expected_names = [f"{generation}-global_step3"]
        assert (
            ensure(tmp_path, "global_step3", resume=None, generation=generation) == expected_names
        )
    assert "5-global_step3" in names(tmp_path / SET_ASIDE_FOLDER)


def test_what_cannot_be_renamed_stays_and_is_said(tmp_path: Path) -> None:
    layouts.save("deepspeed", tmp_path, 3)
    with without_descriptors(os.getpid()):
        moved, why = set_aside.ensure(
            tmp_path,
            [str(tmp_path / "global_step3")],
            resume=None,
            generation=5,
            require_stopped=lambda: None,
        )
    assert (moved, why) == ([], "Too many open files")
    assert (tmp_path / "global_step3").is_dir()


def test_a_folder_of_ours_that_is_somebodys_file_is_said(tmp_path: Path) -> None:
    layouts.save("deepspeed", tmp_path, 3)
    (tmp_path / wire.FENCE_FOLDER).write_text("somebody's own")
    moved, why = set_aside.ensure(
        tmp_path,
        [str(tmp_path / "global_step3")],
        resume=None,
        generation=5,
        require_stopped=lambda: None,
    )
    assert (moved, bool(why)) == ([], True)
    assert (tmp_path / "global_step3").is_dir()


def test_nothing_is_renamed_while_ranks_may_run_and_by_no_older_generation(
    pod: Pod, tmp_path: Path
) -> None:
    saves = tmp_path / "saves"
    saves.mkdir()
    layouts.save("deepspeed", saves, 3)

    def ask(generation: int) -> None:
        command: wire.SetAsideCommand = {
            "generation": generation,
            "path": str(saves),
            "checkpoints": [str(saves / "global_step3")],
            "pattern": None,
            "resume": None,
        }
        pod.ask("POST", wire.SET_ASIDE, command)

    pod.runs("import time\ntime.sleep(60)", generation=2, checkpoints_path=str(saves))
    for generation in (1, 2, 3):
        with pytest.raises(Refused) as refused:
            ask(generation)
        assert refused.value.status == wire.STALE
    pod.stop(4)
    pod.stopped(4)
    assert (saves / "global_step3").is_dir()
    ask(4)
    assert not (saves / "global_step3").exists()


class Began(Exception):
    """Ranks of the generation have begun."""


@pytest.mark.parametrize("changes", range(3))
def test_nothing_is_set_aside_any_more_once_the_ranks_of_its_generation_have_begun(
    tmp_path: Path, changes: int
) -> None:
    """Slow storage carries out the changes late: what they save under the same names is theirs."""
    for name in ("step_2.pt", "step_3.pt", "step_4.pt"):
        (tmp_path / name).touch()
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("4")
    left = changes

    def require_stopped() -> None:
        nonlocal left
        if not left:
            tracker.write_text("3")
            raise Began
        left -= 1

    newer = [str(tmp_path / name) for name in ("step_4.pt", "step_3.pt")]
    with pytest.raises(Began):
        set_aside.ensure(
            tmp_path,
            newer,
            resume=str(tmp_path / "step_2.pt"),
            generation=5,
            require_stopped=require_stopped,
        )
    assert tracker.read_text() == "3"
    assert (tmp_path / "step_4.pt").exists() == (changes < 2)
    assert (tmp_path / "step_3.pt").exists()
