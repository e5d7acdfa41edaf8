"""Private language only gets less: no room has more of it than tests/plain_words.json allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import plain_words
from tests.support.sources import parsed

NONE = [0, 0, 0, 0]
SOURCE = '''
"""A worker tells nobody; a document says it."""

class Kept:
    """Whoever asks."""

    own: int
    """Nobody knows."""

    def job_row(self, known, job_row):
        self._told = seen = job_row
        seen = [found for found in known]
        def given(): ...
        return said(seen)
'''


def test_names_are_counted_where_they_are_bound_and_once_in_each_scope() -> None:
    counted = sorted(plain_words.names(parsed(SOURCE)))
    assert counted == ["Kept", "_told", "found", "given", "known", "own", "seen"]


def test_people_words_are_counted_in_docstrings() -> None:
    counted = list(plain_words.people_words(parsed(SOURCE)))
    assert counted == ["tells", "nobody", "whoever", "asks", "nobody", "knows"]


def test_names_with_a_word_for_people_are_counted_but_those_of_tests_and_of_one_word_are_not() -> (
    None
):
    source = """
def nobody_to_ask(asked_at): is_known = told = asked_at
class NobodyAnswered: ASK_S = 1.0
def test_what_was_told(): ...
"""
    counted = sorted(plain_words.compounds(parsed(source)))
    assert counted == ["ASK_S", "NobodyAnswered", "asked_at", "nobody_to_ask"]


def test_docstrings_without_an_object_are_counted_of_attributes_too() -> None:
    texts = (
        "Of the pods that one generation creates.",
        "On every object of a job.",
        "Of many files only the newest are of use.",
        "So many are kept.",
        "The same where nothing runs.",
        "By the name of their file.",
        "By then the pod has ended.",
        "The pods that one generation creates.",
        "Without a fence nothing is held.",
    )
    fragments = [*texts[:2], *texts[3:6]]
    functions = "".join(f'def f{n}():\n    """{text}"""\n' for n, text in enumerate(texts))
    assert list(plain_words.fragments(parsed(functions))) == fragments
    attributes = "".join(f'A{n} = {n}\n"""{text}"""\n' for n, text in enumerate(texts))
    assert list(plain_words.fragments(parsed(attributes))) == fragments


def test_no_room_has_more_private_words_than_it_may() -> None:
    rooms, files = plain_words.count()
    limits = plain_words.limits()
    more = {
        where: f"{here.numbers} of {limits.get(where, NONE)}"
        for where, here in rooms.items()
        if any(now > most for now, most in zip(here.numbers, limits.get(where, NONE), strict=True))
    }
    lines = "\n".join(
        plain_words.worst(
            {file: here for file, here in files.items() if plain_words.room(Path(file)) in more}, 9
        )
    )
    assert not more, (
        "name the thing, and the process that acts (names, words, compounds, fragments; see "
        f"CONTRIBUTING.md):\n{lines}"
    )


def test_tests_are_counted_by_their_folders() -> None:
    assert {"everstep/core", "tests", "tests/core", "tests/support"} <= plain_words.limits().keys()
    assert plain_words.room(Path("tests/backends/fake/test_faults.py")) == "tests/backends"
    assert plain_words.room(Path("everstep/backends/fake/faults.py")) == "everstep/backends/fake"


def test_limits_only_go_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_words, "LIMITS", tmp_path / "limits.json")
    plain_words.LIMITS.write_text('{"everstep/core": [5, 0, 0, 0], "everstep/gone": [1, 1, 1, 1]}')
    here = plain_words.Count.of(parsed(SOURCE))
    assert here.numbers == [7, 6, 0, 0]
    plain_words.lower({"everstep/core": here, "everstep/new": here})
    assert plain_words.limits() == {
        "everstep/core": [5, 0, 0, 0],
        "everstep/new": [7, 6, 0, 0],
    }
