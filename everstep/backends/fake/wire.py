"""Calls and answers as lines: a word that says what it is, and JSON. What a call takes and gives is
read off its signature.
"""

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
    written = (b'"%b":%b' % (name.encode(), adapters[name].dump_json(args[name])) for name in args)
    return _line(verb, b"{%b}" % b",".join(written))


def read_call(line: bytes) -> tuple[str, dict[str, Any]]:
    verb, said = _read(line)
    adapters = signature(verb).args
    return verb, {name: adapters[name].validate_python(v) for name, v in json.loads(said).items()}


def write_answer(verb: str, value: object) -> bytes:
    return _line("answer", signature(verb).answer.dump_json(value))


def write_error(error: Exception) -> bytes:
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in ERRORS), "")
    said = {"error": name, "message": str(error) if name else repr(error)}
    return _line("error", json.dumps(said).encode())


def read_answer(verb: str, line: bytes) -> Any:
    """The answer, or the error raised as it was raised there."""
    kind, said = _read(line)
    if kind == "error":
        raise _rebuilt(**json.loads(said))
    return signature(verb).answer.validate_json(said)


def _rebuilt(*, error: str, message: str) -> Exception:
    if error not in ERRORS:
        return RuntimeError(f"bug in the fake cluster: {message}")
    # Not called: some of our errors make their message themselves, and it is made already.
    return ERRORS[error].__new__(ERRORS[error], message)


def _line(kind: str, said: bytes) -> bytes:
    # pydantic reads and writes the JSON itself: in a cluster of 10,000 nodes that is most of the work.
    return b"%b %b\n" % (kind.encode(), said)


def _read(line: bytes) -> tuple[str, bytes]:
    kind, _, said = line.partition(b" ")
    return kind.decode(), said
