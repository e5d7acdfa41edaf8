"""The codec: what it writes shows nothing and cannot be changed, and what it cannot open is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import ActivitySerializationContext, DataConverter
from temporalio.exceptions import ApplicationError

from everstep import converter
from everstep.core.errors import KeysUnusable, PayloadClosed
from everstep.encryption.codec import Codec, WithoutKeys
from everstep.encryption.heartbeats import ClosedDetails
from everstep.encryption.keys import VARIABLE, KeyFolder
from tests.support.keys import choose, key_folder, write_key

SECRET = "hf_5ecre7-of-ada"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return key_folder(tmp_path / "keys", "2026-11")


@pytest.fixture
def codec(folder: Path) -> Codec:
    return Codec(KeyFolder(folder))


@pytest.fixture
def closing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DataConverter:
    """The converter of a process that has the keys."""
    monkeypatch.setenv(VARIABLE, str(folder))
    return converter.data_converter()


def plain(text: str = SECRET) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=f'"{text}"'.encode())


async def test_an_encrypted_payload_shows_the_name_of_its_key_alone(codec: Codec) -> None:
    payload = plain()
    (closed,) = await codec.encode([payload])
    assert SECRET.encode() not in closed.SerializeToString()
    assert dict(closed.metadata) == {
        "encoding": b"binary/encrypted",
        "encryption-cipher": b"AES-256-GCM",
        "encryption-key-id": b"2026-11",
    }
    assert await codec.decode([closed]) == [payload]
    assert (await codec.encode([payload]))[0].data != closed.data


async def test_what_was_written_without_keys_stays_readable(codec: Codec) -> None:
    assert await codec.decode([plain()]) == [plain()]


async def test_a_key_that_no_longer_writes_still_reads(folder: Path) -> None:
    (old,) = await Codec(KeyFolder(folder)).encode([plain()])
    write_key(folder, "2026-12")
    choose(folder, "2026-12")
    rotated = Codec(KeyFolder(folder))
    (new,) = await rotated.encode([plain()])
    assert new.metadata["encryption-key-id"] == b"2026-12"
    assert await rotated.decode([old, new]) == [plain(), plain()]


def changed(payload: Payload, *, at: int) -> Payload:
    data = bytearray(payload.data)
    data[at] ^= 1
    return Payload(metadata=payload.metadata, data=bytes(data))


def with_metadata(payload: Payload, key: str, value: bytes) -> Payload:
    return Payload(metadata={**payload.metadata, key: value}, data=payload.data)


UNREADABLE: dict[str, tuple[Callable[[Payload], Payload], str]] = {
    "nonce": (lambda closed: changed(closed, at=0), "does not open with it"),
    "text": (lambda closed: changed(closed, at=20), "does not open with it"),
    "tag": (lambda closed: changed(closed, at=-1), "does not open with it"),
    "cut": (lambda closed: Payload(metadata=closed.metadata, data=closed.data[:20]), "is cut off"),
    "empty": (lambda closed: Payload(metadata=closed.metadata), "is cut off"),
    "renamed": (
        lambda closed: with_metadata(closed, "encryption-key-id", b"other"),
        "does not open with it",
    ),
    "unknown": (
        lambda closed: with_metadata(closed, "encryption-key-id", b"lost"),
        "with key lost, which this process does not have",
    ),
    "strange": (
        lambda closed: with_metadata(closed, "encryption-key-id", b"\x1b[31m\n"),
        "does not have",
    ),
    "another cipher": (
        lambda closed: with_metadata(closed, "encryption-cipher", b"ROT13"),
        "its cipher is another one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", UNREADABLE)
async def test_what_does_not_open_is_one_sentence(how: str, folder: Path) -> None:
    write_key(folder, "other")
    codec = Codec(KeyFolder(folder))
    spoil, sentence = UNREADABLE[how]
    (closed,) = await codec.encode([plain()])
    with pytest.raises(PayloadClosed, match=sentence) as raised:
        await codec.decode([spoil(closed)])
    assert str(raised.value).isprintable()
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


async def test_a_process_without_keys_reads_what_is_clear_and_names_the_key_of_the_rest(
    codec: Codec,
) -> None:
    without = WithoutKeys()
    assert await without.decode(await without.encode([plain()])) == [plain()]
    with pytest.raises(PayloadClosed, match="with key 2026-11, and this process has no keys"):
        await without.decode([plain(), *await codec.encode([plain()])])


@pytest.fixture(scope="module")
def opening(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    return Codec(KeyFolder(key_folder(tmp_path_factory.mktemp("keys") / "keys", "a")))


@given(data=st.binary(max_size=60), name=st.binary(max_size=8), cipher=st.binary(max_size=4))
async def test_whatever_claims_to_be_encrypted_opens_or_is_a_sentence(
    data: bytes, name: bytes, cipher: bytes, opening: Codec
) -> None:
    for key_name in (name, b"a"):
        for cipher_name in (cipher, b"AES-256-GCM"):
            claim = {"encoding": b"binary/encrypted", "encryption-key-id": key_name}
            payload = Payload(metadata={**claim, "encryption-cipher": cipher_name}, data=data)
            with pytest.raises(PayloadClosed) as raised:
                await opening.decode([payload])
            assert str(raised.value).isprintable()


# -- The converter ------------------------------------------------------------------------------


def test_a_converter_with_keys_is_made_once(closing: DataConverter, folder: Path) -> None:
    assert closing is converter.data_converter()
    assert closing != converter.DATA_CONVERTER


def test_a_folder_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nonexistent")
    with pytest.raises(KeysUnusable, match="/nonexistent: No such file or directory"):
        converter.data_converter()


def failing() -> ApplicationError:
    """A failure with a cause that came over the network, each with the secret in its text."""
    try:
        try:
            raise ValueError(f"of the cause: {SECRET}")
        except ValueError as error:
            raise ApplicationError(f"of all: {SECRET}", {"why": SECRET}, type="Odd") from error
    except ApplicationError as error:
        return error


async def test_no_text_of_a_failure_is_clear_however_often_it_was_read(
    closing: DataConverter,
) -> None:
    error: BaseException = failing()
    for _ in range(3):  # one that passes through workflows is read and written again
        failure = Failure()
        await closing.encode_failure(error, failure)
        assert SECRET.encode() not in failure.SerializeToString()
        assert b"test_codec" not in failure.SerializeToString()  # of the stack trace
        assert (failure.message, failure.cause.message) == ("Encoded failure", "Encoded failure")
        error = await closing.decode_failure(failure)
        assert f"of all: {SECRET}" in str(error)
        assert f"of the cause: {SECRET}" in str(error.__cause__)


async def test_a_missing_key_is_named_in_the_clear(closing: DataConverter) -> None:
    failure = Failure()
    await closing.encode_failure(PayloadClosed("with key a"), failure)
    assert failure.message == "with key a"


async def test_the_heartbeat_of_an_activity_is_a_value_where_its_arguments_are_an_error(
    closing: DataConverter,
) -> None:
    """The SDK would end the activity for good over a heartbeat, and tries it again over an argument."""
    payloads = await closing.encode([SECRET])
    context = ActivitySerializationContext(
        namespace="default",
        workflow_id="demo",
        workflow_type="TrainingJob",
        activity_type="monitor",
        activity_id="1",
        activity_task_queue="everstep-local",
        is_local=False,
    )
    of_activity = converter.DATA_CONVERTER.with_context(context)
    details: list[Any] = await of_activity.decode(payloads)
    assert [type(value) for value in details] == [ClosedDetails]
    with pytest.raises(PayloadClosed):
        await of_activity.decode(payloads, [str])
    with pytest.raises(PayloadClosed):
        await converter.DATA_CONVERTER.decode(payloads)
