"""Makes the train library one file, `everstep_train.py`, for images in which nothing of ours is installed.

    python -m everstep.train.build everstep_train.py

The file has the sources as they are and imports them from itself, unless Everstep is installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PARTS = ("free_memory.py", "protocol", "train")

_HEAD = '''"""The train library of Everstep in one file. Copy it beside the script.

    from everstep_train import run
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys

_SOURCES = {
'''
_TAIL = '''}


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports what this file has."""

    def find_spec(self, name, path=None, target=None):
        if name not in _SOURCES:
            return None
        return importlib.machinery.ModuleSpec(
            name, self, origin=f"{__file__}/{name}", is_package=self.is_package(name)
        )

    def is_package(self, name):
        return any(other.startswith(name + ".") for other in _SOURCES)

    def get_source(self, name):
        return _SOURCES[name]

    def get_code(self, name):
        return compile(_SOURCES[name], f"{__file__}/{name}", "exec", dont_inherit=True)


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("everstep.train") is not None
    except ImportError:
        return False


if not _is_installed():
    sys.meta_path.append(_Sources())

from everstep.train import *  # noqa: E402, F403
from everstep.train import __all__  # noqa: E402, F401
'''


def build(path: Path) -> Path:
    """Write the file; a reader of the path sees the old one or the whole new one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.write_text(content())
    fresh.replace(path)
    return path


def content() -> str:
    """The text of the file: the same for the same sources."""
    sources = {"everstep": "", **{_module(path): path.read_text() for path in _paths()}}
    rows = "".join(f"    {name!r}: {_literal(text)},\n" for name, text in sorted(sources.items()))
    return f"{_HEAD}{rows}{_TAIL}"


def _paths() -> list[Path]:
    parts = [PACKAGE / part for part in PARTS]
    files = [file for part in parts for file in ([part] if part.is_file() else part.glob("*.py"))]
    return sorted(file for file in files if file != Path(__file__))


def _module(path: Path) -> str:
    """The name under which a source is imported."""
    words = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def _literal(text: str) -> str:
    """The text as Python writes it over several lines."""
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""\\\n{escaped}"""'


if __name__ == "__main__":
    build(Path(sys.argv[1]))
