"""The bill of materials, as CycloneDX: the packages of the image, in the versions that the tests ran with.

A wheel asks for ranges; `deploy/requirements.txt` has what a worker is known to run with.
"""

from __future__ import annotations

import re
import tomllib
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from everstep.version import __version__

ROOT = Path(__file__).parents[1]
PINS = ROOT / "deploy" / "requirements.txt"
PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([\w.+!]+)", re.MULTILINE)
ITSELF = f"pkg:pypi/everstep@{__version__}"


def bill(hashes: Mapping[str, str], *, made_at: float) -> dict[str, Any]:
    """The bill of the files with these names and SHA-256 sums."""
    components = [_component(name, version) for name, version in pins()]
    moment = datetime.fromtimestamp(made_at, tz=UTC).isoformat().replace("+00:00", "Z")
    files = [
        {
            "type": "file",
            "bom-ref": f"file:{name}",
            "name": name,
            "hashes": [{"alg": "SHA-256", "content": content}],
        }
        for name, content in sorted(hashes.items())
    ]
    body = {
        "metadata": {
            "timestamp": moment,
            "component": {
                "type": "application",
                "bom-ref": ITSELF,
                "name": "everstep",
                "version": __version__,
                "purl": ITSELF,
                "licenses": [{"expression": "Apache-2.0"}],
                "components": files,
            },
        },
        "components": components,
        "dependencies": [
            {"ref": ITSELF, "dependsOn": [_url(*pin) for pin in pins() if pin[0] in _direct()]}
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, repr(body))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        **body,
    }


def pins() -> list[tuple[str, str]]:
    """Names and versions of the packages of the image."""
    return [(match[1].lower(), match[2]) for match in PIN.finditer(PINS.read_text())]


def _direct() -> set[str]:
    """The packages that Everstep itself asks for, extras of the image included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["telemetry"], *extras["kubernetes"]]
    return {re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0].lower() for line in asked}


def _url(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def _component(name: str, version: str) -> dict[str, Any]:
    url = _url(name, version)
    component = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    licence = _licence(name, version)
    return {**component, "licenses": [{"expression": licence}]} if licence else component


def _licence(name: str, version: str) -> str | None:
    """The SPDX expression in the package's own metadata, if it is installed here in this version."""
    try:
        installed = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    expressions = installed.metadata.get_all("License-Expression") or [None]
    return expressions[0] if installed.version == version else None
