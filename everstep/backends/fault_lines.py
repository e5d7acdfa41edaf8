"""Parses lines that request a fault: `at 35s device n1 0 80E01801 heals`.

The usage of a fault is its grammar: capitals stand for arguments, parts in brackets are optional, small
letters are written as they stand. What the faults are and do is in `faults.py`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.core.facts import Detail
from everstep.faults.severities import SEVERITIES

TIME_UNITS: Mapping[str, float] = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Now (nothing given), at a time, or when a job completes a step."""

    at_s: float | None = None  # since the cluster began
    in_s: float | None = None  # from now
    step: int | None = None
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLine:
    """One line, read: `at 35s device n1 0 80E01801 heals`."""

    line: str
    name: str
    words: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    when: When = When()

    def number(self, index: int) -> int:
        return int(self.words[index])

    def seconds(self, index: int) -> float:
        return _seconds(self.words[index]) or 0.0

    def value(self, index: int) -> float | str:
        """A number, or the word that may stand for one."""
        text = self.words[index]
        if not _is_number(text):
            return text
        return float(text) if "." in text else int(text)

    def percent(self, index: int) -> float | str:
        """The value of this word as a device's utilisation. Raises ValueError above 100."""
        value = self.value(index)
        if isinstance(value, float | int) and value > 100:
            raise ValueError(f"{self.line!r}: the use of a device goes from 0 to 100")
        return value

    def device_details(self) -> dict[str, Detail]:
        """The options of a device fault as details of its fact: severity, whether it heals, who caused it."""
        heals = self.one_of(("heals", "no-heals"))
        user = self.one_of(("user", "not-user"))
        details: dict[str, Detail] = {
            "severity": self.one_of(SEVERITIES),
            "heals": None if heals is None else heals == "heals",
            "user_induced": None if user is None else user == "user",
        }
        return {key: value for key, value in details.items() if value is not None}

    def one_of(self, names: tuple[str, ...]) -> str | None:
        """The one of these options that the line has, if any."""
        return next((name for name in names if name in self.options), None)


NUMBERS = frozenset({"INDEX", "RANK", "SLOT", "STEP"})
"""Arguments that must be numbers, so that a slip is an error when the line is read, not hours later."""


def read_line(line: str, usages: Mapping[str, str]) -> FaultLine:
    """The line as a fault; a ValueError says in one sentence how it should have been written."""
    tokens = shlex.split(line, comments=True)
    when, tokens = _parse_when(line, tokens)
    if not tokens or tokens[0] not in usages:
        names = ", ".join(usages)
        raise ValueError(f"{line!r} names no fault; known are {names}")
    name, rest = tokens[0], tokens[1:]
    read = _parse_rest(usages[name], rest)
    if read is None:
        raise ValueError(f"{line!r} should read: {name} {usages[name]}")
    return FaultLine(line=line, name=name, words=read[0], options=read[1], when=when)


def _parse_when(line: str, tokens: list[str]) -> tuple[When, list[str]]:
    match tokens:
        case ["at", "step", step, "of", job, *rest] if step.isdigit():
            return When(step=int(step), job=job), rest
        case ["at", time, *rest] if (at_s := _seconds(time)) is not None:
            return When(at_s=at_s), rest
        case ["in", time, *rest] if (in_s := _seconds(time)) is not None:
            return When(in_s=in_s), rest
        case ["at" | "in", *_]:
            raise ValueError(f"{line!r} should begin: at 35s, in 5s, or at step 40 of JOB")
        case _:
            return When(), tokens


def _seconds(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    return float(match[1]) * TIME_UNITS[match[2] or "s"] if match else None


def _parse_rest(usage: str, tokens: list[str]) -> tuple[tuple[str, ...], dict[str, str]] | None:
    """Match the tokens against a usage; return `(words, options)`, or None if they do not fit.

    A usage such as `JOB RANK [exit|signal N] [log=TEXT]` has four kinds of parts: words in a fixed order,
    and optional flags (`exit`), flags with a number (`signal N`) and values (`log=TEXT`; `KEY=` stands for
    any name).
    """
    required = re.sub(r"\[.*?\]", "", usage).split()
    choices = [one for group in re.findall(r"\[(.*?)\]", usage) for one in group.split("|")]
    allowed = (*required, *(one for one in choices if one.isupper() and "=" not in one))
    value_names = {one.split("=")[0] for one in choices if "=" in one}
    numbered_flags = {one.split()[0] for one in choices if " " in one}
    words: list[str] = []
    options: dict[str, str] = {}
    remaining = iter(tokens)
    for token in remaining:
        name, _, value = token.partition("=")
        has_required = len(words) >= len(required)
        if has_required and token.islower() and token in choices:
            options[token] = ""
        elif has_required and token in numbered_flags:
            options[token] = next(remaining, "")
            if not options[token].isdigit():
                return None
        elif value and value_names & {name, "KEY"}:
            options[name] = value
        elif len(words) < len(allowed) and _is_word(allowed[len(words)], token):
            words.append(token)
        else:
            return None
    return (tuple(words), options) if len(words) >= len(required) else None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


def _is_word(name: str, token: str) -> bool:
    if name == "SECONDS":
        return _seconds(token) is not None
    if "|" in name:  # a number, or one of the small words
        return token in filter(str.islower, name.split("|")) or _is_number(token)
    return token.isdigit() if name in NUMBERS else token != ""
