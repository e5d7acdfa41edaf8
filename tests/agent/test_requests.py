"""Which requests are allowed, from which sender, and how malformed ones are answered."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.agent import STATE_FILE
from everstep.agent.server import CONNECTIONS_MAX, RequestHandler, Server, on_unix
from everstep.processes import free_port
from everstep.protocol import wire
from tests.agent.pod import FOREVER, POLL_S, TOKEN, Connection, Pod, Refused, until
from tests.support.patience import HUNG_S
from tests.support.starving import without_descriptors


@pytest.mark.parametrize(
    ("method", "path", "raw", "status"),
    [
        ("GET", "/", b"", 404),
        ("GET", "/v1/nothing", b"", 404),
        ("GET", "/v1/state?since=x", b"", 400),
        ("GET", "/v1/state?wait_s=nan", b"", 400),
        ("POST", "/v1/state", b"", 405),
        ("GET", wire.RUN, b"", 405),
        ("POST", wire.RUN, b"", 400),
        ("POST", wire.RUN, b"{", 400),
        ("POST", wire.RUN, b"[]", 400),
        ("POST", wire.RUN, b"[" * 100_000, 400),
        ("POST", wire.RUN, b'{"generation": "one"}', 400),
        (
            "POST",
            wire.RUN,
            b'{"generation":1,"command":["a"],"env":{},"workdir":"/","ranks":[{}]}',
            400,
        ),
        (
            "POST",
            wire.RUN,
            b'{"generation":1,"command":[],"env":{},"workdir":"/","ranks":[]}',
            400,
        ),
        (
            "POST",
            wire.RUN,
            b'{"generation":1,"command":["a"],"env":{"A":1},"workdir":"/","ranks":[]}',
            400,
        ),
        (
            "POST",
            wire.RUN,
            b'{"generation":1,"command":["a"],"env":{},"workdir":"/","log_pattern":"(",'
            b'"ranks":[{"rank":0,"local_rank":0,"env":{}}]}',
            400,
        ),
        ("POST", wire.STOP, b"{}", 400),
        ("POST", wire.STOP, b'{"generation": 1, "grace_s": "long"}', 400),
        ("POST", wire.FENCE, b'{"generation": 1, "folders": "/"}', 400),
        ("POST", wire.CHECKPOINTS, b"{}", 400),
        ("POST", wire.FENCE, b'{"generation": 1, "run": "r", "folders": [""]}', 400),
        ("POST", wire.FENCE, b'{"generation": 1, "run": "r", "left": [""]}', 400),
        (
            "POST",
            wire.FENCE,
            b'{"generation": 1, "run": "r", "folders": [], "checkpoints": {}}',
            400,
        ),
        ("POST", wire.CHECKPOINTS, b'{"path": ""}', 400),
        ("POST", wire.CHECKPOINTS, b'{"path": "/tmp", "ended_between": [["now", "then"]]}', 400),
        ("POST", wire.CHECKPOINTS, b'{"path": "/tmp", "ended_between": [[1]]}', 400),
        ("POST", wire.JOURNAL, b"{}", 400),
        ("POST", wire.JOURNAL, b'{"model_dir": "/", "began": 1, "runs": {"1": []}}', 400),
        ("GET", wire.LOG + "?rank=7&generation=7", b"", 404),
        ("GET", wire.LOG + "?rank=../../token", b"", 400),
        ("PUT", wire.RUN, b"", 501),
    ],
)
def test_nonsense_is_refused_and_breaks_nothing(
    lasting_pod: Pod, method: str, path: str, raw: bytes, status: int
) -> None:
    with pytest.raises(Refused) as refused:
        lasting_pod.ask(method, path, raw=raw)
    assert refused.value.status == status
    assert refused.value.body["error"]
    assert lasting_pod.state()["generation"] == 0


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", "ünknown"])
def test_wrong_token_is_refused(lasting_pod: Pod, token: str) -> None:
    with pytest.raises(Refused) as refused:
        lasting_pod.ask("POST", wire.STOP, {"generation": 3}, token=token)
    assert refused.value.status == wire.UNAUTHORIZED
    assert lasting_pod.state()["generation"] == 0


def test_huge_body_is_refused_unread(pod: Pod) -> None:
    connection = Connection(pod.home)
    connection.putrequest("POST", wire.RUN)
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert pod.answers()


def test_bytes_that_are_no_http_break_nothing(pod: Pod) -> None:
    for nonsense in (
        b"\0\xff" * 1000,
        b"GET " + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"",
    ):
        connection = Connection(pod.home)
        connection.connect()
        connection.sock.sendall(nonsense)
        connection.close()
    assert pod.answers()


def test_one_connection_serves_many_requests(pod: Pod) -> None:
    connection = Connection(pod.home)
    for path, status in ((wire.STATE, 200), ("/v1/nothing", 404), (wire.STATE, 200)):
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (status, True)
    connection.close()


def test_long_poll_waits_until_something_changes(pod: Pod) -> None:
    version = pod.state()["version"]
    answers: list[wire.AgentState] = []
    polls = [
        threading.Thread(target=lambda: answers.append(pod.state(version, 20.0))) for _ in range(10)
    ]
    before = time.monotonic()
    for poll in polls:
        poll.start()
    pod.run(FOREVER)
    for poll in polls:
        poll.join()
    assert time.monotonic() - before < 18
    assert all(answer["version"] > version for answer in answers)


def test_long_poll_that_sees_no_change_is_answered_after_its_time(pod: Pod) -> None:
    version = pod.state()["version"]
    before = time.monotonic()
    assert pod.state(version, 0.3)["version"] == version
    assert 0.25 < time.monotonic() - before < HUNG_S


def test_many_polls_do_not_keep_a_command_waiting(pod: Pod) -> None:
    version = pod.state()["version"]
    polls = [threading.Thread(target=_poll, args=(pod, version)) for _ in range(40)]
    for poll in polls:
        poll.start()
    before = time.monotonic()
    assert pod.stop(1)["stopped_below"] == 1
    assert time.monotonic() - before < 5
    for poll in polls:
        poll.join()


def _poll(pod: Pod, version: int) -> None:
    pod.state(version, POLL_S)


def test_concurrent_commands_leave_the_newest_generation(pod: Pod) -> None:
    requests: list[Any] = []

    def ask(generation: int) -> None:
        try:
            requests.append(pod.run(FOREVER, generation=generation)["generation"])
        except Refused as refused:
            requests.append(refused.status)

    threads = [threading.Thread(target=ask, args=(generation,)) for generation in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = pod.until(lambda s: s["run"] and s["run"]["generation"] == 8 and s["run"]["started_at"])
    assert state["generation"] == 8
    assert state["run"] is not None
    until(lambda: len(pod.marked()) == 1)
    assert pod.marked() == [state["run"]["ranks"][0]["pid"]]


def test_a_connection_without_a_thread_leaves_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has no room for threads, for as long as it takes to fail once per connection."""
    monkeypatch.chdir(tmp_path)
    answers: list[str] = []
    routes: dict[str, dict[str, RequestHandler]] = {wire.STATE: {"GET": lambda *_: {"uid": "u"}}}
    server = Server(on_unix(wire.SOCKET), TOKEN.encode(), routes, cannot_serve=answers.append)
    server.serve_in_background()
    try:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", _no_thread)
            for _ in range(CONNECTIONS_MAX + 1):
                with pytest.raises((OSError, http.client.HTTPException)):
                    _get_state(tmp_path)
        assert set(answers) == {"a connection is not served: can't start new thread"}
        assert _get_state(tmp_path) == 200
    finally:
        server.shutdown()
        server.server_close()


