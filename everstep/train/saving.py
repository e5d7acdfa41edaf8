"""Saves a snapshot by the script's own function, in a process of its own, where the rank has ended.

The rank names the function by module and name, since nothing else of it outlives the process. A function of
the script itself is found in its file, so its training has to stand below `if __name__ == "__main__":`.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, Callable

from everstep.train.buffers import Buffer

SCRIPT_NAME = "__everstep_save__"
"""What `__name__` is in a script that is loaded for its function."""
BEGIN = """
import importlib, json, math, signal, sys
signal.alarm(math.ceil(float(sys.argv[4])) + 1)  # a stopped agent ends nothing
spec = json.loads(sys.argv[1])
sys.path[:] = spec["path"]
for name in spec["imports"]:
    importlib.import_module(name)
from everstep.train.saving import save
save(spec, handle=int(sys.argv[2]), step=int(sys.argv[3]))
"""


def saver(function: Callable[[int, Any], object]) -> dict[str, Any]:
    """How an agent calls this function. Raises ValueError for one that it cannot find."""
    module, name = function.__module__, function.__qualname__
    if not name.isidentifier():
        raise ValueError(f"save_with: {name} is not a function of a module, by its name")
    script = None
    if module == "__main__":
        script = _script_with_guard()
    single_file = ["everstep_train"] if "everstep_train" in sys.modules else []
    spec = {
        "path": [os.path.abspath(one) for one in sys.path],  # noqa: PTH100  # an entry need not exist
        "imports": single_file,
        "module": module,
        "script": script,
        "name": name,
    }
    return {"command": [sys.executable, "-c", BEGIN, json.dumps(spec)], "workdir": os.getcwd()}  # noqa: PTH109  # a text


def _script_with_guard() -> str:
    """The file of this script. Raises ValueError where loading it would begin the training again."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        raise ValueError("save_with: a function of a module is needed, as this script has no file")
    if "__main__" not in Path(path).read_text(errors="replace"):
        why = "the function's script trains as soon as it is loaded"
        raise ValueError(f"save_with: {why}: put that below `if __name__ == '__main__':`")
    return str(Path(path).resolve())


def save(spec: dict[str, Any], *, handle: int, step: int) -> None:
    """Call the function with the snapshot behind this handle. In the process that the agent starts."""
    function = _function(spec)
    buffer = Buffer(handle)
    snapshot = buffer.snapshot
    if snapshot is None or snapshot.step != step or not buffer.is_intact(snapshot):
        sys.exit(f"the memory has no whole snapshot of step {step}")
    function(step, buffer.read(snapshot))


def _function(spec: dict[str, Any]) -> Callable[[int, Any], object]:
    if spec["script"] is not None:
        loaded: Any = runpy.run_path(spec["script"], run_name=SCRIPT_NAME)[spec["name"]]
    else:
        loaded = getattr(importlib.import_module(spec["module"]), spec["name"])
    function: Callable[[int, Any], object] = loaded
    return function
