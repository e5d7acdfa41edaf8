"""The ModelArts document, key by key: what is read of it, of which type, within which bounds.

Their documents hold much that is none of our business: a key that is not read is kept and noted, never
refused. What is read is judged strictly; ranges are those that their API states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from everstep.dialects import overlays
from everstep.dialects.modelarts import COMMON_KIND, JOB_NAME, KINDS
from everstep.dialects.native.values import NODES, TEXT_LENGTH
from everstep.documents.problems import described, problem, problems_of_keys

JOB_RETRY = "fault-tolerance/job-retry-num"
POD_RETRY = "fault-tolerance/pod-retry-num"
UNCONDITIONAL = "fault-tolerance/job-unconditional-retry"
HANG_RETRY = "fault-tolerance/hang-retry"
OPERATOR_RETRY = "fault-tolerance/hccl_op_retry"
OVERLAY = overlays.ANNOTATION

HANG_MINUTES = "MA_HANG_DETECT_TIME"
CLEARING = "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS"
CHECKED = "MA_DETECT_TRAIN_INJECT_CODE"

ENVIRONMENTS = "algorithm.environments"

NAMELESS = "training-job"
"""What a job is called that has no name."""

EVENTS = (
    *("JobStarted", "JobCompleted", "JobFailed", "JobTerminated"),
    *("JobRestarted", "JobHanged", "JobPreempted"),
)

RETRIES_MAX = 128
VARIABLES_MAX = 100
# No bounds of theirs: a time may end that late and still have a date.
CLEARING_S_MAX = 9_999_999_999
HOURS_MAX = 1_000_000

# Their rule; nor can a system tell where a name with `=` ends.
VARIABLE = r"[A-Za-z_][^$=]{0,8191}"
NO_VARIABLE = "must be a variable's name: it begins with a letter or `_` and holds no `$` or `=`"


class DocumentPart(BaseModel):
    """What all parts of the document have in common: keys that are not read are kept."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)


# --- Texts that stand for something else -----------------------------------------------------------


TextCheck = Callable[[str], str | None]
"""What a text must be, if it is not."""


def _number(least: int, most: int, *, also: tuple[int, ...] = ()) -> TextCheck:
    words = f"a whole number from {least} to {most}" + "".join(f", or {n}" for n in also)

    def check(text: str) -> str | None:
        is_number = re.fullmatch(r"0|-?[1-9][0-9]{0,9}", text) is not None
        return None if is_number and (least <= int(text) <= most or int(text) in also) else words

    return check


def _one_of(*values: str) -> TextCheck:
    words = " or ".join(f'"{word}"' for word in values)
    return lambda text: None if text in values else words


_yes_or_no = _one_of("true", "false")

ANNOTATIONS: Mapping[str, TextCheck] = {
    JOB_RETRY: _number(1, RETRIES_MAX),
    POD_RETRY: _number(1, RETRIES_MAX),
    UNCONDITIONAL: _yes_or_no,
    HANG_RETRY: _yes_or_no,
    OPERATOR_RETRY: _yes_or_no,
}
"""Annotations that decide how a job recovers, each with its range."""

VARIABLES: Mapping[str, TextCheck] = {
    HANG_MINUTES: _number(10, 720),
    CLEARING: _number(1, CLEARING_S_MAX, also=(-1,)),
    CHECKED: _one_of("0", "1"),
}
"""Variables of the script that we read too, each with its range."""


def wrong(checks: Mapping[str, TextCheck], texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each text that is not what it must be, by its name, and the sentence that says so."""
    for name, text in texts.items():
        must_be = checks[name](text) if name in checks else None
        if must_be is not None:
            yield name, f"must be {must_be}, not {described(text)}"


def _checked(checks: Mapping[str, TextCheck]) -> AfterValidator:
    def check(texts: dict[str, str]) -> dict[str, str]:
        if problems := list(wrong(checks, texts)):
            raise problems_of_keys(problems)
        return texts

    return AfterValidator(check)


def _variables(names: dict[str, str]) -> dict[str, str]:
    if problems := [(name, NO_VARIABLE) for name in names if not re.fullmatch(VARIABLE, name)]:
        raise problems_of_keys(problems)
    return names


def _unless_blank(text: str) -> str | None:
    """The command, or None if it is blank."""
    return text if text.strip() else None


def _checked_name(text: str) -> str:
    if not re.fullmatch(JOB_NAME, text):
        raise problem("must be 1 to 64 letters, digits, '-' and '_'")
    return text


Text = Annotated[str, Field(max_length=4096)]
Annotations = Annotated[
    dict[Text, Annotated[str, Field(max_length=TEXT_LENGTH)]],
    Field(max_length=VARIABLES_MAX),
    _checked(ANNOTATIONS),
]
Variables = Annotated[
    dict[str, Text],
    Field(max_length=VARIABLES_MAX),
    AfterValidator(_variables),
    _checked(VARIABLES),
]


# --- The parts --------------------------------------------------------------------------------------


class Metadata(DocumentPart):
    name: Annotated[str, AfterValidator(_checked_name)] | None = None
    workspace_id: Text = "0"
    description: Annotated[str, Field(max_length=256)] = ""
    annotations: Annotations = Field(default_factory=dict)


class Output(DocumentPart):
    name: Text | None = None
    local_dir: Text | None = None

    @property
    def has_variable(self) -> bool:
        """Whether the script finds the folder in a variable of this name."""
        is_env = (self.model_extra or {}).get("access_method") == "env"
        return is_env and bool(self.name and self.local_dir)

    @model_validator(mode="after")
    def _has_a_variable_name(self) -> Output:
        if self.has_variable and not re.fullmatch(VARIABLE, self.name or ""):
            raise problem(NO_VARIABLE, "name")
        return self


class Algorithm(DocumentPart):
    command: Annotated[str, Field(max_length=TEXT_LENGTH), AfterValidator(_unless_blank)] | None = (
        None
    )
    environments: Variables = Field(default_factory=dict)
    outputs: Annotated[list[Output], Field(max_length=VARIABLES_MAX)] = Field(default_factory=list)


class Resource(DocumentPart):
    node_count: Annotated[int, Field(ge=1, le=NODES)] = 1
    flavor_id: Text | None = None
    pool_id: Text | None = None


class LogExportPath(DocumentPart):
    obs_url: Text | None = None
    host_path: Text | None = None


class AutoStop(DocumentPart):
    time_unit: Literal["HOURS"] = "HOURS"
    duration: Annotated[int, Field(ge=1, le=HOURS_MAX)]


class SchedulePolicy(DocumentPart):
    priority: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class Notification(DocumentPart):
    topic_urn: Text = ""
    events: Annotated[
        list[Literal[EVENTS]],  # type: ignore[valid-type]  # one table for the names
        Field(max_length=len(EVENTS)),
    ] = Field(default_factory=list)


class Spec(DocumentPart):
    resource: Resource = Field(default_factory=Resource)
    log_export_path: LogExportPath | None = None
    auto_stop: AutoStop | None = None
    schedule_policy: SchedulePolicy = Field(default_factory=SchedulePolicy)
    notification: Notification = Field(default_factory=Notification)


class Document(DocumentPart):
    kind: Literal[KINDS] = COMMON_KIND  # type: ignore[valid-type]  # one table for the names
    metadata: Metadata = Field(default_factory=Metadata)
    algorithm: Algorithm = Field(default_factory=Algorithm)
    spec: Spec = Field(default_factory=Spec)
    everstep: dict[str, Any] = Field(default_factory=dict)
