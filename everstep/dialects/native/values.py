"""The types of single values in the native document: texts of a pattern, bounded numbers, members of a union.

First bounds and patterns, then checks, then the types made of them. A type has an error message of its own if
pydantic's would not show what to write instead.
"""

from __future__ import annotations

import re
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

from everstep.core.escaping import WEB_ADDRESS
from everstep.core.levels import FaultClass, Level, Owner
from everstep.dialects.native import regexes
from everstep.documents.problems import HIDDEN, problem

# The most of each in one document, or in one field.
NODES = 10_000
PHASES = 100
PER_NODE = 1024
ENTRIES = 10_000
TEXT_LENGTH = 100_000  # the longest argument or variable that every Linux passes to a process
PATTERN_LENGTH = 1000
YEAR_S = 365 * 24 * 3600
DAY_S = 24 * 3600

PHASE_NAME = r"[a-z0-9][a-z0-9-]{0,39}"
NAMESPACE = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# It becomes the workflow ID and a directory below the state directory: no slash, no dot in front.
JOB_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
BUDGET_NAME = r"[a-z][a-z0-9_-]{0,39}"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,254}"
LABEL = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?"
LINK_NAME = r"\S([^\r\n]{0,61}\S)?"
MODULE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Matches:
    """The whole text must match. `requirement` completes the message "must ...", as "be a label's name"."""

    pattern: str
    requirement: str

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
            raise problem(f"must {self.requirement}")
        return text


def unique(values: list[T]) -> list[T]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise problem(f"is in the list twice ({value}): keep one", i)
    return values


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


NUMBER, TEXT, LIST, MAPPING, SWITCH = (
    HIDDEN + kind for kind in ("number", "text", "list", "mapping", "switch")
)
"""Tags of a union's members by kind of value. No message shows them."""


def kind(value: object) -> str:
    """The tag of the union's member that a value is meant for, by its type."""
    kinds: dict[type, str] = {
        int: NUMBER,
        float: NUMBER,
        str: TEXT,
        list: LIST,
        dict: MAPPING,
        bool: SWITCH,
    }
    return kinds.get(type(value), HIDDEN)


def either(alternatives: str) -> Discriminator:
    """Chooses a union's member by the kind of the value; `alternatives` completes "must be ..."."""
    return Discriminator(kind, custom_error_type="choose", custom_error_message=alternatives)


ShortText = Annotated[str, Field(min_length=1, max_length=500)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]
Argument = Annotated[str, Field(max_length=TEXT_LENGTH)]
Regex = Annotated[
    str, Field(min_length=1, max_length=PATTERN_LENGTH), AfterValidator(regexes.check_regex)
]
LogPattern = Annotated[
    str,
    Field(min_length=1, max_length=PATTERN_LENGTH),
    AfterValidator(regexes.check_log_pattern),
]
LossPattern = Annotated[
    str,
    Field(min_length=1, max_length=PATTERN_LENGTH),
    AfterValidator(regexes.check_loss_pattern),
]
StepRegex = Annotated[Regex, AfterValidator(regexes.check_step_group)]
NamePattern = Annotated[StepRegex, AfterValidator(regexes.check_repeats)]

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
LinkName = Annotated[str, Matches(LINK_NAME, "be the name of a link: 1 to 63 characters")]
WebAddress = Annotated[
    str,
    Field(max_length=2000),
    Matches(WEB_ADDRESS, "be an address that begins with https:// or http://, without a password"),
]
Module = Annotated[str, Matches(MODULE, "be a module to import, for example torch._dynamo")]

Seconds = Annotated[float, Field(ge=0, le=YEAR_S, allow_inf_nan=False)]
SomeSeconds = Annotated[float, Field(gt=0, le=YEAR_S, allow_inf_nan=False)]
AtMostADay = Annotated[float, Field(ge=0, le=DAY_S, allow_inf_nan=False)]
AtMostAMinute = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]
ExitCode = Annotated[int, Field(ge=1, le=255)]
Signal = Annotated[int, Field(ge=1, le=64)]
NodeCount = Annotated[int, Field(ge=1, le=NODES)]
PerNode = Annotated[int, Field(ge=0, le=PER_NODE)]
