"""Each slot reports the storage that a job shares; what a replaced run says of it is answered."""

from __future__ import annotations

import pytest

from everstep.core.seeing import watching
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.seeing.watching import Watch
from everstep.core.state import Learned
from everstep.core.world import Observation
from tests.support.builders import fact, pod, watch_order


@pytest.mark.parametrize(("generation", "is_news"), [(1, False), (2, True), (0, True)])
def test_a_report_of_the_storage_by_a_replaced_run_is_no_news(
    generation: int, *, is_news: bool
) -> None:
    """0: the cluster itself reports it, of what is so now."""
    pods = tuple(pod(slot, generation=2, step=9, step_at=100.0) for slot in (0, 1))
    late = fact("storage.full", slot=1, generation=generation)
    observation = Observation(now=100.0, cursor="1", pods=pods, facts=(late,), generation=2)
    order = watch_order(0, 1, generation=2)
    _, verdict = watching.check(order, Watch(learned=Learned(), has_polled=True), observation)
    assert (isinstance(verdict, WatchReport) and verdict.facts == (late,)) is is_news
