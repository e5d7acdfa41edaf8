"""The second chance that the gate gives, and the shares of the long tests that it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gate import gate
from tests.support import seconds
from tests.support.shards import Shard

FLAKY = """
from pathlib import Path
def test_passes_the_second_time():
    mark = Path("was_here")
    first = not mark.exists()
    mark.touch()
    assert not first
"""
PASSES_THE_THIRD_TIME = """
from pathlib import Path
def test_passes_the_third_time():
    with Path("runs").open("a") as log:
        print("once", file=log)
    assert len(Path("runs").read_text().split()) == 3
"""
KILLS_PYTEST_ALONE = """
import os, signal
from pathlib import Path
def test_it():
    if Path("was_here").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    Path("was_here").touch()
    assert False
"""
ERROR_OF_PYTEST = """
from pathlib import Path
def pytest_runtestloop(session):
    if not Path("was_here").exists():
        Path("was_here").touch()
        raise RuntimeError("not of a test")
"""
PASSES = """
from pathlib import Path
def test_passes():
    with Path("passed").open("a") as log:
        print("once", file=log)
"""
BREAKS_ITS_PROCESS = """
import os
from pathlib import Path
def test_takes_its_process_along_the_first_time():
    if not Path("was_here").exists():
        Path("was_here").touch()
        os._exit(1)
"""
NO_SHARE_OF_ONE = """
from pathlib import Path
def pytest_addoption(parser):
    parser.addoption("--shard")
def pytest_collection_modifyitems(config, items):
    if config.getoption("shard") and Path("was_here").exists():
        items.clear()
"""
FAILS = "def test_fails():\n    assert False\n"
TWO = ["-p", "xdist.plugin", "-n", "2", "--dist", "loadfile"]


@pytest.fixture(autouse=True)
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of pytest would load those that only the real tests need."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def folder_of(folder: Path, **files: str) -> Path:
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize(
    "paths",
    [pytest.param([], id="all tests"), pytest.param(["."], id="tests of a folder")],
)
@pytest.mark.long
def test_a_test_that_takes_its_process_along_has_failed_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], paths: list[str]
) -> None:
    """Only this one breaks a process of xdist.

    What is named at the start is not run again with what failed.
    """
    assert (
        gate([*TWO, *paths], folder=folder_of(tmp_path, breaks=BREAKS_ITS_PROCESS, passes=PASSES))
        == 0
    )
    assert "FLAKY test_breaks.py::test_takes" in capfd.readouterr().out
    assert (tmp_path / "passed").read_text() == "once\n"


def test_only_what_fails_alone_too_fails_the_gate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, flaky=FLAKY, fails=FAILS)
    assert gate(TWO, folder=folder) == pytest.ExitCode.TESTS_FAILED
    out = capfd.readouterr().out
    assert "FLAKY test_flaky.py::test_passes_the_second_time" in out
    assert "FLAKY test_fails.py" not in out


@pytest.mark.long
def test_a_test_that_failed_has_two_more_tries(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only this one has a test that passes the third time."""
    assert gate(TWO[:2], folder=folder_of(tmp_path, flaky=PASSES_THE_THIRD_TIME)) == 0
    assert "FLAKY test_flaky.py::test_passes_the_third_time" in capfd.readouterr().out


@pytest.mark.long
def test_a_signal_alone_fails_the_gate_whatever_else_passes(tmp_path: Path) -> None:
    """Only this one has a run that a signal ends."""
    folder = folder_of(tmp_path, kills=KILLS_PYTEST_ALONE, other=PASSES_THE_THIRD_TIME)
    assert gate(TWO[:2], folder=folder) == -9


