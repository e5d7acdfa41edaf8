"""How values become payloads: pydantic's JSON, with one leniency for documents of unknown authors.

A payload without a type that cannot be read (nested too deeply, not JSON, of an unknown encoding) becomes an
`Unreadable` instead of an exception: an exception there would wedge the workflow for ever, and its
author would never learn why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import zip_longest
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import (
    PydanticJSONPlainPayloadConverter,
    pydantic_data_converter,
)
from temporalio.converter import (
    CompositePayloadConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    PayloadConverter,
)

from everstep.core import names


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An input that nobody can read, and why."""

    why: str


class LenientJSON(PydanticJSONPlainPayloadConverter):
    """Pydantic's converter, except that untyped input never raises.

    Our own values are written by their types, which know how to be short (`core/slots.py`).
    """

    def to_payload(self, value: Any) -> Payload | None:
        if not is_dataclass(value) or isinstance(value, type):
            return super().to_payload(value)
        data = self._type_adapter(type(value)).dump_json(value)
        return Payload(metadata={"encoding": self.encoding.encode()}, data=data)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        try:
            return super().from_payload(payload, type_hint)
        except (ValueError, RecursionError) as error:
            return _unreadable(error, type_hint)


def _unreadable(error: Exception, type_hint: type | None) -> Unreadable:
    """What stands for input of any type; for input of a known one the error goes on its way."""
    if type_hint is not None and type_hint is not Any:
        raise error
    return Unreadable(str(error).strip("'").splitlines()[-1].strip()[:200])


_JSON = LenientJSON()
"""One for all: it remembers how a type is read, which costs milliseconds to find out, and every
workflow makes a converter of its own."""


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
        except (KeyError, RuntimeError) as error:  # nobody knows the encoding, or what it encodes
            return _unreadable(error, type_hint)


class SpokenFailures(DefaultFailureConverter):
    """The default, except that a failure which is a sentence for people brings no stack of ours."""

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        super().to_failure(exception, payload_converter, failure)
        if failure.application_failure_info.type in names.SPOKEN:
            failure.stack_trace = ""


DATA_CONVERTER = replace(
    pydantic_data_converter,
    payload_converter_class=LenientPayloads,
    failure_converter_class=SpokenFailures,
)
