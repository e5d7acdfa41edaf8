"""What a user gets from an installed wheel: everything the repository has, and nothing of its rest."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import Machine, example
from tests.support.patience import HUNG_S

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("everstep", "workflows", "activities")

pytestmark = pytest.mark.long


def pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True, cwd=ROOT)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", target, ROOT)
    (built,) = target.glob("*.whl")
    return built


def sources() -> Iterator[str]:
    for top in ("worker.py", *PACKAGES):
        path = ROOT / top
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file() and not is_for_us_only(file.relative_to(ROOT)):
                yield str(file.relative_to(ROOT))


def is_for_us_only(file: Path) -> bool:
    return file.name == "ruff.toml" or any(
        part == "__pycache__" or part.startswith(".") for part in file.parts
    )


def test_the_wheel_holds_every_file_of_the_product_and_no_other(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == set(sources())


def test_the_wheel_carries_its_licence_and_says_so(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = archive.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    for name in ("LICENSE", "NOTICE"):
        assert archive.read(f"{info}/licenses/{name}") == (ROOT / name).read_bytes()


def test_an_installed_wheel_is_imported_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    pip("install", "--no-deps", "--target", tmp_path / "site", wheel)
    tops = {name.split("/")[0].removesuffix(".py") for name in sources() if name.endswith(".py")}
    imports = f"import {', '.join(sorted(tops))}; print(everstep.__file__)"
    output = subprocess.run(
        [sys.executable, "-c", imports],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(output.stdout.strip()).is_relative_to(tmp_path / "site")


def test_an_installed_wheel_runs_a_job_by_itself(wheel: Path, tmp_path: Path) -> None:
    """`everstep run`, with no server, no worker and no repository around."""
    site = tmp_path / "site"
    pip("install", "--no-deps", "--target", site, wheel)
    machine = Machine.at(tmp_path / "home")
    job = example("single", tmp_path / "single", **{'"--steps", "100"': '"--steps", "5"'})
    script = "import everstep; print(everstep.__file__); from everstep.cli.script import run; run()"
    ended = subprocess.run(
        [sys.executable, "-c", script, "run", str(job)],
        cwd=tmp_path,
        env={**machine.env, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert Path(ended.stdout.splitlines()[0]).is_relative_to(site)
    assert "main completed" in ended.stdout
    assert machine.processes() == []
