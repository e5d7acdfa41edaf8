"""A training process that writes down what it was told, and then does as it is told.

One line for each start in `starts-<slot>.jsonl` of the CONTROL folder. It goes on moving bytes until a file
tells it otherwise: `exit-<rank>-<generation>` holds its exit code, and the name of what it raises if it does,
`still` keeps it from moving anything, `save` has the first rank save once, `end-<generation>` ends everybody
well.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import time
from pathlib import Path

CONTROL = Path(os.environ["CONTROL"])
RANK = int(os.environ["RANK"])
GENERATION = int(os.environ["EVERSTEP_GENERATION"])
SHOWN = ("MA_", "VC_", "EVERSTEP_", "NNODES")
LOOK_S = 0.02
BYTES = b"." * 4096


def write_down() -> None:
    told = {name: text for name, text in os.environ.items() if name.startswith(SHOWN)}
    params = "".join(Path(given).read_text() for given in sys.argv[1:])
    who = {"generation": GENERATION, "rank": RANK, "pid": os.getpid()}
    line = json.dumps({**who, "env": told, "params": params})
    with (CONTROL / f"starts-{os.environ['EVERSTEP_SLOT']}.jsonl").open("a") as file:
        file.write(line + "\n")


def save(number: int) -> None:
    folder = Path(os.environ["CHECKPOINTS"])
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"step-{number}.json.tmp"
    fresh.write_text(json.dumps({"step": number}))
    fresh.replace(folder / f"step-{number}.json")


def end(code: str, exception: str | None = None) -> None:
    if exception is not None:
        known = getattr(builtins, exception, None)
        raise known or type(exception, (Exception,), {})
    sys.exit(int(code))


def main() -> None:
    write_down()
    null = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115  # as long as the process lives
    mine = CONTROL / f"exit-{RANK}-{GENERATION}"
    saved = -1
    while not (CONTROL / f"end-{GENERATION}").exists():
        if mine.exists():
            end(*mine.read_text().split())
        if RANK == 0 and (CONTROL / "save").exists():
            wanted = int((CONTROL / "save").read_text())
            if wanted > saved:
                save(wanted)
                saved = wanted
        if not (CONTROL / f"still-{GENERATION}").exists():
            null.write(BYTES)
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