def test_a_request_that_meets_a_defect_is_answered_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that gets no answer would take the agent for lost."""
    monkeypatch.chdir(tmp_path)
    notes: list[str] = []

    def fail(*_: Any) -> Any:
        raise KeyError("missing")

    routes: dict[str, dict[str, RequestHandler]] = {wire.STATE: {"GET": fail}}
    server = Server(on_unix(wire.SOCKET), TOKEN.encode(), routes, cannot_serve=notes.append)
    server.serve_in_background()
    try:
        assert [_get_state(tmp_path) for _ in range(2)] == [wire.DEFECT] * 2
    finally:
        server.shutdown()
        server.server_close()
    assert notes == ["GET /v1/state failed: KeyError"]
    assert capsys.readouterr().err.count("KeyError: 'missing'") == 1


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def _get_state(home: Path) -> int:
    connection = Connection(home)
    try:
        connection.request("GET", wire.STATE, headers={"Authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_an_agent_that_cannot_serve_says_so_in_its_log_and_its_state_file(pod: Pod) -> None:
    pod.run(FOREVER)
    connection = Connection(pod.home)
    with without_descriptors(pod.agent.pid):
        connection.connect()  # the kernel takes it; the agent has no number left for it
        until(lambda: "no connection is accepted" in pod.log_text(), what="a line of its log")
    connection.close()
    assert pod.answers()
    assert pod.log_text().count("no connection is accepted") == 1
    pod.stop(2)
    notes = json.loads((pod.home / STATE_FILE).read_text())["notes"]
    assert [note for note in notes if note.startswith("no connection is accepted")] == [
        note for note in pod.state()["notes"] if note.startswith("no connection is accepted")
    ]


def test_agent_listens_on_tcp_too(idle: Pod) -> None:
    port = free_port()
    pod = idle.start("--listen", f"tcp:127.0.0.1:{port}")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(
            f"GET /v1/state HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert pod.uid.encode() in answer


def test_folder_may_be_deeper_than_a_socket_address_is_long(pyz: Path, tmp_path: Path) -> None:
    pod = Pod(pyz, tmp_path / ("deep" * 20) / ("deeper" * 20), f"deep-{time.time_ns()}")
    try:
        pod.start()
    finally:
        pod.end()
