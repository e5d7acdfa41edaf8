"""Calls of the C library that Python has no function for.

`ctypes` takes longer to import than many a rank to start. What it is made of can call a function as well.
"""

from __future__ import annotations

import _ctypes


def call(name: str, *arguments: int | bytes | None) -> int:
    """Call the function of this name, which returns an `int`. Its arguments are an `int`, a text or NULL."""
    program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None is this program
    function = _ctypes.dlsym(program, name)
    result: int = _ctypes.call_function(function, arguments)
    return result
