"""What `make release` makes: the same bytes each time, and what a stranger installs without the checkout."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.version import __version__
from release import archives, bill, chart
from release.__main__ import SUMS
from tests.support.machine import example
from tests.support.patience import HUNG_S

ROOT = Path(__file__).resolve().parents[1]


def test_an_archive_depends_on_its_content_alone() -> None:
    one = archives.tar_gz({"b/x": b"1", "a": b"2"})
    assert one == archives.tar_gz({"a": b"2", "b/x": b"1"})
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        entries = archive.getmembers()
    assert [(e.name, e.mtime, e.uid, e.mode) for e in entries] == [
        ("a", 0, 0, 0o644),
        ("b/x", 0, 0, 0o644),
    ]


def test_a_registry_finds_the_chart_in_its_image_layout() -> None:
    """Every blob has the digest that its manifest says, from the index on."""
    packed = archives.tar_gz(chart.files())
    layout = archives.oci_archive(chart.CONFIG, packed, tag=__version__)
    with tarfile.open(fileobj=io.BytesIO(layout)) as archive:
        blobs = {e.name: (archive.extractfile(e) or io.BytesIO()).read() for e in archive}

    def blob(described: Mapping[str, Any]) -> bytes:
        content = blobs["blobs/sha256/" + described["digest"].removeprefix("sha256:")]
        assert hashlib.sha256(content).hexdigest() == described["digest"].removeprefix("sha256:")
        assert len(content) == described["size"]
        return content

    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(blobs["index.json"])["manifests"]
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": __version__}
    manifest = json.loads(blob(entry))
    assert json.loads(blob(manifest["config"]))["version"] == __version__
    assert blob(manifest["layers"][0]) == packed


def test_the_chart_has_every_manifest_that_a_group_of_workers_has() -> None:
    folders = ("kubernetes", "job-namespace", "setup")
    manifests = {
        f"{folder}/{name}"
        for folder in folders
        for name in yaml.safe_load((chart.DEPLOY / folder / "kustomization.yaml").read_text())[
            "resources"
        ]
    }
    # Helm makes the namespace of a release itself.
    assert {t.source for t in chart.TEMPLATES} == manifests - {"kubernetes/namespace.yaml"}


def test_a_manifest_that_changes_under_the_chart_is_an_error() -> None:
    replaced = chart.Replaced("replicas: 3", "replicas: {{ .Values.replicas }}")
    with pytest.raises(
        chart.ManifestChanged, match=r"deploy/kubernetes/worker\.yaml has 'replicas"
    ):
        chart.text(chart.Template("kubernetes/worker.yaml", (replaced,)))


def test_what_a_manifest_says_of_one_installation_is_a_value_in_the_chart() -> None:
    texts = [chart.text(template) for template in chart.TEMPLATES]
    lines = [line for text in texts for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in lines if "NAMESPACE" in line and "EVERSTEP_KUBE" not in line]
    assert not [
        line for line in lines if "namespace: everstep" in line or "image: everstep" in line
    ]


def test_the_settings_of_the_chart_are_those_that_kustomize_generates() -> None:
    (generated,) = yaml.safe_load((chart.DEPLOY / "kubernetes/kustomization.yaml").read_text())[
        "configMapGenerator"
    ]
    values = yaml.safe_load((chart.OWN / "values.yaml").read_text())
    by_name = {
        "EVERSTEP_CLUSTER": values["cluster"],
        "TEMPORAL_ADDRESS": values["temporal"]["address"],
        "TEMPORAL_NAMESPACE": values["temporal"]["namespace"],
    }
    assert dict(line.split("=", 1) for line in generated["literals"]) == by_name
    assert all(
        f"{name}: " in (chart.OWN / "templates/settings.yaml").read_text() for name in by_name
    )


def test_every_value_of_the_chart_is_in_its_schema_and_no_other() -> None:
    values = yaml.safe_load((chart.OWN / "values.yaml").read_text())
    schema = json.loads((chart.OWN / "values.schema.json").read_text())

    def compare(value: Mapping[str, Any], of: Mapping[str, Any], path: str) -> None:
        assert set(value) == set(of["properties"]) - {"global"}, path
        for name, inner in value.items():
            if "properties" in of["properties"][name]:
                compare(inner, of["properties"][name], f"{path}.{name}")

    compare(values, schema, "")


def test_the_bill_has_every_package_of_the_image_and_every_reference_leads_somewhere() -> None:
    made = bill.bill({"everstep.whl": "ab"}, made_at=0.0)
    references = {component["bom-ref"] for component in made["components"]}
    pinned = sum("==" in line for line in bill.PINS.read_text().splitlines())
    assert len(references) == pinned
    (root,) = made["dependencies"]
    assert root["ref"] == made["metadata"]["component"]["bom-ref"]
    assert set(root["dependsOn"]) < references
    assert len(root["dependsOn"]) == len(bill._direct())
    assert made["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    assert made == bill.bill({"everstep.whl": "ab"}, made_at=0.0)


# -- the files, made and installed ----------------------------------------------------------------


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    ended = subprocess.run(
        [*command],
        cwd=cwd,
        env={"PATH": os.defpath, "HOME": str(cwd), **_of_the_network(), **env},
        capture_output=True,
        text=True,
        timeout=HUNG_S * 4,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _of_the_network() -> dict[str, str]:
    """Where pip finds packages: that is of the machine, not of the checkout."""
    names = ("PIP_", "UV_", "HTTP", "http", "SSL_", "NO_PROXY", "no_proxy", "REQUESTS_")
    return {name: value for name, value in os.environ.items() if name.startswith(names)}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    subprocess.run([sys.executable, "-m", "release", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.mark.long
def test_the_same_commit_makes_the_same_bytes(released: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "release", str(tmp_path)], cwd=ROOT, check=True)
    names = {path.name for path in released.iterdir()}
    assert len(names) == 8
    for name in names:
        assert (tmp_path / name).read_bytes() == (released / name).read_bytes(), name
    lines = [line.split("  ") for line in (released / SUMS).read_text().splitlines()]
    assert {name: value for value, name in lines} == {
        name: archives.digest((released / name).read_bytes()) for name in names - {SUMS}
    }


@pytest.mark.long
def test_a_stranger_installs_the_wheel_and_trains(released: Path, tmp_path: Path) -> None:
    """The environment is empty: it gets what pip fetches, and nothing of the checkout."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    (wheel,) = released.glob("*.whl")
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    assert (
        run(python.with_name("everstep"), "--version", cwd=tmp_path) == f"everstep {__version__}\n"
    )
    job = example("single", tmp_path / "single", **{'"--steps", "100"': '"--steps", "5"'})
    script = "import everstep, sys; result = everstep.run(sys.argv[1], allow_other_users=True)"
    prints = "print(everstep.__file__, result.state)"
    here = {"EVERSTEP_HOME": str(tmp_path / "home"), "PATH": f"{python.parent}:{os.defpath}"}
    place, state = run(python, "-c", f"{script}; {prints}", job, cwd=tmp_path, **here).split()
    assert Path(place).is_relative_to(tmp_path / "env")
    assert state == "completed"


@pytest.mark.long
def test_the_agent_and_the_train_library_run_by_themselves(released: Path, tmp_path: Path) -> None:
    (agent,) = released.glob("*.pyz")
    assert run(sys.executable, "-I", agent, "--help", cwd=tmp_path)
    (library,) = released.glob("everstep_train-*.py")
    (tmp_path / "everstep_train.py").write_bytes(library.read_bytes())
    script = "import everstep_train; print(everstep_train.__all__)"
    assert "run" in run(sys.executable, "-S", "-c", script, cwd=tmp_path)
