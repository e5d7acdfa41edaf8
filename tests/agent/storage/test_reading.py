"""Storage that hangs takes a few threads, never those of the callers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from everstep.agent.storage import reading
from tests.support.patience import HUNG_S


@pytest.fixture
def storage() -> Iterator[threading.Event]:
    """Hangs until it is set."""
    event = threading.Event()
    yield event
    event.set()


def hang(folder: str, work: Callable[[], object]) -> None:
    with pytest.raises(reading.StorageHangs, match=folder):
        reading.read(folder, work, within_s=0.01)


def test_the_answer_and_the_error_of_the_work_are_those_of_the_reader() -> None:
    assert reading.read("here", lambda: 7) == 7
    with pytest.raises(FileNotFoundError):
        reading.read("here", lambda: open("/no/such/file"))  # noqa: PTH123, SIM115


def test_hanging_storage_is_given_up_and_takes_no_more_than_a_few_threads(
    storage: threading.Event,
) -> None:
    threads: list[threading.Thread] = []
    begun = threading.Semaphore(0)

    def work() -> None:
        threads.append(threading.current_thread())
        begun.release()
        storage.wait(HUNG_S)

    for _ in range(10 * reading.MOST):
        hang("lost", work)
    assert all(begun.acquire(timeout=HUNG_S) for _ in range(reading.MOST))
    assert len({*threads}) == len(threads) == reading.MOST
    assert reading.read("healthy", lambda: "read") == "read"


def test_storage_that_answers_again_is_read_again(storage: threading.Event) -> None:
    ended = threading.Barrier(reading.MOST + 1)
    for _ in range(reading.MOST):
        answer = reading.begin("back", lambda: storage.wait(HUNG_S))
        answer.add_done_callback(lambda _: ended.wait(HUNG_S))
    hang("back", lambda: storage.wait(HUNG_S))
    storage.set()
    ended.wait(HUNG_S)
    assert reading.read("back", lambda: "read") == "read"
