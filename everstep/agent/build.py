"""Makes the agent one file that any Python 3.9 or newer can run. The same sources make the same bytes."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
_THEN = (1980, 1, 1, 0, 0, 0)
_MAIN = "from everstep.agent.__main__ import main\n\nmain()\n"


def build(path: Path) -> Path:
    """Write it there; whoever reads the path sees the old file or the whole new one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    with fresh.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w") as archive:
            _put(archive, "__main__.py", _MAIN)
            _put(archive, "everstep/__init__.py", "")
            for source in sorted(HERE.rglob("*.py")):
                if source.name != Path(__file__).name:
                    name = source.relative_to(HERE).as_posix()
                    _put(archive, f"everstep/agent/{name}", source.read_text())
    fresh.chmod(0o700)
    fresh.replace(path)
    return path


def ensure(path: Path) -> Path:
    """Have it there, made from the sources of this installation."""
    if not path.exists() or any(
        source.stat().st_mtime > path.stat().st_mtime for source in HERE.rglob("*.py")
    ):
        build(path)
    return path


def _put(archive: zipfile.ZipFile, name: str, text: str) -> None:
    info = zipfile.ZipInfo(name, _THEN)
    info.external_attr = 0o644 << 16
    archive.writestr(info, text)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
