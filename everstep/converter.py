"""The data converter: pydantic's JSON, made so that no value can wedge a workflow.

Input: a payload for a parameter without a type that cannot be read (nested too deeply, not JSON, of an
unknown encoding) becomes an `Unreadable` instead of an exception. Temporal would retry the exception for
ever, and the sender would never see the reason. Output: lone surrogates, infinity and NaN are replaced by
values that every reader of JSON accepts; a value that cannot be sent would be retried for ever too.

Where `EVERSTEP_PAYLOAD_KEYS` names a folder of keys, `data_converter` encrypts every payload, and the texts
of failures with them. Workers, commands, clients and replayers all take their converter there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

from pydantic_core import PydanticSerializationError, ValidationError, from_json, to_json
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    ActivitySerializationContext,
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    PayloadConverter,
    SerializationContext,
)
from temporalio.exceptions import ApplicationError

from everstep.core import names
from everstep.core.bounds import encodable, finite
from everstep.core.errors import PayloadClosed
from everstep.encryption.codec import Codec, WithoutKeys
from everstep.encryption.heartbeats import ClosedDetails
from everstep.encryption.keys import VARIABLE, KeyFolder


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Input that could not be decoded, with the reason."""

    why: str


class LenientJSON(PydanticJSONPlainPayloadConverter):
    """Pydantic's converter, except that untyped input never raises.

    Our own values are written by their types, which have short forms (`core/slots.py`).
    """

    def to_payload(self, value: Any) -> Payload | None:
        sendable = value if _is_sendable(value) else _sendable(value)
        if not is_dataclass(value) or isinstance(value, type):
            return super().to_payload(sendable)
        data = self._type_adapter(type(value)).dump_json(sendable)
        return Payload(metadata={"encoding": self.encoding.encode()}, data=data)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        try:
            return super().from_payload(payload, type_hint)
        except (ValueError, RecursionError) as error:
            if isinstance(error, ValidationError) and (data := _without_new_parts(payload, error)):
                return self.from_payload(Payload(metadata=payload.metadata, data=data), type_hint)
            return _unreadable(error, type_hint)


def _without_new_parts(payload: Payload, error: ValidationError) -> bytes | None:
    """The payload without the parts of named tuples that a newer version has added at their ends.

    None if it has no such parts. Pydantic leaves out unknown fields of a dataclass, not those of a tuple.
    """
    new = [
        each
        for each in error.errors(include_url=False, include_input=False)
        if each.get("ctx", {}).get("field_type") == "NamedTuple"
    ]
    value = from_json(payload.data) if new else None  # else it may be no JSON
    parts = [(_at(value, each["loc"]), each["ctx"]["max_length"]) for each in new]
    lists = [(part, n) for part, n in parts if isinstance(part, list) and len(part) > n]
    for part, length in lists:
        del part[length:]
    return to_json(value) if lists else None


def _at(value: Any, place: Iterable[int | str]) -> Any:
    """What stands there. A place also names types, where a value may have one of several."""
    for key in place:
        with contextlib.suppress(LookupError, TypeError):
            value = value[key]
    return value


def _is_sendable(value: Any) -> bool:
    """Whether every reader of JSON accepts the value.

    Cheap: False also for a text with the word NaN in it.
    """
    try:
        text = to_json(value, serialize_unknown=True)
    except PydanticSerializationError:  # a lone surrogate
        return False
    return not any(word in text for word in (b"NaN", b"Infinity"))