@pytest.mark.long
def test_a_run_that_broke_off_begins_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only this one has an error of pytest itself."""
    folder = folder_of(tmp_path, passes=PASSES)
    (folder / "conftest.py").write_text(ERROR_OF_PYTEST)
    assert gate([], folder=folder) == 0
    assert "broke off with 3 and begins again" in capfd.readouterr().out
    assert (folder / "passed").read_text() == "once\n"


@pytest.mark.long
def test_what_failed_runs_again_whatever_its_share(tmp_path: Path) -> None:
    """Alone a test may be of another share, which would leave out the only one.

    Only this one has a share.
    """
    folder = folder_of(tmp_path, flaky=FLAKY)
    (folder / "conftest.py").write_text(NO_SHARE_OF_ONE)
    assert gate(["-p", "xdist.plugin", "--shard=2/4"], folder=folder) == 0


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({}, pytest.ExitCode.NO_TESTS_COLLECTED),
        pytest.param(
            {"broken": "import nothing_of_this_name\n"},
            pytest.ExitCode.INTERRUPTED,
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"breaks_off": "import pytest\ndef test_it():\n    pytest.exit('broken off')\n"},
            2,
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_is_no_failed_test_fails_the_gate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], files: dict[str, str], code: int
) -> None:
    """The long rows have a file that cannot be imported, and a test that ends the run."""
    assert gate([], folder=folder_of(tmp_path, **files)) == code
    assert "run again" not in capfd.readouterr().out


TESTS = {f"tests/test_{n % 7}.py::test_it[{n}]": 0.0 for n in range(398)} | {
    f"tests/slow_{n}.py::test_it": 600.0 for n in range(9)
}


MEASURED_S = {test: 2.0 + len(test) * n for n, test in enumerate(TESTS) if n % 3}


def test_all_shares_of_a_commit_are_the_whole_and_no_test_is_in_two() -> None:
    shares = [Shard.parse(f"{k}/4", commit="5eed").of(TESTS, MEASURED_S) for k in (1, 2, 3, 4)]
    assert sorted(test for share in shares for test in share) == sorted(TESTS)


def test_shares_have_as_many_tests_of_each_file_and_as_many_slow_ones() -> None:
    shares = [Shard.parse(f"{k}/4", commit="5eed").of(TESTS, {}) for k in (1, 2, 3, 4)]
    for beginning in ("tests/slow", *(f"tests/test_{n}.py" for n in range(7))):
        sizes = [sum(test.startswith(beginning) for test in share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def test_shares_take_as_long_as_each_other_where_tests_were_measured() -> None:
    """One test takes 240 s where others of its file take 5."""
    seconds_of = {test: 240.0 if "[7]" in test or "slow_3" in test else 5.0 for test in TESTS}
    shares = [Shard.parse(f"{k}/4", commit="5eed").of(TESTS, seconds_of) for k in (1, 2, 3, 4)]
    totals_s = [sum(seconds_of[test] for test in share) for share in shares]
    assert max(totals_s) - min(totals_s) <= 5.0


def test_seconds_are_updated_for_what_ran_and_dropped_with_their_test(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for name in ("slow", "fast", "other"):
        (tmp_path / "tests" / f"test_{name}.py").write_text("async def test_it() -> None: ...")
    (tmp_path / "tests" / "test_renamed.py").write_text("def test_it_all() -> None: ...")
    table = tmp_path / "tests" / "seconds.json"
    names = ("slow", "fast", "other", "gone", "renamed")
    table.write_text(json.dumps({f"tests/test_{name}.py::test_it": 9.0 for name in names}))
    measured = {"tests/test_slow.py::test_it": 7.04, "tests/test_fast.py::test_it": 0.5}
    seconds.update(measured, table)
    assert seconds.read(table) == {
        "tests/test_other.py::test_it": 9.0,
        "tests/test_slow.py::test_it": 7.0,
    }


def test_another_commit_has_another_share() -> None:
    one, other = (Shard(index=1, count=4, commit=c).of(TESTS, MEASURED_S) for c in ("a", "b"))
    assert len(one & other) < len(one) / 2


@pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b"])
def test_a_share_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 2/4"):
        Shard.parse(text, commit="5eed")
