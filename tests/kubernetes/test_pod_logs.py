"""Lines of a container's log as output of ranks."""

from __future__ import annotations

from typing import Any, cast

from everstep.backends.kubernetes.api import KubernetesApi
from everstep.backends.kubernetes.pod_logs import PodLog
from everstep.backends.tools import RankLog


def test_lines_are_told_apart_by_generation_and_rank_and_keep_their_time() -> None:
    """With times as an API server writes them; what no rank printed is left out."""
    log = PodLog(cast("KubernetesApi", cast("Any", None)), "path")
    log._add(b"2026-01-31T12:00:00.5Z [g1 rank 0] step 1\n2026-01-31T12:00:01.25Z [g2 ran")
    log._add(b"k 3] [rank 1] of its own\nthe agent's own words\n[g1 rank 0] no time\n")
    first, second = sorted(log.lines)
    assert (first, second) == (
        RankLog(generation=1, rank=0, source="path"),
        RankLog(generation=2, rank=3, source="path"),
    )
    assert [(line.text, line.at) for line in log.lines[first]] == [
        ("step 1\n", 1769860800.5),
        ("no time\n", None),
    ]
    assert log.lines[second][0].text == "[rank 1] of its own\n"
