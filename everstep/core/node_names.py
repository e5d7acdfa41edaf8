"""Names under which nodes and devices are isolated: what every cluster can store and every node can have."""

from __future__ import annotations

import re

from everstep.core.bounds import NAME_MOST, quoted
from everstep.core.errors import CommandRejected

_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_NODE = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_DEVICE = re.compile(r"[0-9]{1,7}", re.ASCII)


def check_place(name: str, *, command: str) -> None:
    """Raise CommandRejected unless this may be the name of a node, `gpu-07`, or of a device, `gpu-07/3`.

    As Kubernetes names nodes: RFC 1123. The nodes of a local cluster are n0, n1 and so on.
    """
    node, slash, device = name.partition("/")
    if len(node) > NAME_MOST:
        raise CommandRejected(f"{command}: node has more than {NAME_MOST} characters ({len(node)})")
    if not _NODE.fullmatch(node) or (slash and not _DEVICE.fullmatch(device)):
        raise CommandRejected(
            f"{command}: {quoted(name)} is no name of a node, such as gpu-07, or of a device, gpu-07/3; "
            "`everstep nodes` shows them"
        )


def is_place(name: str) -> bool:
    """Whether this may be the name of a node or a device."""
    try:
        check_place(name, command="")
    except CommandRejected:
        return False
    return True
