"""Which modules of a rank are worth importing ahead: by the native libraries that its process has mapped.

The kernel shows the files that a process has mapped; the rank itself is not disturbed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

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


PREPARES_IMPORTS = re.compile(
    rb"""environ\s*\[[^\]]*\]\s*=[^=] | environ\.(?:setdefault|update|pop|clear) | (?:un)?(?:putenv|setenv)
    | sys\.path\b | addsitedir | load_dotenv""",
    re.VERBOSE,
)
"""What a script may do before it imports a package: it changes which package that is, or how it works."""


class HeavyModules(NamedTuple):
    """What is imported ahead: modules, and the folders of the packages that they belong to."""

    modules: list[str]
    packages: list[Path]


def heavy_modules(pid: int, *, root: Path = proc.PROC) -> HeavyModules | None:
    """The heavy modules of a process, in the order of their names; None if it has none or memory is short."""
    packages = packages_of(pid, root=root)
    heavy = sorted(package for package, size in packages.items() if size >= HEAVY_BYTES)
    free = free_bytes()
    if not heavy or (free is not None and free < ROOM * proc.rss_bytes(pid)):
        return None
    return HeavyModules([name for one in heavy for name in _with_later_parts(one)], heavy)


def packages_of(pid: int, *, root: Path = proc.PROC) -> dict[Path, int]:
    """The packages with native libraries that a process has mapped, and the size of these."""
    try:
        lines = (root / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return packages_in(line.partition("/")[2] for line in lines)


def prepares_its_imports(script: Path) -> bool:
    """Whether a script sets variables or paths itself: a helper would import before it does."""
    try:
        return PREPARES_IMPORTS.search(script.read_bytes()) is not None
    except OSError:
        return True


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
