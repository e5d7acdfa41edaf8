"""Device samples, and the vendor tool that returns them: real agents, made-up tools.

The long ones take several samples of a living agent, because a change has to differ from a flicker.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.observing.samples import SAMPLE_S, SAMPLE_S_LEAST, sample_s
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, until
from tests.support.patience import HUNG_S

STILL_S = 2.0
IO = "import time\nwhile True:\n    open('/dev/null', 'w').write('x'); time.sleep(0.05)\n"
WORK = "import time\nwhile True: sum(range(20_000)); time.sleep(0.001)\n"

Time = Callable[[wire.RunSeen], float | None]


def io_at(run: wire.RunSeen) -> float | None:
    at: float | None = run["io_at"]
    return at


def busy_at(run: wire.RunSeen) -> float | None:
    at: float | None = run["busy_at"]
    return at


def run_seen(pod: Pod) -> wire.RunSeen:
    run = pod.state()["run"]
    assert run is not None
    return run


def is_steady(pod: Pod, sign: Time, for_s: float = STILL_S / 2) -> bool:
    """Whether it is known, and older than that."""
    state = pod.state()
    at = sign(state["run"]) if state["run"] is not None else None
    return at is not None and state["now"] - at > for_s


def changes(pod: Pod, sign: Time) -> None:
    """It is newer than it was, twice."""
    for _ in range(2):
        is_newer(pod, sign, than=sign(run_seen(pod)) or 0.0)


def is_newer(pod: Pod, sign: Time, *, than: float) -> None:
    pod.until(lambda s: s["run"] is not None and (sign(s["run"]) or 0.0) > than)


def shows(pod: Pod, **utilisation: object) -> str:
    """A file in which devices show this: `d0=37`."""
    path, fresh = pod.home / "n0.json", pod.home / "n0.json.part"
    metrics = {name[1:]: {"utilisation": value} for name, value in utilisation.items()}
    fresh.write_text(json.dumps({"devices": metrics}))
    fresh.replace(path)
    return str(path)


# -- how often ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("still_s", "every_s"), [(None, SAMPLE_S), (600.0, SAMPLE_S), (2.0, 0.5), (0.1, SAMPLE_S_LEAST)]
)
def test_looks_come_in_a_quarter_of_the_time_but_not_too_often(
    still_s: float | None, every_s: float
) -> None:
    assert sample_s(still_s) == every_s


def test_a_run_that_is_judged_by_steps_shows_its_io_and_no_use_of_devices(pod: Pod) -> None:
    pod.runs(IO, devices=[0], metrics=shows(pod, d0="vary"))
    changes(pod, io_at)
    assert busy_at(run_seen(pod)) is None


def test_output_without_steps_is_told(pod: Pod) -> None:
    pod.runs("print('step 1'); print('validates'); time.sleep(HUNG)")
    pod.until(lambda s: s["run"] and s["run"]["output_at"])
    assert run_seen(pod)["step"] == 1


def test_signs_of_life_are_told_in_a_quarter_of_the_time_to_who_asks_for_quiet(pod: Pod) -> None:
    pod.runs(IO, still_s=STILL_S)
    state = pod.until(lambda s: s["run"] and s["run"]["io_at"])
    began = time.monotonic()
    later = pod.quietly(state["version"], quiet_s=20.0)
    assert (later["version"] > state["version"], later["news"] > state["version"]) == (True, False)
    assert time.monotonic() - began < 18.0


def test_who_wants_to_judge_is_told_what_is_seen_now(pod: Pod) -> None:
    pod.runs(IO, still_s=600.0)
    for _ in range(3):
        before = pod.until(lambda s: s["run"] and s["run"]["io_at"])["now"]
        time.sleep(2 * 0.05)  # the script writes so often
        fresh: wire.AgentState = pod.ask("GET", f"{wire.STATE}?since=-1&wait_s=0&fresh=1")
        assert fresh["run"] is not None
        assert (fresh["run"]["io_at"] or 0.0) > before


# -- processes and simulated devices ------------------------------------------------------------


def test_io_and_use_are_told_apart(pod: Pod) -> None:
    pod.runs(IO, still_s=STILL_S, devices=[0], metrics=shows(pod, d0=37))
    until(lambda: is_steady(pod, busy_at), what="a steady use")
    changes(pod, io_at)
    assert is_steady(pod, busy_at)


@pytest.mark.long
def test_the_io_of_a_child_counts(pod: Pod) -> None:
    script = f"import os, time\nif os.fork():\n    time.sleep(600)\n{IO}"
    pod.runs(script, still_s=STILL_S)
    changes(pod, io_at)


def test_who_does_nothing_is_still(pod: Pod) -> None:
    """A device without readings counts as used when its processes work."""
    pod.runs(FOREVER, still_s=STILL_S, devices=[0], metrics=str(pod.home / "none.json"))
    until(lambda: is_steady(pod, io_at) and is_steady(pod, busy_at), what="nothing")


@pytest.mark.long
def test_who_only_keeps_a_processor_busy_is_still(pod: Pod) -> None:
    pod.runs(WORK, still_s=STILL_S, devices=[0], metrics=str(pod.home / "none.json"))
    until(lambda: is_steady(pod, io_at) and is_steady(pod, busy_at), what="nothing")


@pytest.mark.long
def test_a_simulated_device_that_was_told_nothing_works_with_its_processes(pod: Pod) -> None:
    pod.runs(IO, still_s=STILL_S, devices=[0, 1], metrics=shows(pod, d2=37))
    changes(pod, busy_at)


@pytest.mark.long
def test_a_flicker_of_one_is_no_change_and_more_is_one(pod: Pod) -> None:
    path = shows(pod, d0=37, d1=0)
    pod.runs(FOREVER, still_s=STILL_S, devices=[0, 1], metrics=path)
    until(lambda: is_steady(pod, busy_at), what="a steady use")
    before = busy_at(run_seen(pod))
    shows(pod, d0=38, d1=1)
    until(lambda: is_steady(pod, busy_at, 1.5 * STILL_S), what="a steady use")
    assert busy_at(run_seen(pod)) == before
    shows(pod, d0=38, d1=40)
    until(lambda: (busy_at(run_seen(pod)) or 0.0) > (before or 0.0), what="a change")


@pytest.mark.long
def test_devices_that_the_file_names_speak_for_the_others(pod: Pod) -> None:
    pod.runs(IO, still_s=STILL_S, devices=[0, 1], metrics=shows(pod, d1=37))
    until(lambda: is_steady(pod, busy_at), what="a steady use")


@pytest.mark.long
def test_varying_is_a_change_at_each_sample(pod: Pod) -> None:
    pod.runs(FOREVER, still_s=STILL_S, devices=[0], metrics=shows(pod, d0="vary"))
    changes(pod, busy_at)


@pytest.mark.long
@pytest.mark.parametrize(
    "text", ['{"devices": [', '{"devices": {"0": {"utilisation": "much"}}}', "[]", '{"devices": 3}']
)
def test_of_a_file_that_cannot_be_read_nothing_is_known(pod: Pod, text: str) -> None:
    path = Path(shows(pod, d0=37))
    pod.runs(FOREVER, still_s=STILL_S, devices=[0], metrics=str(path))
    pod.until(lambda s: s["run"] and s["run"]["busy_at"])
    path.write_text(text)
    pod.until(lambda s: s["run"] and s["run"]["busy_at"] is None)
    assert io_at(run_seen(pod)) is not None
    shows(pod, d0=37)
    pod.until(lambda s: s["run"] and s["run"]["busy_at"])


def test_a_pipe_in_the_place_of_the_file_holds_up_nobody(pod: Pod) -> None:
    path = pod.home / "n0.json"
    os.mkfifo(path)
    pod.runs(IO, still_s=STILL_S, devices=[0], metrics=str(path))
    changes(pod, io_at)
    assert busy_at(run_seen(pod)) is None


@pytest.mark.long
def test_without_devices_no_use_is_known(pod: Pod) -> None:
    pod.runs(FOREVER, still_s=STILL_S, metrics=shows(pod, d0="vary"))
    until(lambda: is_steady(pod, io_at), what="no I/O")
    assert busy_at(run_seen(pod)) is None


@pytest.mark.long
def test_each_run_is_looked_at_anew(pod: Pod) -> None:
    run_options: dict[str, Any] = {"still_s": STILL_S, "devices": [0], "metrics": shows(pod, d0=37)}
    pod.runs(FOREVER, **run_options)
    until(lambda: is_steady(pod, busy_at), what="a steady use")
    pod.runs(FOREVER, generation=2, **run_options)
    state = pod.until(lambda s: s["run"] and s["run"]["busy_at"])
    assert state["run"] is not None
    assert (state["run"]["busy_at"] or 0.0) >= (state["run"]["started_at"] or 0.0)


@pytest.mark.parametrize("wrong", [0, -1, "soon", True])
def test_a_time_that_is_none_is_refused(pod: Pod, wrong: object) -> None:
    with pytest.raises(Exception, match="still_s"):
        pod.run(FOREVER, still_s=wrong)


# -- tools --------------------------------------------------------------------------------------

NVIDIA, ASCEND = "nvidia-smi", "npu-smi"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of the agent's PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def install(folder: Path, name: str, script: str) -> Path:
    """A tool that does this; every call leaves a line."""
    calls = folder / f"{name}.calls"
    fresh = folder / f"{name}.part"
    fresh.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n{script}\n')
    fresh.chmod(0o755)
    fresh.replace(folder / name)
    return calls


def watched(
    pod: Pod, accelerator: str, script: str = FOREVER, devices: tuple[int, ...] = (0, 1)
) -> None:
    pod.runs(script, still_s=STILL_S, devices=list(devices), accelerator=accelerator)


def called(calls: Path) -> list[str]:
    return calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.long
def test_what_a_tool_says_is_followed(tools: Path, idle: Pod) -> None:
    calls = install(tools, NVIDIA, "printf '0, 37\\n1, 0\\n'")
    pod = idle.start()
    watched(pod, "nvidia")
    until(lambda: is_steady(pod, busy_at), what="a steady use")
    before = busy_at(run_seen(pod)) or 0.0
    install(tools, NVIDIA, "printf '0, 37\\n1, 80\\n'")
    until(lambda: (busy_at(run_seen(pod)) or 0.0) > before, what="a change")
    query = "--query-gpu=index,utilization.gpu,memory.used,memory.total"
    assert called(calls)[0] == f"{query} --format=csv,noheader,nounits"


def use(index: int, percent: float | None, used: float | None, total: float | None) -> object:
    names = ("index", "percent", "memory_mb", "memory_total_mb")
    return dict(zip(names, (index, percent, used, total), strict=True))


def until_devices_show(pod: Pod, *uses: object) -> None:
    pod.until(lambda s: s["run"] and s["run"]["devices"] == [*uses])


def test_use_and_memory_of_devices_are_shown_of_a_run_that_is_not_judged_by_them(
    tools: Path, idle: Pod
) -> None:
    install(tools, NVIDIA, "printf '0, 37, 71840, 81559\n1, 0, [N/A], [N/A]\n2, 9, 1, 2\n'")
    pod = idle.start()
    pod.runs(FOREVER, devices=[0, 1], accelerator="nvidia")
    until_devices_show(pod, use(0, 37, 71840, 81559), use(1, 0, None, None))


def test_what_the_file_of_simulated_devices_has_is_shown_and_what_changes_there(idle: Pod) -> None:
    pod = idle.start()
    path = pod.home / "n0.json"
    pod.runs(FOREVER, devices=[0, 1], metrics=str(path))
    path.write_text(
        '{"devices": {"0": {"utilisation": 37, "memory_mb": 5, "memory_total_mb": 80}}}'
    )
    until_devices_show(pod, use(0, 37, 5, 80))
    path.write_text('{"devices": {"1": {"utilisation": "vary", "memory_mb": 7}}}')
    until_devices_show(pod, use(1, None, 7, None))
    path.write_text('{"devices": [')
    until_devices_show(pod)


def test_devices_without_a_tool_show_nothing(idle: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    pod = idle.start()
    pod.runs(FOREVER, devices=[0], accelerator="nvidia")
    pod.until(lambda s: s["run"] and s["run"]["moved_at"])
    assert run_seen(pod)["devices"] == []


def test_a_tool_is_no_process_of_the_run(tools: Path, idle: Pod) -> None:
    """What it reads and writes is no I/O of the training, and a stop does not wait for it."""
    install(tools, NVIDIA, "cat /proc/cpuinfo >/dev/null; sleep 0.1; printf '0, 37\\n1, 0\\n'")
    pod = idle.start()
    watched(pod, "nvidia")
    until(lambda: is_steady(pod, io_at) and is_steady(pod, busy_at), what="nothing")


@pytest.mark.long
def test_it_is_asked_no_oftener_than_a_sample_is_taken(tools: Path, idle: Pod) -> None:
    calls = install(tools, NVIDIA, "printf '0, 37\\n1, 0\\n'")
    pod = idle.start()
    began = time.monotonic()
    watched(pod, "nvidia")
    until(lambda: len(called(calls)) >= 4, what="four calls")
    assert time.monotonic() - began >= 3 * sample_s(STILL_S)


@pytest.mark.long
def test_an_npu_table_is_read_and_what_it_does_not_say_is_asked_for(tools: Path, idle: Pod) -> None:
    recordings = Path(__file__).with_name("recordings")
    calls = install(
        tools,
        ASCEND,
        f'case "$*" in\n'
        f"  info) cat {recordings}/npu-table-910b.txt;;\n"
        f"  *) cat {recordings}/npu-usages-910b.txt;;\nesac",
    )
    pod = idle.start()
    watched(pod, "ascend", devices=(0, 1, 2))
    until(lambda: is_steady(pod, busy_at), what="a steady use")
    assert called(calls)[:2] == ["info", "info -t usages -i 2"]


BROKEN = (
    ("prints garbage", "head -c 2000000 /dev/zero"),
    ("fails", "echo NVIDIA-SMI has failed; exit 9"),
    ("says N/A", "printf '0, [N/A]\\n1, [N/A]\\n'"),
    ("knows one device only", "printf '0, 37\\n'"),
    ("is killed", "kill -9 $$"),
)


@pytest.mark.long
@pytest.mark.parametrize("script", [row[1] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_of_devices_whose_tool_says_nothing_nothing_is_known(
    tools: Path, idle: Pod, script: str
) -> None:
    install(tools, NVIDIA, "printf '0, 37\\n1, 0\\n'")
    pod = idle.start()
    watched(pod, "nvidia")
    pod.until(lambda s: s["run"] and s["run"]["busy_at"])
    install(tools, NVIDIA, script)
    pod.until(lambda s: s["run"] and s["run"]["busy_at"] is None)
    assert is_steady(pod, io_at), "the other sign is known all the same"


def test_without_the_tool_nothing_is_known(idle: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    pod = idle.start()
    watched(pod, "ascend")
    until(lambda: is_steady(pod, io_at), what="no I/O")
    assert busy_at(run_seen(pod)) is None


@pytest.mark.long
def test_devices_that_the_file_names_are_rehearsed_whatever_their_kind(idle: Pod) -> None:
    pod = idle.start()
    path = shows(pod, d0="vary", d1=3)
    pod.runs(FOREVER, still_s=STILL_S, devices=[0, 1], accelerator="nvidia", metrics=path)
    changes(pod, busy_at)


@pytest.mark.long
def test_a_tool_that_hangs_holds_up_nobody(tools: Path, idle: Pod) -> None:
    """The agent answers, sees I/O, and stops the run; the tool is not started a second time."""
    calls = install(tools, NVIDIA, "exec sleep 600")
    pod = idle.start()
    watched(pod, "nvidia", IO)
    until(lambda: len(called(calls)) == 1, what="a call")
    changes(pod, io_at)
    assert (busy_at(run_seen(pod)), len(called(calls))) == (None, 1)
    began = time.monotonic()
    pod.stopped(2)
    assert time.monotonic() - began < HUNG_S


MB = 1024 * 1024


def most_memory(pod: Pod) -> int:
    """The most bytes that the agent ever had."""
    proc_status = Path(f"/proc/{pod.agent.pid}/status").read_text()
    return int(proc_status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.long
def test_a_tool_that_prints_without_end_is_ended_before_it_fills_the_memory(
    tools: Path, idle: Pod
) -> None:
    calls = install(tools, NVIDIA, f"head -c {200 * MB} /dev/zero; exec sleep 600")
    pod = idle.start()
    before = most_memory(pod)
    watched(pod, "nvidia")
    until(lambda: len(called(calls)) >= 2, what="another call")
    assert most_memory(pod) - before < 32 * MB
    assert busy_at(run_seen(pod)) is None


@pytest.mark.long
def test_a_tool_that_takes_too_long_is_ended_and_asked_again(tools: Path, idle: Pod) -> None:
    calls = install(tools, NVIDIA, "exec sleep 600")
    pod = idle.start()
    watched(pod, "nvidia")
    until(lambda: len(called(calls)) >= 2, what="another call")
    install(tools, NVIDIA, "printf '0, 37\\n1, 0\\n'")
    pod.until(lambda s: s["run"] and s["run"]["busy_at"])
