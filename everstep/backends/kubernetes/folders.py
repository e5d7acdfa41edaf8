"""Where the folders of a job are in its pods, and on which volumes. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from everstep.backends.agents.folders import JobFolders
from everstep.backends.kubernetes.api import Json
from everstep.backends.rules.ownership import FolderClaim, FolderPlace
from everstep.core.errors import InvalidSpec
from everstep.protocol.wire import RunOrder


class PodFolders(JobFolders):
    """A relative workdir begins in the folder of the image, which only the agent finds out."""

    def field_of_each(self, folders: Mapping[str, str]) -> dict[str, str]:
        """Raises InvalidSpec for a folder of which it is not certain that it outlives a pod."""
        what = "is relative; on Kubernetes name an absolute path on a volume of `pod_template`"
        if problems := [(f, what) for path, f in folders.items() if not posixpath.isabs(path)]:
            raise InvalidSpec(problems)
        return super().field_of_each(folders)

    def to_run(self, run: RunOrder) -> RunOrder:
        return super().to_run(run)._replace(workdir=run.workdir)


FOLDERS = PodFolders(base="/", default_model_dir=None)
"""The folders of every job: what a pod sees is the same for all of them."""


# -- On which volume ------------------------------------------------------------------------------


def claims(
    pod_spec: Json, container: str, folders: Mapping[str, str], *, namespace: str
) -> list[FolderClaim]:
    """The folders (path -> the field that names it) by their volumes, as the container mounts them.

    A folder on a volume that says nothing of where it is has no place: its fence alone decides.
    """
    volumes = {volume["name"]: volume for volume in pod_spec["volumes"]}
    mounts = next(one["volumeMounts"] for one in pod_spec["containers"] if one["name"] == container)
    claims_made = []
    for folder, field in FOLDERS.field_of_each(folders).items():
        place = _place(folder, mounts, volumes, namespace)
        places = () if place is None else (place,)
        claims_made.append(FolderClaim(path=folder, field=field, places=places))
    return claims_made


def _place(
    folder: str, mounts: Sequence[Json], volumes: Mapping[str, Json], namespace: str
) -> FolderPlace | None:
    above = [mount for mount in mounts if _is_below(folder, mount["mountPath"])]
    mount = max(above, key=lambda one: len(one["mountPath"].rstrip("/")), default=None)
    if mount is None or "subPathExpr" in mount or mount["name"] not in volumes:
        return None
    volume = _shared(volumes[mount["name"]], namespace)
    if volume is None:
        return None
    inside = posixpath.relpath(folder, mount["mountPath"])
    path = posixpath.join("/", volume.path, mount.get("subPath", ""), inside)
    return FolderPlace(volume.volume, posixpath.normpath(path))


def _is_below(folder: str, mount_path: str) -> bool:
    return f"{folder}/".startswith(f"{mount_path.rstrip('/')}/")


def _shared(volume: Json, namespace: str) -> FolderPlace | None:
    """A volume that other jobs may mount too. A PersistentVolumeClaim has its PersistentVolume alone."""
    match volume:
        case {"persistentVolumeClaim": {"claimName": name}}:
            return FolderPlace(f"claim {namespace}/{name}", "")
        case {"nfs": {"server": server, "path": path}}:
            return FolderPlace(f"nfs {server}", path.lstrip("/"))
        case _:
            return None
