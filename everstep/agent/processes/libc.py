"""Calls of the C library that Python has no function for.

`ctypes` takes longer to import than many a rank to start. What CPython makes it of can call a function as
well; an interpreter that is made otherwise has `ctypes` alone.
"""

from __future__ import annotations

try:
    from _ctypes import call_function, dlopen, dlsym
except ImportError:
    HAS_PARTS = False
else:
    HAS_PARTS = True


def call(name: str, *arguments: int | bytes | None) -> int:
    """Call the function of this name, which returns an `int`. Its arguments are an `int`, a text or NULL."""
    if HAS_PARTS:
        program = dlopen(None, 0)  # type: ignore[arg-type]  # None is this program
        result: int = call_function(dlsym(program, name), arguments)
    else:
        from ctypes import CDLL

        result = CDLL(None)[name](*arguments)
    return result
