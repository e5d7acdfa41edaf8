"""Storage that hangs in the middle of a reading: neither an agent nor its warden waits for it for long."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.agent import build
from everstep.agent.observing.samples import SHARE
from everstep.agent.server import CONNECTIONS_MAX
from everstep.agent.storage import fence
from everstep.agent.storage.fence import Fence
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, Refused, exits, is_running, signal_to, until
from tests.agent.storage import layouts
from tests.support.patience import HUNG_S
from tests.support.starving import away

HANGS = """
_at_once = _opened

@contextlib.contextmanager
def _opened(folder):
    while os.path.exists(folder + "-hangs"):
        time.sleep(0.02)
    with _at_once(folder) as handle:
        yield handle
"""
"""A hanging file system: opening a fence hangs as long as a file beside it exists."""

IS_LATE = """
_at_once = handle

def handle(path, *more, **told):
    found = _at_once(path, *more, **told)
    if os.path.exists(f"{path}-late"):
        with open(f"{path}-late") as pipe:
            pipe.read()
    return found
"""
"""Opening any file comes late, where beside it is a pipe: when its writer closes that."""


IS_SLOW = """
_at_once = storage_fault

def storage_fault(path, **told):
    import time
    while os.path.exists(f"{path}-slow"):
        time.sleep(0.02)
    return _at_once(path, **told)
"""
"""The look at a folder when a rank has ended takes as long as a file beside it exists."""


@pytest.fixture(scope="module")
def slow_pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent, with that."""
    folder = tmp_path_factory.mktemp("slow")
    for source in build.sources():
        copy = folder / source.relative_to(build.PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    for name, text in (("fence", HANGS), ("files", IS_LATE), ("space", IS_SLOW)):
        with (folder / "agent" / "storage" / f"{name}.py").open("a") as file:
            file.write(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "PACKAGE", folder)
        return build.build(folder / "agent.pyz")


@pytest.fixture
def slow(slow_pyz: Path, tmp_path: Path) -> Iterator[Pod]:
    pod = Pod(slow_pyz, tmp_path / "home", f"demo-0-{uuid.uuid4().hex[:8]}").start()
    yield pod
    pod.end()


def test_a_folder_that_hangs_hides_no_newer_fence_in_another(slow: Pod, tmp_path: Path) -> None:
    model, saved = str(tmp_path / "model"), str(tmp_path / "saved")
    for folder in (model, saved):
        fence.write(folder, Fence("demo", "r1", "", 1))
    (rank,) = slow.runs(FOREVER, model_dir=model, checkpoints_path=saved, fence_s=HUNG_S)
    Path(f"{model}-hangs").touch()
    signal_to(slow.agent.pid, signal.SIGSTOP)
    fence.write(saved, Fence("demo", "r1", "", 2))
    until(lambda: not is_running(rank), what="the end of the rank")
    signal_to(slow.agent.pid, signal.SIGCONT)
    (fact,) = exits(slow.until(exits))
    assert "generation 2 is in the fence" in fact["message"]


def test_a_folder_that_hangs_is_one_that_cannot_be_read(slow: Pod, tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    fence.write(model, Fence("demo", "r1", "", 1))
    (rank,) = slow.runs(FOREVER, model_dir=model, fence_s=1.5)
    Path(f"{model}-hangs").touch()
    until(lambda: not is_running(rank), what="the end of the rank")
    (fact,) = exits(slow.until(exits))
    assert "no poll and no fence for 1.5 s" in fact["message"]


def test_nothing_is_started_or_waited_for_where_storage_hangs(slow: Pod, tmp_path: Path) -> None:
    """Repeated requests, as a worker sends them, hold no connection for good."""
    model = str(tmp_path / "model")
    hangs = Path(f"{model}-hangs")
    hangs.touch()
    fence_order = {"generation": 1, "run": "r1", "cluster": "", "folders": [model]}
    error_text = f"the storage of {model} does not answer"
    for _ in range(CONNECTIONS_MAX // 2 + 1):
        for attempt in (
            lambda: slow.ask("POST", wire.FENCE, fence_order),
            lambda: slow.run(FOREVER, model_dir=model),
        ):
            with pytest.raises(Refused, match=error_text) as refused:
                attempt()
            assert refused.value.status == wire.NO_STORAGE
    assert slow.marked() == []
    hangs.unlink()
    until(lambda: _is_written(slow, fence_order), what="the fence")
    slow.runs(FOREVER, model_dir=model)


def _is_written(pod: Pod, fence_order: object) -> bool:
    try:
        answer: wire.FenceAnswer = pod.ask("POST", wire.FENCE, fence_order)
    except Refused:
        return False
    return not answer["newer"] and answer["taken_by"] is None


LATE_S = 2.0


@pytest.mark.long
def test_a_look_that_had_to_wait_does_not_put_off_the_next(slow: Pod) -> None:
    """Looks are rare where they cost much of the processor; storage that answers late costs none of it."""
    metrics, late = slow.home / "n0.json", slow.home / "n0.json-late"
    shows(metrics, 37)
    slow.runs(FOREVER, devices=[0], metrics=str(metrics))
    until(lambda: is_silent(slow), what="no movement")
    os.mkfifo(late)
    with late.open("w"):  # somebody reads it: a look has begun
        late.unlink()
        shows(metrics, "vary")
        time.sleep(LATE_S)  # a busy disk; nothing to wait for
    looked = slow.state()["now"]
    state = slow.until(lambda s: s["run"] and (s["run"]["moved_at"] or 0.0) > looked)
    assert state["now"] - looked < SHARE * LATE_S / 2


def shows(path: Path, use: object) -> None:
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps({"devices": {"0": {"utilisation": use}}}))
    fresh.replace(path)


def is_silent(pod: Pod) -> bool:
    version = pod.state()["version"]
    return pod.state(version, 1.5)["version"] == version


def test_a_fault_of_storage_that_answers_late_follows_the_exit_that_it_explains(
    slow: Pod, tmp_path: Path
) -> None:
    saves = tmp_path / "saves"
    layouts.save("lightning", saves, 4)
    (rank,) = slow.runs(FOREVER, checkpoints_path=str(saves))
    slow.until(lambda state: state["run"] and state["run"]["checkpoint"])
    Path(f"{saves}-slow").touch()
    with away(saves):
        signal_to(rank, signal.SIGKILL)
        state = slow.until(exits)
        assert [fact["kind"] for fact in state["facts"]] == ["process.exit"]
        Path(f"{saves}-slow").unlink()
        state = slow.until(lambda state: len(state["facts"]) > 1)
        assert [fact["kind"] for fact in state["facts"]] == ["process.exit", "storage.missing"]
