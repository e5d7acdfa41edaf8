"""Environment variables and command of a container, from its pod's spec. Pure: objects are arguments."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tests.testbed.api import Json

Lookup = Callable[[str, str], Json | None]
"""Kind (`configmaps` or `secrets`) and name to the object; None if it does not exist."""

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ConfigError(Exception):
    """Something that the spec names does not exist; the container waits for it."""


def texts(kind: str, obj: Json) -> dict[str, bytes]:
    """The entries of a ConfigMap or Secret."""
    binary = obj.get("data") if kind == "secrets" else obj.get("binaryData")
    entries = {key: b64decode(value) for key, value in (binary or {}).items()}
    if kind == "configmaps":
        entries |= {key: value.encode() for key, value in (obj.get("data") or {}).items()}
    return entries


def field_value(path: str, pod: Json) -> str:
    """A field of the pod by its path in the downward API."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    if subscript := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str(metadata.get(subscript[1], {}).get(subscript[2], ""))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": status.get("podIP", ""),
        "status.hostIP": status.get("hostIP", ""),
    }
    if path in {"metadata.labels", "metadata.annotations"}:
        entries = metadata.get(path.removeprefix("metadata."), {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    if path not in values:
        raise ConfigError(f"unsupported field path {path}")
    return str(values[path])


def service_variables(api_server: str) -> dict[str, str]:
    """Where clients in a pod find the API server. There is no service network: it is the server itself."""
    url = urlsplit(api_server)
    return {
        "KUBERNETES_SERVICE_HOST": str(url.hostname),
        "KUBERNETES_SERVICE_PORT": str(url.port),
    }


def variables(
    container: Json, pod: Json, lookup: Lookup, services: Mapping[str, str]
) -> dict[str, str]:
    """All variables of a container. Later ones may refer to earlier ones as `$(NAME)`."""
    values = {"PATH": _PATH, "HOME": "/", "HOSTNAME": pod["metadata"]["name"], **services}
    for source in container.get("envFrom", ()):
        for field, kind in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if reference := source.get(field):
                entries = _entries(kind, reference, lookup)
                prefix = source.get("prefix", "")
                values |= {f"{prefix}{key}": value.decode() for key, value in entries.items()}
    for variable in container.get("env", ()):
        if origin := variable.get("valueFrom"):
            value = _value_from(origin, pod, lookup)
        else:
            value = expand(variable.get("value", ""), values)
        if value is not None:
            values[variable["name"]] = value
    return values


def _entries(kind: str, reference: Json, lookup: Lookup) -> dict[str, bytes]:
    """The entries of a named object; none where it is optional and does not exist."""
    obj = lookup(kind, reference["name"])
    if obj is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{kind.removesuffix("s")} "{reference["name"]}" not found')
    return texts(kind, obj)


def _value_from(origin: Json, pod: Json, lookup: Lookup) -> str | None:
    if "fieldRef" in origin:
        return field_value(origin["fieldRef"]["fieldPath"], pod)
    for field, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if reference := origin.get(field):
            entries = _entries(kind, reference, lookup)
            if reference["key"] in entries:
                return entries[reference["key"]].decode()
            if reference.get("optional"):
                return None
            raise ConfigError(f"couldn't find key {reference['key']} in {kind} {reference['name']}")
    raise ConfigError(f"unsupported source {', '.join(origin)}")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; `$$` is a dollar sign, and an unknown name stays as it is."""

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return values.get(match[1], match[0])

    return _REFERENCE.sub(replacement, text)


def command_line(container: Json, values: Mapping[str, str]) -> list[str]:
    """Command and arguments. There are no images here, so a command is required."""
    words = [*container.get("command", ()), *container.get("args", ())]
    if not container.get("command"):
        raise ConfigError("no command, and images have none here")
    return [expand(word, values) for word in words]
