"""How a process ended, in a status, in the details of a fact, for a container and in words."""

from __future__ import annotations

import pytest

from everstep.protocol.exits import Exit


@pytest.mark.parametrize(
    ("status", "exit", "container_code", "words"),
    [
        (0, Exit(code=0), 0, "exit code 0"),
        (3, Exit(code=3), 3, "exit code 3"),
        (-9, Exit(signal=9), 137, "signal 9"),
    ],
)
def test_an_exit_is_the_same_in_every_form(
    status: int, exit: Exit, container_code: int, words: str
) -> None:
    assert Exit.of_status(status) == exit == Exit.in_details(exit.details)
    assert (exit.container_code, str(exit)) == (container_code, words)
    assert exit.is_good is (status == 0)


@pytest.mark.parametrize("details", [{}, {"exit_code": None}, {"exit_code": "3", "signal": [9]}])
def test_details_without_an_exit_have_an_unknown_one(details: dict[str, object]) -> None:
    unknown = Exit.in_details(details)
    assert (unknown, unknown.container_code, unknown.is_good, str(unknown)) == (
        Exit(),
        None,
        False,
        "",
    )
