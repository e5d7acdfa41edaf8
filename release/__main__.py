"""`python -m release FOLDER`: makes all files of a version from the files that git has of this checkout.

Nothing is fetched, and nothing that git does not have goes in. Times are that of the commit, so that the same
commit makes the same bytes, whoever makes them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from everstep.version import __version__
from release import archives, bill, chart

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"
CHART = f"{chart.NAME}-chart-{__version__}"


def make(folder: Path) -> None:
    """Write all files into the folder, which must be empty or new."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"error: {folder} is not empty; remove it, or name another one")
    with tempfile.TemporaryDirectory() as scratch:
        sources = _sources(Path(scratch, "sources"))
        _build(sources, "hatchling", "build", "-d", str(folder.absolute()))
        agent = folder / f"everstep-agent-{__version__}.pyz"
        _build(sources, "everstep.agent.build", str(agent.absolute()))
        library = folder / f"everstep_train-{__version__}.py"
        _build(sources, "everstep.train.build", str(library.absolute()))
    packed = archives.tar_gz(chart.files())
    (folder / f"{CHART}.tgz").write_bytes(packed)
    layout = archives.oci_archive(chart.CONFIG, packed, tag=__version__)
    (folder / f"{CHART}.oci.tar").write_bytes(layout)
    listed = bill.bill(_sums(folder), made_at=_commit_time())
    (folder / f"everstep-{__version__}.cdx.json").write_text(json.dumps(listed, indent=1) + "\n")
    sums = "".join(f"{value}  {name}\n" for name, value in sorted(_sums(folder).items()))
    (folder / SUMS).write_text(sums)
    sys.stdout.write(sums)


def _sources(target: Path) -> Path:
    """A copy of what git has of this checkout: nothing else that lies here may go in."""
    listed = _git("ls-files", "-z", "--cached").split("\0")
    for name in filter(None, listed):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, path)
        path.chmod(0o644)
    return target


def _build(sources: Path, module: str, *arguments: str) -> None:
    """Run a module of these sources, at the time of the commit."""
    env = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(_commit_time()),
        "PYTHONPATH": str(sources),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=sources, env=env, stdout=subprocess.DEVNULL, check=False)
    if ended.returncode:
        sys.exit(f"error: {module} ended with {ended.returncode}")


def _sums(folder: Path) -> dict[str, str]:
    return {path.name: archives.digest(path.read_bytes()) for path in folder.iterdir()}


def _commit_time() -> int:
    return int(_git("log", "-1", "--format=%ct"))


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    make(Path(sys.argv[1]))