def _sendable(value: Any) -> Any:
    """The value with what cannot be sent replaced. Its types are kept."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float):
        return finite(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _sendable(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, Mapping):
        return {_sendable(key): _sendable(one) for key, one in value.items()}
    if isinstance(value, list | set | frozenset):
        return type(value)(map(_sendable, value))
    if isinstance(value, tuple):
        parts = map(_sendable, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _unreadable(error: Exception, type_hint: type | None) -> Unreadable:
    """The replacement for input of any type. Raises the error if the parameter has a type."""
    if type_hint is not None and type_hint is not Any:
        raise error
    return Unreadable(str(error).strip("'").splitlines()[-1].strip()[:200])


_JSON = LenientJSON()
"""Shared by all converters, as every workflow makes its own: it caches how a type is read, which takes
milliseconds to compute."""


class LenientPayloads(CompositePayloadConverter):
    """The default converters with ours for JSON; untyped input of an unknown encoding never raises."""

    def __init__(self) -> None:
        super().__init__(
            *(
                converter if converter.encoding != _JSON.encoding else _JSON
                for converter in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        hints = type_hints or []
        return [self._one(payload, hint) for payload, hint in zip_longest(payloads, hints)]

    def _one(self, payload: Payload, type_hint: type | None) -> Any:
        hints = None if type_hint is None else [type_hint]
        try:
            return super().from_payloads([payload], hints)[0]
        except (KeyError, RuntimeError) as error:  # an unknown encoding, or undecodable content
            return _unreadable(error, type_hint)


def _encodable_error(error: BaseException) -> ApplicationError:
    """The same failure without its causes, its text made encodable."""
    if not isinstance(error, ApplicationError):
        return ApplicationError(encodable(str(error)), type=type(error).__name__)
    return ApplicationError(
        encodable(error.message),
        *error.details,
        type=encodable(error.type or ""),
        non_retryable=error.non_retryable,
    )


class SentenceFailureConverter(DefaultFailureConverter):
    """The default, but without stack traces of failures that are sentences for people."""

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        try:
            super().to_failure(exception, payload_converter, failure)
        except UnicodeEncodeError:  # a lone surrogate in the message or a cause
            failure.Clear()
            super().to_failure(_encodable_error(exception), payload_converter, failure)
        if failure.application_failure_info.type in names.SENTENCE_FAILURES:
            failure.stack_trace = ""


ENCODED = "Encoded failure"
"""In place of the message of a failure whose text is encrypted, as in all SDKs."""


class EncodedFailureConverter(SentenceFailureConverter):
    """Moves message and stack trace of a failure, and of its causes, where the codec encrypts them.

    `PayloadClosed` stays clear, for a person without the key: the sentence shows nothing of a payload.
    """

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        super().to_failure(exception, payload_converter, failure)
        part: Failure | None = failure
        while part is not None:
            _encode_text(part, payload_converter)
            part = part.cause if part.HasField("cause") else None


def _encode_text(failure: Failure, payload_converter: PayloadConverter) -> None:
    """Move the text of one failure. Safe to repeat: one that was decoded in between has it in both places."""
    is_moved = failure.message == ENCODED and failure.HasField("encoded_attributes")
    if is_moved or failure.application_failure_info.type == PayloadClosed.__name__:
        return
    text = {"message": failure.message, "stack_trace": failure.stack_trace}
    (encoded,) = payload_converter.to_payloads([text])
    failure.encoded_attributes.CopyFrom(encoded)
    failure.message, failure.stack_trace = ENCODED, ""


@dataclass(frozen=True)
class ClosingConverter(DataConverter):
    """A converter whose codec may lack a key.

    The SDK ends an activity for good whose heartbeat it cannot decode, and tries one again whose arguments
    it cannot decode. So a closed heartbeat is a value: `encryption/heartbeats.py` says what becomes of it.
    """

    is_of_activity: bool = False

    def with_context(self, context: SerializationContext) -> Self:
        if isinstance(context, ActivitySerializationContext) and not self.is_of_activity:
            return replace(self, is_of_activity=True)
        return super().with_context(context)

    async def decode(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        try:
            return await super().decode(payloads, type_hints)
        except PayloadClosed as error:
            if type_hints is None and self.is_of_activity:
                return [ClosedDetails(str(error))]
            raise


DATA_CONVERTER = ClosingConverter(
    payload_converter_class=LenientPayloads,
    failure_converter_class=SentenceFailureConverter,
    payload_codec=WithoutKeys(),
)
"""The converter of a process that has no keys."""


def data_converter() -> DataConverter:
    """The converter of this process: with the keys of its folder, if the environment names one.

    Raises `KeysUnusable` if that is not as it has to be.
    """
    folder = os.environ.get(VARIABLE, "")
    return _encrypting(folder) if folder else DATA_CONVERTER


@cache
def _encrypting(folder: str) -> DataConverter:
    return replace(
        DATA_CONVERTER,
        payload_codec=Codec(KeyFolder(Path(folder))),
        failure_converter_class=EncodedFailureConverter,
    )
