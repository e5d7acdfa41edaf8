"""How long a worker's answer is waited for."""

from __future__ import annotations

import pytest

from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs.answers import PATIENCE_S, patience_s


@pytest.mark.parametrize("text", ["nan", "-1", "0", "inf", "1e999", "long", ""])
def test_a_patience_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", text)
    with pytest.raises(
        Failed, match=r"EVERSTEP_PATIENCE_S is .*; give a number of seconds"
    ) as error:
        patience_s()
    assert error.value.code is Exit.USAGE


def test_any_other_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", "0.5")
    assert patience_s() == 0.5
    monkeypatch.delenv("EVERSTEP_PATIENCE_S")
    assert patience_s() == PATIENCE_S
