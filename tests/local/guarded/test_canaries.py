"""Where a secret of a job is, by the way in which it got into the job: the table of docs/security.md.

One word for each way, and each place is searched for each word. Payloads are encrypted; without keys the
server has all but the first (`tests/workflows/test_closed_payloads.py`).
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from everstep.encryption.keys import VARIABLE
from everstep.processes import free_port
from tests.agent.pod import until
from tests.local.guarded.test_secrets import history, in_command_lines
from tests.support.keys import key_folder
from tests.support.machine import Machine, until_printed

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
WAYS = {
    "`env: {NAME: {from: NAME}}`": "canary-from",
    "a plain value of `env`": "canary-env",
    "`command`": "canary-command",
    "`checkpoints.path`": "canary-path",
    "`metadata.labels`": "canary-label",
    "what a rank prints": "canary-printed",
    "the error with which it ends": "canary-error",
}
SCRIPT = """
import json, os, pathlib, time
first = os.environ["EVERSTEP_GENERATION"] == "1"
print("began canary-printed", flush=True)
while not pathlib.Path("end-1" if first else "end-2").exists():
    time.sleep(0.02)
if first:
    error = {"message": "ValueError: canary-error", "extraInfo": {"timestamp": "1"}}
    pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": error}))
    raise SystemExit(1)
"""


class Places(dict[str, str]):
    """What is in each place, as text."""

    def add(self, place: str, text: str) -> None:
        assert text, f"{place} is empty"
        self[place] = self.get(place, "") + text

    def of(self, word: str) -> set[str]:
        return {place for place, text in self.items() if word in text}


@contextmanager
def hook() -> Iterator[tuple[str, list[str]]]:
    """A webhook: its address, and what it was sent."""
    bodies: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", bodies
        finally:
            server.shutdown()
            thread.join()


def written_job(folder: Path) -> Path:
    """A document with a word in each place that takes a text, and its script."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    spec = {
        "command": ["python3", "train.py", "--token=canary-command"],
        "workdir": str(folder),
        "model_dir": str(folder / "out"),
        "env": {"TOKEN": {"from": "HF_TOKEN"}, "OTHER": "canary-env"},
        "checkpoints": {"path": str(folder / "canary-path")},
    }
    metadata = {"name": "demo", "labels": {"ticket": "canary-label"}}
    head = {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": metadata}
    document = folder / "job.json"
    document.write_text(json.dumps({**head, "spec": spec}))
    return document


PAGES = {
    "`status`": ("status", "demo", "--json"),
    "`show`": ("show", "demo"),
    "`list`": ("list", "--json"),
    "`why`, `restarts`, `events`": ("why", "demo", "1"),
    "`logs`": ("logs", "demo", "--generation", "1"),
}


def read_pages(machine: Machine, places: Places, tmp_path: Path) -> None:
    for place, words in PAGES.items():
        places.add(place, machine.everstep(*words).stdout)
    for name in ("restarts", "events"):
        places.add("`why`, `restarts`, `events`", machine.everstep(name, "demo", "--json").stdout)
    for kind in ("html", "json", "md"):
        path = tmp_path / f"report.{kind}"
        assert machine.everstep("report", "demo", "-o", str(path)).returncode == 0
        places.add("`report`", path.read_text())


FILES = {
    r"agents/.*\.log": "logs of ranks",
    r"local\.db.*": "`local.db`",
    r"out/.*": "`model_dir`",
    r"(train\.py|job\.json)": "",  # the user's own
}
"""Names of files, below EVERSTEP_HOME or the folder of the job, and what the page calls them."""


def read_files(root: Path, places: Places) -> None:
    """Every file below the folder; what no row has is a place by its own name."""
    for path in root.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        name = str(path.relative_to(root))
        place = next((place for row, place in FILES.items() if re.fullmatch(row, name)), name)
        for word in WAYS.values():
            if place and word.encode() in content:
                places.add(place, word)


@pytest.mark.long
def test_a_secret_is_where_the_page_says_and_nowhere_else(machine: Machine, tmp_path: Path) -> None:
    folder, places = tmp_path / "job", Places()
    document = written_job(folder)
    metrics = f"127.0.0.1:{free_port()}"
    port = machine.env["TEMPORAL_ADDRESS"].rpartition(":")[2]
    with hook() as (url, bodies):
        settings = {
            VARIABLE: str(key_folder(tmp_path / "keys", "a")),
            "EVERSTEP_WEBHOOK_URL": url,
            "EVERSTEP_METRICS_ADDRESS": metrics,
        }
        keyed = replace(machine, env={**machine.env, **settings})
        serving = replace(keyed, env={**keyed.env, "HF_TOKEN": "canary-from"})
        with serving.running("dev", "--port", port, "--ui-port", str(free_port())) as dev:
            until_printed(dev, "Ctrl-C ends")
            assert keyed.everstep("submit", str(document)).returncode == 0
            until(lambda: "began" in keyed.everstep("logs", "demo").stdout, what="a start")
            for word in WAYS.values():
                if in_command_lines(word):
                    places.add("command lines of processes", word)
            (folder / "end-1").touch()
            second = ("logs", "demo", "--generation", "2")
            until(lambda: "began" in keyed.everstep(*second).stdout, what="a second start")
            (folder / "end-2").touch()
            until(lambda: "completed" in keyed.everstep("status", "demo").stdout, what="the end")
            read_pages(keyed, places, tmp_path)
            places.add(
                "metrics", urllib.request.urlopen(f"http://{metrics}/metrics").read().decode()
            )
            events = asyncio.run(history(machine.env["TEMPORAL_ADDRESS"]))
            places.add("histories", events.decode(errors="replace"))
            refused = machine.everstep("why", "demo", "1")
            dev.terminate()
            assert dev.stdout is not None
            places.add("log of the worker", dev.stdout.read() + "-")
        places.add("webhook", "".join(bodies))
    for root in (machine.home, folder):
        read_files(root, places)
    assert refused.returncode == 2
    assert re.fullmatch(
        r"everstep: a payload is encrypted with key a, and [^\n]*\n", refused.stderr
    )
    measured = {way: places.of(word) for way, word in WAYS.items()}
    for way, where in listed().items():
        assert measured[way] <= where, way
        assert measured[way] >= where - SOMETIMES, way


SOMETIMES = {"`local.db`", "webhook"}
"""A fact leaves the database once it is read; a webhook has the error that ends a job."""


def listed() -> dict[str, set[str]]:
    """What the page lists."""
    table = (
        PAGE.read_text().partition("### Where a secret of a job may be")[2].partition("\n\n| ")[2]
    )
    rows = [row.strip("| ").split(" | ") for row in table.partition("\n\n")[0].splitlines()[2:]]
    return {row[0]: set(row[1].split("; ")) - {"nowhere"} for row in rows}
