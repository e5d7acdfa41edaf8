"""Texts of others as they are shown: nothing of a terminal's or of a viewer's language is left in them."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from everstep.core.escaping import as_markdown, for_terminal, in_markdown

CONTROLS = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
TERMINAL = (
    *("\x1b", "[", "]", "\x9b", "\x9d", "\x9c", "\x90", "\x07", "\\", ";", "m", "31", "(", "\x08"),
    *("\r", "\n", "\t", "\u202e", "\u2066", "P", "^", "a", "ä", "字"),
)
MARKDOWN = (
    *("[", "]", "(", ")", "<", ">", "!", "`", "``", "*", "**", "_", "__", "~~", "|", "\\", "&lt;"),
    *(
        "http://e.example",
        "www.e.example",
        "WWW.e.example",
        "a@b.example",
        "<img src=x>",
        "&#60;",
        "x",
        " ",
        "\n",
    ),
)


def texts(parts: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts) | st.text(max_size=2), max_size=25).map("".join)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("\x1b[1;31mError\x1b[0m: \x9b4mno\x9b0m", "Error: no"),
        ("\x1b]0;title\x07here", "here"),
        ("\x1b]8;;http://e.example\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x9d0;title\x9chere, \x1bP1$r\x1b\\there", "here, there"),
        ("\x1b]0;never closed", "0;never closed"),  # what follows is not lost with it
        ("\x1bcreset \x1b(0lines \x1b[2J\x1b[Hnew", "reset lines new"),
        ("\x1b\x1b[31m[31mred", " [31mred"),
        ("loss 3\rall fine", "loss 3 all fine"),
        ("abc\x08\x08\x7f", "abc   "),
        ("user\u202egpj.exe\u202c", "user gpj.exe "),
        ("a\tb\nschön 字 👩\u200d🔬", "a\tb\nschön 字 👩\u200d🔬"),
    ],
)
def test_a_terminal_is_told_nothing_by_what_is_shown(printed: str, expected: str) -> None:
    assert for_terminal(printed) == expected


@given(texts(TERMINAL))
def test_no_text_leaves_a_control_character(text: str) -> None:
    escaped = for_terminal(text)
    assert not {ord(c) for c in escaped} & CONTROLS - {ord("\t"), ord("\n")}
    assert for_terminal(escaped) == escaped
    assert text.count("\n") == escaped.count("\n")


def kinds(markdown: str, *, page: str = "{}") -> tuple[set[str], str]:
    """What a viewer of markdown with tables and HTML makes of it: the kinds of parts, and the text."""
    viewer = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    parts = [
        part
        for block in viewer.parse(page.format(markdown))
        for part in [block, *(block.children or ())]
    ]
    text = "".join(part.content for part in parts if part.type in ("text", "fence", "code_block"))
    return {part.type for part in parts}, text


PLAIN = {"paragraph_open", "paragraph_close", "inline", "text", "text_special"}


@given(texts(MARKDOWN))
@example("[x](http://e.example)")
@example("![x](http://e.example)")
@example("<script>alert(1)</script>")
@example("in __init__ of a_b, ~~gone~~")
def test_within_a_line_of_markdown_a_text_is_nothing_but_text(text: str) -> None:
    escaped = in_markdown(text)
    tags, plain_text = kinds(escaped, page="in a line: {}.")
    assert tags <= PLAIN
    in_line = f"in a line: {' '.join(for_terminal(text).split())}."
    assert plain_text.replace("\u200b", "") == in_line.replace("\u200b", "")
    linked = r"(?<!\\):(?=//)|(?i:www)\.|@(?=\w)"  # some viewers make links of these
    assert not re.search(linked, escaped)


@given(texts(MARKDOWN))
def test_a_text_is_one_cell_of_a_table(text: str) -> None:
    page = f"| a | b |\n|---|---|\n| {in_markdown(text)} | z |"
    viewer = MarkdownIt("commonmark").enable("table")
    types = [part.type for part in viewer.parse(page)]
    assert (types.count("td_open"), types.count("tr_open")) == (2, 2)


@given(texts(MARKDOWN))
@example("```\n[x](http://e.example)")
@example("````")
@example("``\x1b[0m`\n<b>out</b>")  # backticks that an escape sequence keeps apart
def test_whole_lines_are_a_block_that_is_shown_as_it_is(text: str) -> None:
    tags, plain_text = kinds(as_markdown(text))
    assert tags == {"fence"}
    assert plain_text == for_terminal(text) + "\n"
