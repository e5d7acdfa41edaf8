"""What a webhook is sent instead of our JSON, for services that want a shape of their own.

A template is JSON; the names of a message's fields in its texts, `{job}`, are replaced by their values. They
come from ranks too, so what would mention or call people is taken out of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIELDS = ("id", "job", "run", "event", "time", "level", "message", "topic", "text")

_FIELD = re.compile(r"\{([^{}\":,]*)\}")  # JSON around texts has more than a name in its braces


def _as_it_is(text: str) -> str:
    return text


def _for_slack(text: str) -> str:
    """Slack reads `<!channel>` as a call and `&` as the start of an entity."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _without_mentions(text: str) -> str:
    """An invisible space keeps `@channel` from being one."""
    return text.replace("@", "@\u200b")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTemplate:
    """The body, and what happens to each value before it is put in."""

    body: Mapping[str, Any]
    escape: Callable[[str], str] = _as_it_is


_CARD = {"type": "AdaptiveCard", "version": "1.4"}

TEMPLATES: Mapping[str, MessageTemplate] = {
    "slack": MessageTemplate(body={"text": "{text}"}, escape=_for_slack),
    "mattermost": MessageTemplate(body={"text": "{text}"}, escape=_without_mentions),
    "discord": MessageTemplate(body={"content": "{text}", "allowed_mentions": {"parse": []}}),
    "teams": MessageTemplate(
        body={
            "type": "message",
            "attachments": [
                {
                    "contentType": "application/vnd.microsoft.card.adaptive",
                    "content": {
                        **_CARD,
                        "body": [{"type": "TextBlock", "text": "{text}", "wrap": True}],
                    },
                }
            ],
        }
    ),
}
"""By the names that a setting may have."""


def template(name: str) -> MessageTemplate:
    """The template of this name, or of the file of this name. Raises ValueError with what is wrong."""
    if name in TEMPLATES:
        return TEMPLATES[name]
    try:
        body = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(TEMPLATES)
        raise ValueError(f"give one of {names}, or a file: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"the file has to be JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("the file has to be one JSON object")  # of a file, not of an argument
    strange = sorted(set(_FIELD.findall(json.dumps(body))) - set(FIELDS))
    if strange:
        raise ValueError(f"there is no {{{strange[0]}}}; a text may have {', '.join(FIELDS)}")
    return MessageTemplate(body=body)


def rendered(template: MessageTemplate, message: Mapping[str, Any]) -> dict[str, Any]:
    """The body for this message."""

    def value(match: re.Match[str]) -> str:
        return template.escape(str(message.get(match[1], "")))

    def filled(part: Any) -> Any:
        match part:
            case str():
                return _FIELD.sub(value, part)
            case Mapping():
                return {key: filled(inner) for key, inner in part.items()}
            case list():
                return [filled(inner) for inner in part]
            case _:
                return part

    return {key: filled(inner) for key, inner in template.body.items()}
