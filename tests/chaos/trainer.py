"""The synthetic example as a script that writes down what it does: each start, step and save, in one journal.

It lies beside `train.py`, whose model, peers and checkpoints it uses. All ranks of a job append to the same
JOURNAL, so that the order of its lines is the order of the writes. Training goes on until the file FINISH
holds the number of the last step. Standard library, Python 3.10 or newer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import train  # type: ignore[import-not-found]  # the example's, which lies beside this script

LINE_BYTES = 256
"""Spaces fill each line to this length, so that none crosses a page, where a SIGKILL would cut it."""

COARSE = 5
"""CLOCK_REALTIME_COARSE: it keeps the time of the machine where chaos sets the clock of a node."""

PROCESS = os.urandom(6).hex()
"""Names this process: numbers of processes repeat in pods that have a PID namespace of their own."""

HEAD = {
    "generation": int(os.environ["EVERSTEP_GENERATION"]),
    "rank": int(os.environ["RANK"]),
    "process": PROCESS,
    "pid": os.getpid(),
}


def note(what: str, step: int, weights: str = "") -> None:
    """Append a line to the journal, whole, also with other writers at the same time."""
    line = {
        **HEAD,
        "at": time.clock_gettime(COARSE),
        "what": what,
        "step": step,
        "weights": weights,
    }
    text = json.dumps(line).ljust(LINE_BYTES - 1) + "\n"
    handle = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def digest(model: train.Model) -> str:
    """Names the weights and the momentum of a model, to the last bit."""
    return str(train.digest([value.hex() for value in (*model.weights, *model.momentum)]))[:16]


def is_done(step: int) -> bool:
    """Whether this step is the last. Which one is the last is settled when all ranks are far before it."""
    try:
        return step >= int(Path(os.environ["FINISH"]).read_text())
    except OSError:
        return False


def run(settings: train.Settings) -> None:
    note("start", settings.resume_step or 0)
    model = train.started(settings)
    peers = train.Peers(settings, model.step)
    while not is_done(model.step):
        model, loss = train.one_step(model, peers, settings)
        note("step", model.step, digest(model))
        print(f"step {model.step} loss {loss:.6g}", flush=True)  # noqa: T201  # what progress is read from
        if settings.rank == 0 and model.step % settings.checkpoint_every == 0:
            note("save", model.step)
            train.save(model, settings.checkpoints)
            note("saved", model.step)
    if settings.rank == 0:
        train.write_final(model, settings.checkpoints)
    peers.part()
    note("end", model.step)


if __name__ == "__main__":
    # What goes wrong ends as a traceback, as in most scripts: its last line tells two ends apart.
    run(train.settings_of(os.environ, sys.argv[1:]))
