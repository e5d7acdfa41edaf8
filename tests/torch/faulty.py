"""Runs a script such as examples/survivors/train.py with faults that it causes itself, each once.

  FAULTS  such as `forward:1:15,cut:0:30`: what happens to which rank at which step

`begin`, `forward`, `backward`, `update` and `save` end the rank by SIGKILL there, `form` as it forms the
group again (a new process has step 0). `stop` stops it, `cut` ends its connections to the others, in both
cases before the forward pass. Each process writes its number down.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLE = Path(os.environ["EXAMPLE"])
OUT = Path(os.environ["OUT"])
RANK = os.environ["RANK"]


def due(what: str, step: int) -> bool:
    """Whether this fault is due now, for the first time."""
    name = f"{what}:{RANK}:{step}"
    if name not in os.environ["FAULTS"].split(","):
        return False
    with contextlib.suppress(FileExistsError):
        (OUT / f"done-{name}").touch(exist_ok=False)
        return True
    return False


def end(what: str, step: int) -> None:
    if due(what, step):
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    spec = importlib.util.spec_from_file_location("train", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    train: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)

    class Faulty(train.Group):  # type: ignore[misc]  # of a module loaded by its path
        now = 0

        def replicated(self, module: Any, **options: Any) -> Any:
            module.register_forward_pre_hook(lambda *_: self.before_forward())
            module[0].register_full_backward_hook(lambda *_: end("backward", self.now))
            return super().replicated(module, **options)

        def _form(self) -> None:
            if os.environ.get("EVERSTEP_STATE_FROM"):
                end("form", self.now)
            super()._form()

        def before_forward(self) -> None:
            end("forward", self.now)
            if due("stop", self.now):
                os.kill(os.getpid(), signal.SIGSTOP)
            if due("cut", self.now):
                self._free()

        @contextlib.contextmanager
        def _attempt(self, step: int) -> Iterator[int]:
            self.now = step
            end("begin", step)
            with super()._attempt(step) as number:
                yield number

        @contextlib.contextmanager
        def updating(self, step: int) -> Iterator[None]:
            with super().updating(step):
                yield
                end("update", step)

    save = train.save

    def ending_save(step: int, state: Any) -> None:
        end("save", step)
        save(step, state)

    train.Group, train.save = Faulty, ending_save
    with (OUT / f"pids-{RANK}").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    train.main()


if __name__ == "__main__":
    main()
