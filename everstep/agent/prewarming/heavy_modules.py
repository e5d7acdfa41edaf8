"""Which modules of a rank are worth importing ahead: by the native libraries that its process has mapped.

The kernel shows the files that a process has mapped; the rank itself is not disturbed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from everstep.agent.processes import proc
from everstep.free_memory import free_bytes

HEAVY_BYTES = 50_000_000
"""A package with so much native code takes seconds to import. NumPy, with 40 MB, takes a tenth of one."""
LIBRARY = re.compile(r"(?P<base>/.*/(?:site|dist)-packages)/(?P<package>\w+)/.*\.so(?:\.[\d.]+)?$")
NO_MODULES = frozenset({"nvidia"})
"""Folders with libraries of other packages."""
IMPORTED_LATER: Mapping[str, tuple[str, ...]] = {"torch": ("_dynamo",)}
"""Parts of a package that take as long again, and that its first use imports, as an optimizer of PyTorch."""
ROOM = 2.0
"""A helper needs as much memory as a rank had when it was ready to train; this many times must be free."""


def heavy_modules(pid: int, *, root: Path = proc.PROC) -> list[str]:
    """The heavy modules of a process, in the order of their names; none if memory is short."""
    try:
        lines = (root / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    packages = packages_in(line.partition("/")[2] for line in lines)
    heavy = sorted(package for package, size in packages.items() if size >= HEAVY_BYTES)
    free = free_bytes()
    if not heavy or (free is not None and free < ROOM * proc.rss_bytes(pid)):
        return []
    return [module for package in heavy for module in _with_later_parts(package)]


def packages_in(paths: Iterable[str]) -> dict[Path, int]:
    """The packages that these libraries belong to, and the size of them all."""
    sizes: dict[Path, int] = defaultdict(int)
    for path in {f"/{path}" for path in paths}:
        library = LIBRARY.match(path)
        if library is not None and library["package"] not in NO_MODULES:
            sizes[Path(library["base"], library["package"])] += _size(path)
    return sizes


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _with_later_parts(package: Path) -> list[str]:
    parts = IMPORTED_LATER.get(package.name, ())
    later = [f"{package.name}.{part}" for part in parts if (package / part).exists()]
    return [package.name, *later]
