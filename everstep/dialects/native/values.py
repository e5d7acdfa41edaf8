"""The small types of the native document: texts of a pattern, numbers within bounds, the kinds of a union.

A type has an error message of its own if pydantic's would not show what to write instead.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
)
from pydantic_core import core_schema

from everstep.core import patterns
from everstep.core.levels import FaultClass, Level, Owner
from everstep.documents.problems import HIDDEN, problem

# The most of each.
NODES = 10_000
PHASES = 100
PER_NODE = 1024
ENTRIES = 10_000
TEXT_LENGTH = 100_000  # the longest argument or variable that every Linux passes to a process
PATTERN_LENGTH = 1000
GROUPS = 50
REPEATS = 3

# In the text of a pattern: an escaped character or a class; what stands before a repeat.
LITERAL = re.compile(r"\\.|\[\^?\]?[^]]*\]")
REPEAT = re.compile(r"(.?)[*+{]")
HOW_LINEAR = (
    r"leave out lookaround, backreferences, possessive quantifiers, \Z and repeats above 1000"
)
YEAR_S = 365 * 24 * 3600
DAY_S = 24 * 3600

PHASE_NAME = r"[a-z0-9][a-z0-9-]{0,39}"
NAMESPACE = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# It becomes the workflow ID and a directory below the state directory: no slash, no dot in front.
JOB_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
BUDGET_NAME = r"[a-z][a-z0-9_-]{0,39}"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,254}"
LABEL = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?"
MODULE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Matches:
    """A text of this pattern, as a whole; `otherwise` completes the sentence "must ..."."""

    pattern: str
    otherwise: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^({self.pattern})$"}

    def _checked(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise problem(f"must {self.otherwise}")
        return text


def unique(values: list[T]) -> list[T]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise problem(f"is in the list twice ({value}): keep one", i)
    return values


def regex(pattern: str) -> str:
    if pattern.count("(") > GROUPS:  # its parser recurses: how deep it gets must not be chance
        raise problem(f"has more than {GROUPS} groups: make it simpler")
    with warnings.catch_warnings(action="ignore"):  # doubtful, but Python knows what it means
        try:
            re.compile(pattern)
        except (re.error, OverflowError) as error:
            raise problem(f"is not a regular expression: {error}") from None
    if why := patterns.refused(pattern):
        raise problem(f"cannot be matched in linear time ({why}): {HOW_LINEAR}")
    return pattern


def finds_step(pattern: str) -> str:
    if "step" not in re.compile(pattern).groupindex:
        raise problem(r"must have a group named step, for example 'step (?P<step>\d+)'")
    return pattern


def suits_names(pattern: str) -> str:
    """Agents search file names with Python's own matcher: the pattern must not be able to hold them up."""
    repeats = REPEAT.findall(LITERAL.sub("c", pattern))
    if len(repeats) > REPEATS or any(before == ")" for before in repeats):
        raise problem(f"may have {REPEATS} of * + {{}} at most, and none behind a group")
    return pattern


def not_blank(text: str) -> str:
    if not text.strip():
        raise problem("is empty; say what to run, for example [python, train.py]")
    return text


def names_a_program(arguments: list[str]) -> list[str]:
    if not arguments:
        raise problem("is empty; say what to run, for example [python, train.py]")
    if not arguments[0].strip():
        raise problem("is empty, but the first entry is the program to run", 0)
    return arguments


def handed_out(name: str) -> str:
    if name.startswith(("TEMPORAL_", "EVERSTEP_")):
        raise problem("is the worker's own: variables of Temporal and Everstep are given to no job")
    return name


def kind(value: object) -> str:
    """The tag of the union's member that a value is meant for, by its type. No message shows it."""
    kinds: dict[type, str] = {int: NUMBER, float: NUMBER, str: TEXT, list: LIST, dict: MAPPING}
    return kinds.get(type(value), HIDDEN)


def either(otherwise: str) -> Discriminator:
    """Chooses by the kind of the value; `otherwise` completes "must be ..."."""
    return Discriminator(kind, custom_error_type="choose", custom_error_message=otherwise)


NUMBER, TEXT, LIST, MAPPING = (HIDDEN + kind for kind in ("number", "text", "list", "mapping"))

ShortText = Annotated[str, Field(min_length=1, max_length=500)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]
Argument = Annotated[str, Field(max_length=TEXT_LENGTH)]
Regex = Annotated[str, Field(min_length=1, max_length=PATTERN_LENGTH), AfterValidator(regex)]
StepRegex = Annotated[Regex, AfterValidator(finds_step)]
NamePattern = Annotated[StepRegex, AfterValidator(suits_names)]

Word = Literal["fail", "note", "ignore", "resize"]
Class = Annotated[FaultClass, Strict(False)]
LevelName = Annotated[Level, Strict(False)]
OwnerName = Annotated[Owner, Strict(False)]

JobName = Annotated[
    str,
    Matches(
        JOB_NAME,
        "be 1 to 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
    ),
]
PhaseName = Annotated[
    str,
    Matches(
        PHASE_NAME,
        "be 1 to 40 small letters, digits and '-', and begin with a letter or digit",
    ),
]
Namespace = Annotated[
    str,
    Matches(
        NAMESPACE,
        "be 1 to 63 small letters, digits and '-', and begin and end with a letter or digit",
    ),
]
BudgetName = Annotated[
    str, Matches(BUDGET_NAME, "be named by small letters, digits, '-' and '_' (at most 40)")
]
Variable = Annotated[
    str, Matches(VARIABLE, "be a variable's name: letters, digits and '_', no digit in front")
]
Label = Annotated[str, Matches(LABEL, "be a label's name: letters, digits, '-', '_', '.' and '/'")]
Module = Annotated[str, Matches(MODULE, "be a module to import, for example torch._dynamo")]

Seconds = Annotated[float, Field(ge=0, le=YEAR_S, allow_inf_nan=False)]
SomeSeconds = Annotated[float, Field(gt=0, le=YEAR_S, allow_inf_nan=False)]
AtMostADay = Annotated[float, Field(ge=0, le=DAY_S, allow_inf_nan=False)]
AtMostAMinute = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]
ExitCode = Annotated[int, Field(ge=1, le=255)]
Signal = Annotated[int, Field(ge=1, le=64)]
NodeCount = Annotated[int, Field(ge=1, le=NODES)]
PerNode = Annotated[int, Field(ge=0, le=PER_NODE)]
