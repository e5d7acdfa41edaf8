"""Volumes of a pod as folders of this machine, and where its containers mount them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.testbed.api import Api, ApiError, Json
from tests.testbed.kubelet.container import Mount
from tests.testbed.kubelet.environment import ConfigError, Lookup, field_value, texts

_SUPPORTED = "emptyDir, configMap, secret, downwardAPI, projected, hostPath, persistentVolumeClaim"
_KINDS = {"configMap": "configmaps", "secret": "secrets"}
"""Sources of volumes."""
_REFERENCES = {
    **_KINDS,
    "configMapRef": "configmaps",  # of envFrom
    "secretRef": "secrets",
    "configMapKeyRef": "configmaps",  # of env
    "secretKeyRef": "secrets",
}


class References:
    """The ConfigMaps and Secrets that pods name.

    `keeps_immutable`: a ConfigMap that never changes is requested once, and its deletion goes unnoticed.
    """

    def __init__(self, api: Api, *, keeps_immutable: bool = False) -> None:
        self._api = api
        self._keeps_immutable = keeps_immutable
        self._immutable: dict[str, Json] = {}  # by path

    async def fetch(self, pod: Json) -> Lookup:
        """Fetch every one that the pod names."""
        namespace = pod["metadata"]["namespace"]
        objects: dict[tuple[str, str], Json | None] = {}
        for kind, name in set(_references(pod)):
            objects[kind, name] = await self._get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")
        return lambda kind, name: objects[kind, name]

    async def _get(self, path: str) -> Json | None:
        if path in self._immutable:
            return self._immutable[path]
        try:
            obj = await self._api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        if self._keeps_immutable and obj.get("immutable") and "/configmaps/" in path:
            self._immutable[path] = obj
        return obj


def _references(pod: Json) -> Iterator[tuple[str, str]]:
    spec = pod["spec"]
    for source in _sources(spec):
        for field, kind in _REFERENCES.items():
            if reference := source.get(field):
                yield kind, reference.get("secretName") or reference["name"]


def _sources(spec: Json) -> Iterator[Json]:
    """Whatever in a pod's spec may name a ConfigMap or a Secret."""
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        yield from container.get("envFrom", ())
        yield from (variable.get("valueFrom", {}) for variable in container.get("env", ()))
    for volume in spec.get("volumes", ()):
        yield from (volume, *volume.get("projected", {}).get("sources", ()))


class VolumeMaker:
    """Makes the volumes of one pod below `folder`."""

    def __init__(self, api: Api, pod: Json, lookup: Lookup, folder: Path) -> None:
        self._api = api
        self._pod = pod
        self._lookup = lookup
        self._folder = folder

    async def make(self) -> dict[str, str]:
        """Volume name to path. Raises `ConfigError` while something that is named does not exist."""
        return {
            volume["name"]: await self._make_one(volume)
            for volume in self._pod["spec"].get("volumes", ())
        }

    async def _make_one(self, volume: Json) -> str:
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return await self._claimed(volume["persistentVolumeClaim"]["claimName"])
        folder = self._folder / volume["name"]
        if "emptyDir" in volume:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            return str(folder)
        sources = volume.get("projected", {}).get("sources", [volume])
        # An earlier kubelet may have made it: the folder itself is mounted in containers that still run.
        folder.mkdir(parents=True, exist_ok=True)
        names = set[str]()
        for source in sources:
            mode = volume.get("projected", source.get("secret", source.get("configMap", {})))
            for path, content in (await self._entries(source)).items():
                _write(folder / path, content, mode.get("defaultMode", 0o644))
                names.add(path.split("/")[0])
        for left in folder.iterdir():
            if left.name not in names:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        return str(folder)

    async def _entries(self, source: Json) -> dict[str, bytes]:
        """Files of one source of a volume: path to content."""
        for field, kind in _KINDS.items():
            if field in source:
                return self._entries_of_object(kind, source[field])
        if "downwardAPI" in source:
            return {
                item["path"]: field_value(item["fieldRef"]["fieldPath"], self._pod).encode()
                for item in source["downwardAPI"].get("items", ())
            }
        if "serviceAccountToken" in source:
            token = source["serviceAccountToken"]
            return {token["path"]: (await self._service_account_token(token)).encode()}
        kinds = ", ".join(set(source) - {"name"})
        raise ConfigError(f"unsupported volume {kinds}; supported: {_SUPPORTED}")

    def _entries_of_object(self, kind: str, reference: Json) -> dict[str, bytes]:
        name = reference.get("secretName") or reference["name"]
        obj = self._lookup(kind, name)
        if obj is None:
            if reference.get("optional"):
                return {}
            raise ConfigError(f'{kind.removesuffix("s")} "{name}" not found')
        entries = texts(kind, obj)
        if "items" not in reference:
            return entries
        if absent := [one["key"] for one in reference["items"] if one["key"] not in entries]:
            raise ConfigError(f"{kind} {name} has no key {', '.join(absent)}")
        return {one["path"]: entries[one["key"]] for one in reference["items"]}

    async def _service_account_token(self, source: Json) -> str:
        metadata = self._pod["metadata"]
        account = self._pod["spec"].get("serviceAccountName", "default")
        reference = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        request: Json = {
            "expirationSeconds": source.get("expirationSeconds", 3600),
            "boundObjectRef": reference,
        }
        if "audience" in source:
            request["audiences"] = [source["audience"]]
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        reply = await self._api.create(path, {"spec": request})
        return str(reply["status"]["token"])

    async def _claimed(self, name: str) -> str:
        """The folder of a claim that is bound to a volume with a host path."""
        namespace = self._pod["metadata"]["namespace"]
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
        volume_name = (await self._api.get(path))["spec"].get("volumeName")
        if not volume_name:
            raise ConfigError(f'persistentvolumeclaim "{name}" is not bound')
        volume = await self._api.get(f"/api/v1/persistentvolumes/{volume_name}")
        return _host_path(volume["spec"]["hostPath"])


def _write(file: Path, content: bytes, mode: int) -> None:
    """Write all of the file at once: containers may be reading it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.fresh")
    fresh.write_bytes(content)
    fresh.chmod(mode)
    fresh.replace(file)


def _host_path(source: Json) -> str:
    path, kind = Path(source["path"]), source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    is_of_kind = {"Directory": path.is_dir, "File": path.is_file}.get(kind, path.exists)
    if not is_of_kind():
        raise ConfigError(f"hostPath type check failed: {path} is not a {kind or 'path'}")
    return str(path)


def mounts_of(container: Json, volumes: dict[str, str]) -> list[Mount]:
    """Where a container mounts the volumes of its pod."""
    mounts = []
    for mount in container.get("volumeMounts", ()):
        source = Path(volumes[mount["name"]], mount.get("subPath", ""))
        if mount.get("subPath") and not source.exists():
            source.mkdir(parents=True)
        mounts.append(
            Mount(
                source=str(source),
                target=mount["mountPath"].rstrip("/"),
                read_only=mount.get("readOnly", False),
            )
        )
    return mounts
