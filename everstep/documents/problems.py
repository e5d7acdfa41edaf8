"""Problems of a document as sentences: the field's dotted path, what is wrong, what to do.

`judged` validates a value by a pydantic model and turns pydantic's errors into sentences (`SENTENCES`, by the
type of the error); `refusal` makes one `InvalidSpec` of many problems. The checks themselves are elsewhere.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from everstep.core.errors import InvalidSpec

Problem = tuple[str, str]
PathPart = str | int
Shape = TypeVar("Shape", bound=BaseModel)

PROBLEMS_SHOWN = 30
FIELD_LENGTH = 120
MESSAGE_LENGTH = 400
EXCERPT_LENGTH = 40

HIDDEN = "\0"
"""Prefix of path parts that no message shows, such as the tag of a union's member."""

KEY = "[key]"
"""Part that pydantic adds to the path of a wrong key."""

HINTS: Mapping[str, str] = {
    "apiVersion": "write apiVersion: everstep/v1",
    "kind": "write kind: TrainingJob",
    "metadata": "give the job a name, metadata: {name: my-job}",
    "spec": "say what to run, spec: {command: [python, train.py]}",
    "name": "give it a name",
    "min": "say how few nodes will do, or write nodes as one number",
    "wanted": "say how many nodes there should be",
    "path": "name the directory",
    "limit": "give a number, or null to count without a limit",
    "match": "say which faults the rule is for, match: {exit_code: [3]}",
    "action": "say what to do: fail, note, ignore, resize, a list of levels, or {class: NAME}",
    "class": "name a fault class, for example {class: hang}",
    "init": "a trainer begins with it, init: {model: ..., model_dir: out}",
    "max_num_restarts": "say how many restarts in a row may bring no new checkpoint",
}
"""Advice for a missing key."""


def path(*parts: PathPart) -> str:
    """The dotted path of a field: spec.phases.1.nodes."""
    return ".".join(str(part) for part in parts)


def refusal(problems: Iterable[Problem]) -> InvalidSpec:
    """All problems as one error of one line, without repeats, in a readable length."""
    distinct = list(dict.fromkeys(problems))
    lines = [
        (one_line(field, FIELD_LENGTH), one_line(message, MESSAGE_LENGTH))
        for field, message in distinct[:PROBLEMS_SHOWN]
    ]
    if more := len(distinct) - len(lines):
        lines.append(("document", f"and {more} more problems like these"))
    return InvalidSpec(lines)


def one_line(text: str, length: int) -> str:
    """The text without line breaks and control characters, cut at the length."""
    cut = text if len(text) <= length else text[: length - 3] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def problem(message: str, *at: PathPart) -> PydanticCustomError:
    """An error for a validator to raise: this sentence, about its field or the path `at` below that."""
    return PydanticCustomError("sentence", "{message}", {"message": message, "at": at})


def problems_of_keys(problems: Iterable[Problem]) -> ValidationError:
    """The error for problems of several keys of one mapping."""
    return ValidationError.from_exception_data(
        "keys", [{"type": problem(what), "loc": (key,), "input": None} for key, what in problems]
    )


