"""Bounds what earlier runs left in the pod's folder: the logs of their ranks, and evidence.

A job that restarts in place for weeks has hundreds of runs in one pod. The oldest go first; the newest of the
earlier runs stays whatever it takes, as it shows why there was a restart.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from itertools import accumulate
from pathlib import Path

RUNS_MOST = 100
BYTES_MOST = 1024 * 1024 * 1024

_OF_RUN = r"g(\d+)(-r\d+\.(log|times))?"


def prune(folders: Collection[Path], generation: int, *, in_use: Collection[str]) -> None:
    """Remove what goes beyond the bounds of runs older than this generation.

    `in_use`: names without suffix that stay, such as the logs of ranks that live on.
    """
    runs: dict[int, list[Path]] = {}
    for of, path in _paths(folders):
        if of < generation and path.stem not in in_use:
            runs.setdefault(of, []).append(path)
    newest_first = [runs[of] for of in sorted(runs, reverse=True)]
    sizes = accumulate(sum(map(_bytes, paths)) for paths in newest_first)
    for number, (paths, size) in enumerate(zip(newest_first, sizes)):
        if number >= RUNS_MOST or (number and size > BYTES_MOST):
            for path in paths:
                _remove(path)


def _paths(folders: Collection[Path]) -> Iterator[tuple[int, Path]]:
    for folder in folders:
        with contextlib.suppress(OSError):
            if folder.is_symlink():  # by a rank: what is there is not ours
                continue
            for path in folder.iterdir():
                if name := re.fullmatch(_OF_RUN, path.name):
                    yield int(name[1]), path


def _bytes(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size + sum(map(_bytes, path.iterdir() if _is_folder(path) else ()))
    return 0


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if _is_folder(path):
            import shutil  # with three compressors, of which no start has a use

            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _is_folder(path: Path) -> bool:
    """Whether it is a folder, and no link to one: what is behind a link is not of the run."""
    return path.is_dir() and not path.is_symlink()
