"""The arguments of an agent: read as they are meant, and refused with what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.agent.__main__ import arguments

NEEDED = ("--home", "/pod", "--job=demo", "--slot", "3", "--node", "n0", "--uid", "u")


def test_arguments_are_read_with_their_defaults() -> None:
    options = arguments([*NEEDED, "--copy-output", "--orphan-s", "1.5", "--listen", "tcp:[::1]:80"])
    assert (options.home, options.job, options.slot) == (Path("/pod"), "demo", 3)
    assert (options.orphan_s, options.log_mb, options.listen) == (1.5, 32.0, ("::1", 80))
    assert (options.copy_output, options.inherit, options.credentials) == (True, False, None)


WRONG = {
    "unknown": ([*NEEDED, "--hom", "/pod"], "there is no argument --hom"),
    "stray": ([*NEEDED, "demo"], "there is no argument demo"),
    "without its value": ([*NEEDED, "--log-mb"], "--log-mb needs a value"),
    "no number": ([*NEEDED, "--slot", "first"], "--slot: invalid literal"),
    "no address": ([*NEEDED, "--listen", "80"], "--listen: 80 is not tcp:HOST:PORT"),
    "a flag with a value": ([*NEEDED, "--inherit=yes"], "there is no argument --inherit=yes"),
    "missing": ([*NEEDED[:3]], "an argument is missing: node, slot, uid"),
}


@pytest.mark.parametrize(("words", "why"), list(WRONG.values()), ids=list(WRONG))
def test_wrong_arguments_are_refused_in_one_line(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"everstep-agent: {why}")
