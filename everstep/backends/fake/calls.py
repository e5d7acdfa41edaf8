"""A call and its answer as lines of JSON. Their types are those of the verb's signature."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter, create_model

from everstep.backends.fake.backend import Admin
from everstep.backends.fake.verbs import ADMIN, Verbs
from everstep.core import errors

LINE_LIMIT = 64 << 20
"""Bytes of the longest line: a thousand pods with all their facts stay far below."""

ERRORS: Mapping[str, type[Exception]] = {
    name: error
    for name, error in {**vars(builtins), **vars(errors)}.items()
    if name in ("TimeoutError", "ValueError")
    or (isinstance(error, type) and issubclass(error, errors.EverstepError))
}
"""Errors that arrive with their type; any other one is a bug and arrives as a RuntimeError."""

# pydantic reads and writes the JSON itself: in a cluster of 10,000 nodes that is most of the work.


@cache
def _types(verb: str) -> tuple[type[BaseModel], TypeAdapter[Any]]:
    """The arguments and the answer of a verb."""
    owner = Admin if verb.startswith(ADMIN) else Verbs
    hints = get_type_hints(getattr(owner, verb.removeprefix(ADMIN)))
    answer = TypeAdapter(hints.pop("return"))
    arguments: dict[str, Any] = {name: (hint, None) for name, hint in hints.items()}
    return create_model("Arguments", **arguments), answer


def write_call(verb: str, args: dict[str, Any]) -> bytes:
    arguments = _types(verb)[0].model_construct(**args)
    return f"{verb} {arguments.model_dump_json(exclude_unset=True)}\n".encode()


def read_call(line: bytes) -> tuple[str, dict[str, Any]]:
    verb, _, args = line.decode().partition(" ")
    arguments = _types(verb)[0].model_validate_json(args)
    return verb, {name: getattr(arguments, name) for name in arguments.model_fields_set}


def write_answer(verb: str, value: object) -> bytes:
    return b"answer %b\n" % _types(verb)[1].dump_json(value)


def write_error(error: Exception) -> bytes:
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in ERRORS), "")
    message = str(error) if name else repr(error)
    return b"error %b\n" % json.dumps([name, message]).encode()


def read_answer(verb: str, line: bytes) -> Any:
    """Return the answer, or raise the error that the call raised there."""
    kind, _, value = line.partition(b" ")
    if kind == b"answer":
        return _types(verb)[1].validate_json(value)
    name, message = json.loads(value)
    if name not in ERRORS:
        raise RuntimeError(f"bug in the fake cluster: {message}")
    # Not by its constructor: some of our errors make their message there, and this one is made.
    raise ERRORS[name].__new__(ERRORS[name], message)
