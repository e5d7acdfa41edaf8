"""Without a list, the agent finds which modules take long to import by what a rank has loaded."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from everstep.agent.prewarming import heavy_modules
from everstep.agent.prewarming.prewarm import LOG
from everstep.agent.processes import proc
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, until
from tests.agent.prewarming.warm import Warm, is_prewarmed

SIZE = 60_000_000
IMPORTS = f"import heavy\nprint('step 1', flush=True)\n{FOREVER}"
PACKAGE = """
import mmap, os
with open(os.path.join(os.path.dirname(__file__), "lib", "native.so.1.2"), "rb") as library:
    mapped = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages with a heavy one: its library takes no room on the disk."""
    folder = tmp_path / "site-packages"
    (folder / "heavy" / "lib").mkdir(parents=True)
    (folder / "heavy" / "__init__.py").write_text(PACKAGE)
    with (folder / "heavy" / "lib" / "native.so.1.2").open("wb") as library:
        library.truncate(SIZE)
    return folder


def auto(pod: Pod, packages: Path) -> Warm:
    warm = Warm(pod, modules=[])
    warm.write(IMPORTS)
    warm.start(prewarm_auto=True, env={"PYTHONPATH": str(packages)})
    return warm


def test_the_second_start_is_forked_from_a_process_with_those_modules(
    pod: Pod, packages: Path
) -> None:
    warm = auto(pod, packages)
    assert is_prewarmed(pod.state()) is None
    assert warm.ready()["modules"] == ["heavy"]
    state = warm.start(prewarm_auto=True, env={"PYTHONPATH": str(packages)})
    assert is_prewarmed(state)
    assert [note for note in state["notes"] if "prewarm" in note] == []


def test_another_command_does_not_get_these_modules(pod: Pod, packages: Path) -> None:
    warm = auto(pod, packages)
    warm.ready()
    warm.command = [sys.executable, "other.py"]
    warm.write(FOREVER, "other.py")
    state = warm.start(prewarm_auto=True, env={"PYTHONPATH": str(packages)})
    assert is_prewarmed(state) is None
    assert state["helper"] is None


def test_a_command_that_no_helper_serves_is_started_without_a_note(
    pod: Pod, packages: Path
) -> None:
    warm = auto(pod, packages)
    warm.ready()
    warm.command = ["/bin/sh", "-c", "sleep 60"]
    state = warm.start(prewarm_auto=True)
    assert [note for note in state["notes"] if "prewarm" in note] == []


def test_a_package_from_another_place_is_not_imported_ahead(
    pod: Pod, packages: Path, tmp_path: Path
) -> None:
    """A helper looks for it along its own path, which a launcher of the script may have changed."""
    other = tmp_path / "other" / "site-packages"
    shutil.copytree(packages, other)
    warm = Warm(pod, modules=[])
    (pod.home / "paths.py").write_text(f"import sys\nsys.path.insert(0, {str(other)!r})\n")
    warm.write(f"import paths\n{IMPORTS}")
    start = {"prewarm_auto": True, "env": {"PYTHONPATH": str(packages)}}
    warm.start(**start)
    # The helper may be gone again before a poll is answered: its log stays.
    until((pod.home / LOG).exists, what="a helper")
    fresh = f"{wire.STATE}?fresh=1"  # answered by the loop, which started the helper
    until(lambda: pod.ask("GET", fresh)["helper"] is None, what="the end of the helper")
    state = pod.state()
    assert is_prewarmed(warm.start(**start)) is None
    assert [note for note in state["notes"] if "prewarm" in note] == []


PREPARES = {
    "os.environ['OMP_NUM_THREADS'] = '1'": True,
    "os.environ.setdefault('A', 'b')": True,
    "sys.path.insert(0, 'lib')": True,
    "os.putenv('A', 'b')": True,
    "rank = int(os.environ['RANK'])": False,
    "if os.environ['A'] == 'b': pass": False,
    "os.environ.get('RANK')": False,
}


@pytest.mark.parametrize(("line", "prepares"), PREPARES.items())
def test_a_script_that_prepares_its_imports_is_not_imported_ahead_for(
    line: str, prepares: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys\n{line}\nimport torch\n")
    assert heavy_modules.prepares_its_imports(script) is prepares


PATHS = {
    "/usr/lib/python3/dist-packages/jax/_core.so": ["jax"],
    "/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so": ["torch"],
    "/venv/lib/python3.11/site-packages/numpy.libs/libopenblas.so": [],
    "/venv/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn.so.9": [],
    "/usr/lib/x86_64-linux-gnu/libc.so.6": [],
    "/venv/lib/python3.11/site-packages/torch/data.bin": [],
}


@pytest.mark.parametrize(("path", "names"), PATHS.items())
def test_a_library_belongs_to_its_package(path: str, names: list[str]) -> None:
    assert [package.name for package in heavy_modules.packages_in([path[1:]])] == names


def test_without_memory_for_a_second_copy_nothing_is_imported(
    packages: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = packages / "heavy" / "lib" / "native.so.1.2"
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "maps").write_text(f"7f00-7f01 r--p 0 08:01 1  {library}\n")
    heavy = heavy_modules.heavy_modules(1, root=tmp_path)
    assert heavy == heavy_modules.HeavyModules(["heavy"], [packages / "heavy"])
    monkeypatch.setattr(heavy_modules, "free_bytes", lambda: 0)
    monkeypatch.setattr(proc, "rss_bytes", lambda _pid: 1)
    assert heavy_modules.heavy_modules(1, root=tmp_path) is None
