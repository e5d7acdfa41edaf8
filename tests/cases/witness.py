"""A training process that records its environment, and then follows the files of its test.

One line for each start in `starts-<slot>.jsonl` of the CONTROL folder. It goes on moving bytes until there
is a file: `exit-<rank>-<generation>` holds its exit code, and the name of its exception if it raises one,
`still` keeps it from moving anything, `validate` has it print a step and then line after line, `log` has the
first rank log an exception and go on, `save` has the first rank save once, `end-<generation>` ends all
ranks with code 0.
"""

from __future__ import annotations

import builtins
import json
import logging
import os
import sys
import time
from pathlib import Path

CONTROL = Path(os.environ["CONTROL"])
RANK = int(os.environ["RANK"])
GENERATION = int(os.environ["EVERSTEP_GENERATION"])
PREFIXES = ("MA_", "VC_", "EVERSTEP_", "NNODES")
POLL_S = 0.02
STILL_POLL_S = 0.5
"""Seldom enough to use no measurable time of a processor."""
BYTES = b"." * 4096


def write_down() -> None:
    variables = {name: text for name, text in os.environ.items() if name.startswith(PREFIXES)}
    params = "".join(Path(argument).read_text() for argument in sys.argv[1:])
    who = {"generation": GENERATION, "rank": RANK, "pid": os.getpid()}
    line = json.dumps({**who, "env": variables, "params": params})
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
        exception_type = getattr(builtins, exception, None)
        raise exception_type or type(exception, (Exception,), {})
    sys.exit(int(code))


def log(name: str) -> None:
    """A handled error, as programs log it."""
    try:
        end("1", name)
    except Exception:
        logging.getLogger("witness").exception("could not go on as usual")
    (CONTROL / "logged").touch()


def main() -> None:
    write_down()
    null = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115  # as long as the process lives
    exit_file = CONTROL / f"exit-{RANK}-{GENERATION}"
    saved, validates, logged = -1, False, False
    while not (CONTROL / f"end-{GENERATION}").exists():
        if exit_file.exists():
            end(*exit_file.read_text().split())
        if RANK == 0 and not logged and (CONTROL / f"log-{GENERATION}").exists():
            logged = True
            log((CONTROL / f"log-{GENERATION}").read_text())
        is_still = (CONTROL / f"still-{GENERATION}").exists()
        if RANK == 0 and not is_still and (CONTROL / "save").exists():
            step_to_save = int((CONTROL / "save").read_text())
            if step_to_save > saved:
                save(step_to_save)
                saved = step_to_save
        if (CONTROL / f"validate-{GENERATION}").exists():
            sys.stdout.write("validates\n" if validates else "step 1\n")
            sys.stdout.flush()
            validates = True
        elif not is_still:
            null.write(BYTES)
        time.sleep(STILL_POLL_S if is_still else POLL_S)


if __name__ == "__main__":
    main()
