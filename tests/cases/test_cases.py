"""Every case on the fake cluster, in virtual time."""

from __future__ import annotations

import pytest

from tests.cases.case import ONCE, RETRY, Case
from tests.cases.on_fake import play
from tests.cases.results import differences
from tests.cases.table import CASES


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
async def test_case(case: Case) -> None:
    assert differences(case, await play(case)) == []


async def test_a_job_whose_time_is_over_was_stopped_and_did_not_fail() -> None:
    case = Case(
        number=0,
        name="auto stop",
        annotations={RETRY: "3"},
        auto_stop_h=2,
        deeds=(),
        ends="Terminated",
        because="the phase ran as long as spec.auto_stop allows",
        counts=ONCE,
        events=("JobStarted", "JobTerminated"),
        silent=("JobFailed",),
    )
    assert differences(case, await play(case)) == []
