"""Makes the agent one file that any Python 3.9 or newer can run. The same sources make the same bytes.

Beside each source lies what this Python makes of it, so that a pod need not compile before it can start;
another Python passes over that and takes the source.
"""

from __future__ import annotations

import inspect
import marshal
import os
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from types import CodeType

PACKAGE = Path(__file__).parents[1]
PARTS = ("agent", "free_memory.py", "protocol")
"""The folders and files of the package that the archive has."""
_THEN = (1980, 1, 1, 0, 0, 0)
_MAIN = """import gc
import sys

gc.disable()  # a collection during the imports finds nothing and takes a tenth of the start
if sys.argv[1:2] == ["warden"]:  # a pod has one of each: neither loads what only the other needs
    from everstep.agent.processes.warden import main
elif sys.argv[1:2] == ["release"]:
    from everstep.agent.storage.releasing import main
else:
    from everstep.agent.__main__ import main

gc.freeze()  # modules stay until the end: no collection has to look at them
gc.enable()
main()
"""
_UNCHECKED = (0b01).to_bytes(4, "little")
"""Flag of compiled code: Python uses it without comparing it with its source."""


def build(path: Path, *, is_small: bool = False) -> Path:
    """Write the archive; a reader of the path sees the old file or the whole new one.

    A small one is compressed to a third. It needs `zlib` and starts some milliseconds later.
    """
    method = zipfile.ZIP_DEFLATED if is_small else zipfile.ZIP_STORED
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    with fresh.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", method) as archive:
            _write(archive, "__main__.py", _MAIN.encode())
            _write(archive, "everstep/__init__.py", b"")
            _write(archive, "everstep/__init__.pyc", _stored(b"", compile("", "everstep", "exec")))
            for source in sources():
                if source != Path(__file__):
                    _put(archive, f"everstep/{source.relative_to(PACKAGE).as_posix()}", source)
    fresh.chmod(0o700)
    fresh.replace(path)
    return path


def sources() -> list[Path]:
    """The sources of this installation."""
    parts = [PACKAGE / part for part in PARTS]
    return [
        source
        for part in parts
        for source in (sorted(part.rglob("*.py")) if part.is_dir() else [part])
    ]


def ensure(path: Path) -> Path:
    """Have it there, made from the sources of this installation."""
    if not path.exists() or any(
        source.stat().st_mtime > path.stat().st_mtime for source in sources()
    ):
        build(path)
    return path


def _put(archive: zipfile.ZipFile, name: str, source: Path) -> None:
    text = source.read_bytes()
    _write(archive, name, text)
    _write(archive, f"{name}c", _stored(text, _renamed(_compiled(source), name)))


def _stored(text: bytes, code: CodeType) -> bytes:
    """The content of a compiled file."""
    # This version of the format has no references. They would depend on what else is loaded, and save 1 ms
    # of a start.
    return MAGIC_NUMBER + _UNCHECKED + source_hash(text) + marshal.dumps(code, 2)


def _compiled(source: Path) -> CodeType:
    """The module's code: where Python has compiled it before, that is read, which is ten times faster."""
    module = source.stem
    code = SourceFileLoader(module, str(source)).get_code(module)
    assert code is not None, f"{source} is a source"
    return code


def _renamed(code: CodeType, name: str) -> CodeType:
    """The code with its file's name in the archive, not that of this installation.

    Columns and docstrings of functions are left out: the archive has the source.
    """
    constants = [_renamed(c, name) if isinstance(c, CodeType) else c for c in code.co_consts]
    if _begins_with_docstring(code):
        constants[0] = None
    return code.replace(
        co_filename=name, co_consts=tuple(constants), co_linetable=_line_table(code)
    )


def _begins_with_docstring(code: CodeType) -> bool:
    """Whether the first constant is a function's docstring: of a function without one it is None."""
    is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    is_reserved = sys.version_info < (3, 14)
    return bool(is_function and is_reserved and isinstance(code.co_consts[0], str))


def _line_table(code: CodeType) -> bytes:
    """The lines of the code without columns, in the format of Python 3.11: a sixth of a small archive."""
    table, line_before = bytearray(), code.co_firstlineno
    for begin, end, line in code.co_lines():
        for units_left in range((end - begin) // 2, 0, -_UNITS_MOST):
            units = min(units_left, _UNITS_MOST) - 1
            if line is None:
                table.append(_NO_LINE | units)
            else:
                table.append(_LINE_ALONE | units)
                table += _signed(line - line_before)
                line_before = line
    return bytes(table)


_NO_LINE, _LINE_ALONE, _UNITS_MOST = 0x80 | 15 << 3, 0x80 | 13 << 3, 8


def _signed(number: int) -> bytes:
    """A number in pieces of six bits, the lowest first; the lowest bit of all is its sign."""
    rest, pieces = abs(number) << 1 | (number < 0), bytearray()
    while rest > 63:
        pieces.append(64 | rest & 63)
        rest >>= 6
    return bytes([*pieces, rest])


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _THEN)
    info.external_attr = 0o644 << 16
    archive.writestr(info, content, archive.compression)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
