"""A state directory of a test's own, `everstep` commands over it, and the examples they run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from everstep.agent.processes.members import FILE, remove_cgroups
from everstep.backends.local.faults import rehearse
from everstep.processes import free_port
from tests.support.patience import HUNG_S

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
EVERSTEP = [sys.executable, "-c", "from everstep.cli.script import run; run()"]
STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A state directory without a server."""

    home: Path
    env: dict[str, str]

    @classmethod
    def at(cls, home: Path) -> Machine:
        variables = {
            k: v for k, v in os.environ.items() if not k.startswith(("EVERSTEP_", "TEMPORAL_"))
        }
        settings = {
            "EVERSTEP_HOME": str(home),
            "EVERSTEP_ALLOW_OTHER_USERS": "true",  # tests may run as root of a shared machine
            "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        return cls(home=home, env={**variables, **settings})

    def everstep(self, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*EVERSTEP, *words],
            env=self.env,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=HUNG_S,
            check=False,
        )

    def fault(self, line: str) -> None:
        """At once: a command of its own takes as long to start as some jobs have left to run."""
        asyncio.run(rehearse(self.home, line))

    @contextmanager
    def running(
        self, *words: str, stdin: int = subprocess.DEVNULL, cwd: Path = ROOT
    ) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [*EVERSTEP, *words],
            env=self.env,
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def workers(self) -> list[int]:
        """The workers that live."""
        return self._that_run(lambda words: words[1:4] == [b"-P", b"-m", b"worker"])

    def servers(self) -> list[int]:
        """The servers that live."""
        return self._that_run(lambda words: words[1:3] == [b"server", b"start-dev"])

    def _that_run(self, is_meant: Callable[[list[bytes]], bool]) -> list[int]:
        pids = []
        for pid in self.processes():
            with suppress(OSError):  # it may have ended just now
                if is_meant(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")):
                    pids.append(pid)
        return pids

    def end(self) -> None:
        """Nothing of it runs any more, whatever the test did, and its cgroups are gone."""
        deadline = time.monotonic() + HUNG_S
        while left := self.processes():
            assert time.monotonic() < deadline, f"processes {left} cannot be ended"
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)  # between two looks: the kernel tells nobody that strangers have ended
        # A warden that was killed with its agent could remove nothing.
        while not all(remove_cgroups(path.parent) for path in self.home.glob(f"agents/*/{FILE}")):
            assert time.monotonic() < deadline, "the cgroups of its pods cannot be removed"
            time.sleep(0.01)  # the kernel takes the killed ones apart

    def processes(self) -> list[int]:
        """Whatever runs with this state directory in its command line or its environment."""
        mark = str(self.home).encode()
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                except OSError:
                    continue
                if mark in text:
                    pids.append(int(entry.name))
        return pids


def until_printed(process: subprocess.Popen[str], *words: str) -> list[str]:
    """Its lines so far, once one of them has one of these words."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not any(word in lines[-1] for word in words):
        line = process.stdout.readline()
        assert line, f"it ended before it said {words}: {''.join(lines)}"
        lines.append(line)
    return lines


def example(name: str, folder: Path, **changes: str) -> Path:
    """A copy of an example, with words of its document replaced."""
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("out"))
    document = folder / "job.yaml"
    text = document.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    document.write_text(text)
    return document


def undisturbed(folder: Path, *, steps: int = STEPS) -> dict[str, object]:
    """What the synthetic example ends with; the same for any number of ranks."""
    job = example("synthetic", folder)
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("EVERSTEP_")},
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "CHECKPOINTS": str(folder / "out" / "ckpt"),
        "CHECKPOINT_EVERY": "10",
        "STEP_S": "0",
        "LR": "0.02",
        "STEPS": str(steps),
    }
    subprocess.run(
        [sys.executable, "train.py"], cwd=job.parent, env=env, check=True, stdout=subprocess.DEVNULL
    )
    return final(folder)


def final(folder: Path) -> dict[str, object]:
    final: dict[str, object] = json.loads((folder / "out" / "ckpt" / "final.json").read_text())
    return final


def synthetic(folder: Path) -> Path:
    """One phase of the synthetic example, some seconds long."""
    job = example("synthetic", folder, **{'"0.2"': '"0.1"'})
    text, _, _ = job.read_text().partition("  phases:")
    job.write_text(f'{text}    STEPS: "{STEPS}"\n    LR: "0.02"\n')
    return job
