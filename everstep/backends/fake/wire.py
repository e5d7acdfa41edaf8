"""Calls and answers as lines of JSON. What a call takes and gives is read off its signature."""

from __future__ import annotations

import builtins
import inspect
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

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
"""Errors that arrive as what they were; any other one is a bug, and arrives as a RuntimeError."""


class Signature:
    """What one verb takes and gives, ready to be read and written."""

    def __init__(self, verb: str) -> None:
        owner = Admin if verb.startswith(ADMIN) else Verbs
        function = getattr(owner, verb.removeprefix(ADMIN))
        hints = get_type_hints(function)
        self.answer: TypeAdapter[Any] = TypeAdapter(hints.pop("return"))
        self.args: Mapping[str, TypeAdapter[Any]] = {
            name: TypeAdapter(hints[name])
            for name in inspect.signature(function).parameters
            if name != "self"
        }


@cache
def signature(verb: str) -> Signature:
    return Signature(verb)


def write_call(verb: str, args: Mapping[str, Any]) -> bytes:
    adapters = signature(verb).args
    values = {name: adapters[name].dump_python(value, mode="json") for name, value in args.items()}
    return _line({"verb": verb, "args": values})


def read_call(line: bytes) -> tuple[str, dict[str, Any]]:
    said = json.loads(line)
    adapters = signature(said["verb"]).args
    args = {name: adapters[name].validate_python(value) for name, value in said["args"].items()}
    return said["verb"], args


def write_answer(verb: str, value: object) -> bytes:
    return _line({"answer": signature(verb).answer.dump_python(value, mode="json")})


def write_error(error: Exception) -> bytes:
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in ERRORS), "")
    return _line({"error": name, "message": str(error) if name else repr(error)})


def read_answer(verb: str, line: bytes) -> Any:
    """The answer, or the error raised as it was raised there."""
    said = json.loads(line)
    if "error" in said:
        raise _rebuilt(said["error"], said["message"])
    return signature(verb).answer.validate_python(said["answer"])


def _rebuilt(name: str, message: str) -> Exception:
    if name not in ERRORS:
        return RuntimeError(f"bug in the fake cluster: {message}")
    # Not called: some of our errors make their message themselves, and it is made already.
    return ERRORS[name].__new__(ERRORS[name], message)


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
