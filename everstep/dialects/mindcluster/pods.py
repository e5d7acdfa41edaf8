"""The pod template of a MindCluster document, in the form that a native `spec.pod_template` has.

Kept is what says where and how its containers run: volumes, mounts, selectors, affinity, resources,
probes, containers beside the one that trains. What Everstep does itself is left out: the command and the
image of the training container, which stand in `spec`, and the restart policy.
"""

from __future__ import annotations

from typing import Any

from everstep.dialects.mindcluster.container_commands import main_container
from everstep.dialects.mindcluster.shapes import PodTemplate

TRAIN = "train"
"""The name of the training container in a native pod template."""

_METADATA = ("labels", "annotations")
_NOT_OF_A_POD = ("restartPolicy", "nodeName", "hostPID", "shareProcessNamespace")
_NOT_OF_TRAIN = ("name", "image", "command", "args")


def pod_template(template: PodTemplate, priority_class: str | None = None) -> dict[str, Any]:
    """Return the template without what is Everstep's own; the training container is called `train`.

    `priority_class`: what the job names for pods whose template names none.
    """
    written = template.model_dump(by_alias=True, exclude_unset=True)
    metadata = {
        key: value for key, value in written.get("metadata", {}).items() if key in _METADATA
    }
    spec = {key: value for key, value in written["spec"].items() if key not in _NOT_OF_A_POD}
    if priority_class:
        spec.setdefault("priorityClassName", priority_class)
    index, _ = main_container(template)
    containers = list(spec["containers"])
    container = {key: value for key, value in containers[index].items() if key not in _NOT_OF_TRAIN}
    containers[index] = {"name": TRAIN, **container}
    spec["containers"] = containers
    return {"metadata": metadata, "spec": spec} if metadata else {"spec": spec}
