"""Variables of real training processes: those that scripts of other systems read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from everstep.backends.agents.commands import environment
from everstep.dialects.modelarts.policy import modelarts
from everstep.dialects.native.document import PRODUCT_VARIABLES
from everstep.dialects.registry import compile_document
from tests.backends.lab import DEVICES
from tests.backends.local_lab import LocalLab
from tests.backends.whole import report, whole_job
from tests.support.patience import HUNG_S

SLOTS = (0, 1)
PRINT_ENV = """
env > "$OUT/told-$RANK" && mv "$OUT/told-$RANK" "$OUT/$EVERSTEP_GENERATION-$RANK"
exec sleep 1000
"""


async def rank_environments(folder: Path, generation: int) -> dict[int, dict[str, str]]:
    """The environment of every rank of this generation, once all of them began."""
    files = {rank: folder / f"{generation}-{rank}" for rank in SLOTS}
    async with asyncio.timeout(HUNG_S):
        while not all(file.exists() for file in files.values()):
            await asyncio.sleep(0.02)
    return {
        rank: dict(line.partition("=")[::2] for line in file.read_text().splitlines())
        for rank, file in files.items()
    }


async def test_every_rank_sees_its_place_and_how_often_it_was_begun(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    folder = tmp_path / "told"
    folder.mkdir()
    job = whole_job(
        local_lab,
        modelarts(job_retry=8, pod_retry=3, unconditional=True),
        nodes=len(SLOTS),
        env={"OUT": str(folder)},
        command=("/bin/sh", "-c", PRINT_ENV),
    )
    whole = asyncio.create_task(job.run())

    first = await rank_environments(folder, 1)
    for slot, env in first.items():
        assert env["VC_TASK_INDEX"] == env["NODE_RANK"] == str(slot)
        assert env["VC_WORKER_HOSTS"] == "127.0.0.1,127.0.0.1"
        assert env["MA_CURRENT_INSTANCE_NAME"] == f"demo-worker-{slot}"
        assert env["GROUP_RANK"] == env["ROLE_RANK"] == env["RANK"] == str(slot)
        same = {name: env[name] for name in SAME}
        assert same == SAME
    assert counts(first) == {0: (1, 1), 1: (1, 1)}
    assert restarts(first) == {0}

    await local_lab.fault("device n1 0 80E01801 heals")
    second = await rank_environments(folder, 2)
    assert counts(second) == {0: (1, 2), 1: (1, 2)}
    assert restarts(second) == {1}
    await local_lab.fault("node-down n1")
    assert counts(await rank_environments(folder, 3)) == {0: (1, 3), 1: (2, 1)}
    await local_lab.fault("kill demo 0")
    last = await rank_environments(folder, 4)
    assert counts(last) == {0: (2, 1), 1: (3, 1)}
    assert restarts(last) == {3}

    job.tell("stop", grace_s=0)
    await whole
    assert report(job)["status"] == "Terminated"


SAME = {
    "MA_NUM_HOSTS": "2",
    "MA_NUM_GPUS": str(DEVICES),
    "MA_TASK_NAME": "worker",
    "MA_CURRENT_IP": "127.0.0.1",
    "VC_WORKER_NUM": "2",
    "WORLD_SIZE": "2",
    "NNODES": "2",
    "MASTER_ADDR": "127.0.0.1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_WORLD_SIZE": "2",
    "ROLE_NAME": "default",
    "TORCHELASTIC_RUN_ID": "demo",
}


@pytest.mark.long
async def test_a_variable_that_no_shell_could_name_reaches_the_script(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    """Only this one has variables that a shell leaves out."""
    folder = tmp_path / "told"
    folder.mkdir()
    written = {"OUT": str(folder), "my.opt-name": "7", "_ä b": "8"}
    spec = compile_document(
        {"kind": "job", "algorithm": {"command": PRINT_ENV, "environments": written}}
    ).phases[0]
    job = whole_job(
        local_lab,
        spec.policy,
        nodes=len(SLOTS),
        env=spec.env,
        command=spec.command,
    )
    whole = asyncio.create_task(job.run())
    for env in (await rank_environments(folder, 1)).values():
        assert {name: env[name] for name in written} == written
    job.tell("stop", grace_s=0)
    await whole


def restarts(ranks: dict[int, dict[str, str]]) -> set[int]:
    """As torchrun counts them: the same in every rank, wherever its pod came from."""
    return {int(env["TORCHELASTIC_RESTART_COUNT"]) for env in ranks.values()}


def counts(ranks: dict[int, dict[str, str]]) -> dict[int, tuple[int, int]]:
    return {
        rank: (int(env["MA_SCHEDULE_CNT"]), int(env["MA_PROC_START_CNT"]))
        for rank, env in ranks.items()
    }


def test_no_document_can_set_what_every_rank_is_told() -> None:
    per_rank = (*SAME, "MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "MA_CURRENT_INSTANCE_NAME")
    assert [
        name
        for name in (*per_rank, "VC_TASK_INDEX", "VC_WORKER_HOSTS")
        if not PRODUCT_VARIABLES.fullmatch(name)
    ] == []
    assert not PRODUCT_VARIABLES.fullmatch("MA_HANG_DETECT_TIME")
    assert not PRODUCT_VARIABLES.fullmatch("MA_DETECT_TRAIN_INJECT_CODE")


# -- What of the worker's own environment is handed on ------------------------------------------

HERS = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/homes/ada",
    "LC_ALL": "C.UTF-8",
    "NCCL_DEBUG": "INFO",
    "AWS_SECRET_ACCESS_KEY": "s3",
    "HF_TOKEN": "hf",
    "TEMPORAL_API_KEY": "key",
    "EVERSTEP_WEBHOOK_TOKEN": "hook",
}


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, {"PATH", "HOME", "LC_ALL", "NCCL_DEBUG"}),
        ("all", HERS.keys() - {"TEMPORAL_API_KEY", "EVERSTEP_WEBHOOK_TOKEN"}),
        ("*", HERS.keys() - {"TEMPORAL_API_KEY", "EVERSTEP_WEBHOOK_TOKEN"}),
        ("PATH, AWS_*", {"PATH", "AWS_SECRET_ACCESS_KEY"}),
        ("TEMPORAL_API_KEY,EVERSTEP_*,HOME", {"HOME"}),
        ("NCCL,HOM", set()),
        ("", set()),
    ],
)
def test_a_setting_says_what_of_a_workers_variables_ranks_find(
    setting: str | None, names: set[str]
) -> None:
    passed_names = environment.FOR_RANKS if setting is None else environment.names(setting)
    assert environment.passed(HERS, passed_names) == {name: HERS[name] for name in names}


@pytest.mark.parametrize("text", ["PATH;HOME", "A*B", "*_TOKEN", "HF-TOKEN", "PATH HOME", "all,1"])
def test_what_is_no_list_of_names_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no variable's name"):
        environment.names(text)


@pytest.mark.parametrize("source", ["EVERSTEP_WEBHOOK_TOKEN", "TEMPORAL_API_KEY", "NOT_THERE"])
def test_what_a_worker_keeps_for_itself_is_as_if_it_were_not_there(source: str) -> None:
    assert environment.requested(HERS, {"MINE": source, "T": "HF_TOKEN"}) == {"T": "hf"}
    missing = environment.lacking(HERS, {"MINE": source, "T": "HF_TOKEN"})
    assert missing is not None
    assert f"has no variable {source}," in missing
    assert environment.lacking(HERS, {"T": "HF_TOKEN"}) is None


async def test_ranks_agents_and_wardens_find_what_they_may(tmp_path: Path) -> None:
    """As their processes have it, whatever the worker has."""
    folder = tmp_path / "told"
    folder.mkdir()
    hers = {**HERS, "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    lab = await LocalLab.open(tmp_path, environ=hers)
    job = whole_job(
        lab,
        modelarts(job_retry=8),
        nodes=len(SLOTS),
        env={"OUT": str(folder), "NCCL_DEBUG": "WARN"},
        env_from={"TOKEN": "HF_TOKEN"},
        command=("/bin/sh", "-c", PRINT_ENV),
    )
    whole = asyncio.create_task(job.run())
    try:
        for env in (await rank_environments(folder, 1)).values():
            assert {name: env.get(name) for name in HERS} == {
                **dict.fromkeys(HERS),
                **{name: hers[name] for name in ("PATH", "HOME", "LC_ALL")},
                "NCCL_DEBUG": "WARN",  # the document's own
            }
            assert env["TOKEN"] == "hf"  # no token of anybody
        about = [
            entry.name
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and str(tmp_path).encode() in _read(entry / "cmdline")
        ]
        agents = {pid for pid in about if b"agent.pyz" in _read(Path("/proc", pid, "cmdline"))}
        assert len(agents) >= 2 * len(SLOTS), "an agent and a warden each"
        for pid in agents:
            environ = _read(Path("/proc", pid, "environ"))
            assert f"PATH={hers['PATH']}".encode() in environ
            assert not [
                n for n in HERS.keys() - {"PATH", "HOME", "LC_ALL"} if n.encode() in environ
            ]
    finally:
        job.tell("stop", grace_s=0)
        await whole
        await lab.leave()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
