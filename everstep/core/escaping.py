"""Escape untrusted text, of a rank, a document or a server, for a terminal and for Markdown.

Stored text is not changed: only what is shown goes through here.
"""

from __future__ import annotations

import re

# What begins a title, a link or a file of its own.
_STRINGS = r"(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])"
_SEQUENCE = re.compile(
    rf"{_STRINGS}[^\x07\x1b\x90\x98\x9c-\x9f\r\n]*(?:\x07|\x1b\\|\x9c)"  # with all that is in it
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|\x1b[ -/]*[0-~]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""All but tab and newline; also what turns the direction of reading, and other line ends."""

_MARKDOWN = re.compile(
    r"[\\`*|\[<~]"
    r"|!(?=\[)|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])"
    r"|:(?=//)|(?<=[wW]{3})\."  # a viewer makes a link of these by itself
)


_ADDRESS = re.compile(r"@(?=\w)")
"""An address of mail, which no backslash keeps from being a link, or the name of a user to notify."""


def for_terminal(text: str) -> str:
    """Tabs and lines stay. Escape sequences go, another control character is a blank.

    A carriage return too: what was printed before it is not overwritten.
    """
    return _CONTROL.sub(" ", _SEQUENCE.sub("", text))


def in_markdown(text: str) -> str:
    """The text for a line of markdown: shown as it is, never a link, an image, HTML or a cell of its own.

    A blank without width keeps an address of mail from being a link.
    """
    escaped = _MARKDOWN.sub(r"\\\g<0>", " ".join(for_terminal(text).split()))
    return _ADDRESS.sub("@&#8203;", escaped)


_OF_ADDRESS = r"!#-;=?-\[\]-~"  # printable ASCII but for " < > and the backslash
WEB_ADDRESS = rf"https?://(?![^/?#]*@)(?![/?#])[{_OF_ADDRESS}]+"
"""An address on the web, without a name or password of a user."""


def is_web_address(text: str) -> bool:
    return re.fullmatch(WEB_ADDRESS, text) is not None


def link_in_markdown(text: str, address: str) -> str:
    """A link within a line of markdown; where the address is none of the web, both as text."""
    if not is_web_address(address):
        return in_markdown(f"{text}: {address}")
    return f"[{in_markdown(text).replace(']', chr(92) + ']')}](<{address}>)"


def as_markdown(text: str) -> str:
    """Whole lines as markdown: a block of code, which is shown as it is."""
    visible = for_terminal(text)  # without escape sequences, which may keep backticks apart
    longest = max(map(len, re.findall("`+", visible)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{visible}\n{fence}"
