"""Where an observation of a job was among the facts reported to it, as a token. Pure.

A token of other books counts as the beginning: they number their facts by themselves, so that what they
have of a job is reported again, and known by its identity.
"""

from __future__ import annotations


def token(books: str, number: int) -> str:
    """The token of this number in the books with this identity."""
    return f"{books}.{number}"


def number(books: str, cursor: str) -> int:
    """The number in this token; 0 if it is not of these books."""
    whose, _, digits = cursor.rpartition(".")
    return int(digits) if whose == books and digits.isdecimal() else 0
