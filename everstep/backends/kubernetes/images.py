"""Whether a text names an image. The API server takes any; the kubelet refuses it once the pod has a node."""

from __future__ import annotations

import re

_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,}"
_IMAGE = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::{_TAG})?(?:@{_DIGEST})?")
_RULE = "an image is REPOSITORY[:TAG][@DIGEST], the repository in lower case: example.com/team/train:1.0"


def problem_of_job(image: str | None) -> str:
    """Why no pod of a job can be made from this image; empty where one can."""
    if not image:
        return "missing: a pod is made from an image that has Python 3.9 or newer"
    return problem(image)


def problem(image: str) -> str:
    """Why no kubelet could pull it; empty where one could."""
    if not _IMAGE.fullmatch(image):
        return f"is {image!r}: {_RULE}"
    return ""
