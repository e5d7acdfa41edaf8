"""Where the folders of a job are in its pods. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from everstep.backends.agents.folders import JobFolders
from everstep.core.errors import InvalidSpec
from everstep.core.world import FenceOrder, StartOrder


class PodFolders(JobFolders):
    """A relative workdir begins in the folder of the image, which only the agent finds out."""

    def named(self, folders: Mapping[str, str]) -> dict[str, str]:
        """Raises InvalidSpec for a folder of which it is not certain that it outlives a pod."""
        what = "is relative; on Kubernetes name an absolute path on a volume of `pod_template`"
        if problems := [(f, what) for path, f in folders.items() if not posixpath.isabs(path)]:
            raise InvalidSpec(problems)
        return super().named(folders)

    def to_fence(self, order: FenceOrder) -> FenceOrder:
        is_absolute = order.workdir is not None and posixpath.isabs(order.workdir)
        return replace(super().to_fence(order), workdir=order.workdir if is_absolute else None)

    def to_start(self, order: StartOrder) -> StartOrder:
        return replace(super().to_start(order), workdir=order.workdir)


FOLDERS = PodFolders(base="/", own=None)
"""Of every job: what a pod sees is the same for all of them."""