def judged(shape: type[Shape], value: object, *under: PathPart) -> Shape:
    """Validate the value. Raises `InvalidSpec` with all problems, their paths beginning with `under`."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        problems = (
            (path(*under, *_path_of(details)), _sentence(details, shape))
            for details in error.errors(include_url=False)
        )
        raise refusal(problems) from None


def _path_of(error: ErrorDetails) -> Iterator[PathPart]:
    parts = (*error["loc"], *error.get("ctx", {}).get("at", ()))
    return (part for part in parts if not str(part).startswith(HIDDEN) and part != KEY)


def _sentence(error: ErrorDetails, model: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        return unknown_key(str(error["loc"][-1]), list(_keys_at(model, error["loc"][:-1])))
    if error["loc"][-1:] == (KEY,) and error["type"] == "enum":
        return unknown_key(str(error["input"]), _expected(error))
    if error["type"] == "missing":
        return _missing(error, model)
    say = SENTENCES.get(error["type"])
    sentence = say(error) if say else error["msg"]
    return f"{sentence}{_hint(error, model)}"


def _hint(error: ErrorDetails, model: type[BaseModel]) -> str:
    """How to write a time in seconds, or a path as a mapping. Empty for any other value."""
    value = error["input"]
    if not isinstance(value, str) or len(value) > EXCERPT_LENGTH:
        return ""
    match = re.fullmatch(r"([0-9]{1,6}) ?([smhd])", value)
    if match and _is_time(error):
        return f": write seconds, {int(match[1]) * UNITS_S[match[2]]}"
    if error["type"] == "model_type" and "path" in _keys_at(model, error["loc"]):
        return f": write {{path: {value}}}"
    return ""


def unknown_key(key: str, candidates: Sequence[str]) -> str:
    """The sentence for an unknown key, with the key that is meant or is nearest, else with all of them."""
    meant = OTHER_WORDS.get(key.lower())
    hint = f"did you mean `{meant}`?" if meant in candidates else suggestion(key, candidates)
    return f"unknown key; {hint or 'known are ' + ', '.join(sorted(candidates))}"


def suggestion(word: object, candidates: Sequence[str], *, likeness: float = 0.6) -> str:
    if not isinstance(word, str) or len(word) > EXCERPT_LENGTH:
        return ""
    near = difflib.get_close_matches(word.lower(), candidates, n=1, cutoff=likeness)
    exact = [name for name in candidates if name.lower() == word.lower()]
    return f"did you mean `{(exact or near)[0]}`?" if exact or near else ""


def _keys_at(model: type[BaseModel], loc: Sequence[PathPart]) -> Iterator[str]:
    """The keys of the models at this place."""
    for shape in _models_at(model, loc):
        yield from (field.alias or name for name, field in shape.model_fields.items())


def _models_at(model: type[BaseModel], loc: Sequence[PathPart]) -> list[type[BaseModel]]:
    here = [model]
    for part in loc:
        fields = [f for m in here for f in m.model_fields.items() if part in (f[0], f[1].alias)]
        # Anything else (an index, a name the author chose) does not lead to another model.
        here = [m for _, field in fields for m in _models(field.annotation)] if fields else here
    return here


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def described(value: object) -> str:
    """The value in a sentence: `the text "4"`, `the number 1.5`, `a list`."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f'the text "{one_line(value, EXCERPT_LENGTH)}"'
        case list():
            return "a list"
        case _:
            return "a mapping"


def _must_be(what: str) -> Callable[[ErrorDetails], str]:
    return lambda error: _not(what, error["input"])


def _not(what: str, value: object) -> str:
    quoted = isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value)
    hint = ": write it without quotes" if quoted and "number" in what else ""
    return f"must be {what}, not {described(value)}{hint}"


def _text(error: ErrorDetails) -> str:
    value = error["input"]
    if isinstance(value, bool | int | float):
        plain = str(value).lower()
        return f'must be text, not {described(value)}: write it in quotes, "{plain}"'
    return f"must be text, not {described(value)}"


def _is_time(error: ErrorDetails) -> bool:
    return any(str(part).endswith(SECONDS) for part in error["loc"])


def _one_of(error: ErrorDetails) -> str:
    candidates = _expected(error)
    if len(candidates) == 1:
        number = " or a number of seconds" if _is_time(error) else ""
        return f"must be {candidates[0]}{number}, not {described(error['input'])}"
    hint = suggestion(error["input"], candidates)
    listed = f"must be one of {', '.join(candidates)}, not {described(error['input'])}"
    return f"{listed}; {hint}" if hint else listed


def _expected(error: ErrorDetails) -> list[str]:
    return re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))


def _missing(error: ErrorDetails, model: type[BaseModel]) -> str:
    """With the example of the field if it has one, else with the advice for its key."""
    *above, key = error["loc"]
    fields = (f for m in _models_at(model, above) for f in m.model_fields.items())
    examples = [text for name, f in fields if key in (name, f.alias) for text in f.examples or ()]
    hint = f"write {examples[0]}" if examples else HINTS.get(str(key), "it is required")
    return f"missing; {hint}"


def _bound(words: str, key: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"must be {words} {error['ctx'][key]:.10g}, not {error['input']}"


def _too_much(what: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"must not have more than {error['ctx']['max_length']} {what}"


SECONDS = "_s"
"""The end of keys of times."""
UNITS_S: Mapping[str, int] = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

OTHER_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("gpus", "gpus_per_node", "npus", "devices"), "accelerators_per_node"),
}
"""Words of other systems for a key of ours that is spelled otherwise."""

EMPTY = "must not be empty; leave the key out instead"

SENTENCES: Mapping[str, Callable[[ErrorDetails], str]] = {
    "sentence": lambda error: str(error["ctx"]["message"]),
    "choose": lambda error: _not(error["msg"], error["input"]),
    "int_type": _must_be("a whole number"),
    "float_type": _must_be("a number"),
    "string_type": _text,
    "list_type": _must_be("a list in square brackets"),
    "dict_type": _must_be("a mapping of keys to values"),
    "model_type": _must_be("a mapping of keys to values"),
    "enum": _one_of,
    "literal_error": _one_of,
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "string_too_short": lambda _error: EMPTY,
    "too_short": lambda _error: EMPTY,
    "string_too_long": _too_much("characters"),
    "too_long": _too_much("entries"),
}
"""Sentence for each type of pydantic's errors; other types keep pydantic's message."""
