"""Whatever is sent to an agent that has the right token: it is carried out, or refused in a sentence."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everstep.protocol import wire
from tests.agent.pod import TOKEN, Connection, Pod

MANY = 10_000
REFUSALS = frozenset({400, 404, 405, 409, 501, 503})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed")


@pytest.fixture(scope="module")
def fuzzed(pyz: Path, folder: Path) -> Iterator[Pod]:
    """An agent whose working directory is a folder of its own: texts may be taken for relative paths."""
    uid = f"demo-0-{uuid.uuid4().hex[:8]}"
    pod = Pod(pyz, folder / uid, uid)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pod.start()
    try:
        yield pod
    finally:
        pod.end()


def bodies(folder: str) -> dict[str, dict[str, Any]]:
    """A right body for each path that takes one; `quit` ends the agent, so it has none."""
    rank = {"rank": 0, "local_rank": 0, "env": {}}
    run = {"generation": 1, "command": ["true"], "workdir": folder, "env": {}, "ranks": [rank]}
    return {
        wire.RUN: {**run, "model_dir": f"{folder}/m", "log_pattern": None, "log_rules": {}},
        wire.STOP: {"generation": 1, "grace_s": 0.0, "keep": [], "hold_s": 0.0, "evidence": False},
        wire.FENCE: {
            "generation": 1,
            "run": "r",
            "cluster": "c",
            "folders": [f"{folder}/m"],
            "left": [],
            "earlier": [],
            "workdir": None,
            "begins": {},
        },
        wire.CHECKPOINTS: {"path": f"{folder}/m", "format": "auto", "ended_between": [[1, 2]]},
        wire.WRITABLE: {"path": f"{folder}/m"},
        wire.SET_ASIDE: {"generation": 1, "path": f"{folder}/m", "checkpoints": ["a"]},
        wire.JOURNAL: {"model_dir": f"{folder}/m", "began": 1, "runs": {"1": {}}},
        wire.RELEASE: {"generation": 1, "folders": [f"{folder}/m"]},
        wire.CHECK: {"thresholds": {}, "accelerator": "none", "devices": 0},
        wire.SAVE: {"generation": 1, "request": "a", "signal": "SIGUSR1"},
        wire.DUMP: {"generation": 1, "step": 1, "within_s": 1.0},
        wire.PREWARM: {"packages": [], "rss_bytes": 1, **run},
        wire.STACKS: {"generation": 1},
    }


KEYS = sorted({key for body in bodies("").values() for key in body})
WORDS = st.sampled_from(
    ["", "a", "main", "auto", "é", "\0", "\ud800", "a\nb", "字" * 200, "(", "r"]
)
"""None begins with a slash: an agent may change what it may reach."""
NUMBERS = st.integers(-2, 3) | st.floats(-1, 1) | st.sampled_from([10**400, 2**63, 1e308])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
CHANGES = st.dictionaries(st.sampled_from(KEYS) | WORDS, VALUES, max_size=3)
PATHS = sorted(bodies(""))
QUERIES = st.dictionaries(
    st.sampled_from(["since", "after", "boot", "fresh", "rank", "generation", "step", "offset"]),
    st.sampled_from(["", "0", "1", "-1", "x", "nan", "1e400", "9" * 30, "..%2f..", "%00", "%ff"]),
    max_size=3,
)


def answer(pod: Pod, method: str, path: str, body: bytes) -> tuple[int, Any]:
    connection = Connection(pod.home)
    try:
        connection.request(method, path, body=body, headers={"Authorization": f"Bearer {TOKEN}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def holds(
    pod: Pod, folder: Path, path: str, changes: dict[str, Any], query: dict[str, str]
) -> None:
    """One request is answered, and so is the next."""
    changed = {**bodies(str(folder))[path], **changes}
    suffix = "&".join(f"{key}={value}" for key, value in query.items())
    for method, place, body in (
        ("POST", path, json.dumps(changed).encode()),
        (
            "GET",
            f"{(wire.STATE, wire.LOG, wire.COPY, wire.COPY_PART)[len(suffix) % 4]}?{suffix}",
            b"",
        ),
    ):
        status, content = answer(pod, method, place, body)
        assert status == 200 or status in REFUSALS, (status, content)
        if status != 200:
            assert content["error"].isprintable(), content
    assert pod.answers()


REQUESTS = (st.sampled_from(PATHS), CHANGES, QUERIES)


@example(wire.JOURNAL, {"began": 10**400}, {})
@given(*REQUESTS)
@settings(max_examples=150)
def test_every_request_is_carried_out_or_refused(
    fuzzed: Pod, folder: Path, path: str, changes: dict[str, Any], query: dict[str, str]
) -> None:
    holds(fuzzed, folder, path, changes, query)


@pytest.mark.long
@pytest.mark.timeout(900)
@given(*REQUESTS)
@settings(max_examples=MANY)
def test_ten_thousand_requests_are_carried_out_or_refused(
    fuzzed: Pod, folder: Path, path: str, changes: dict[str, Any], query: dict[str, str]
) -> None:
    holds(fuzzed, folder, path, changes, query)


@given(raw=st.binary(max_size=80), path=st.sampled_from(PATHS))
@settings(max_examples=60)
def test_bytes_of_any_kind_are_refused(fuzzed: Pod, raw: bytes, path: str) -> None:
    status, content = answer(fuzzed, "POST", path, b"\xff" + raw)
    assert (status, content["error"].isprintable()) == (400, True)
