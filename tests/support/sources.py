"""Python sources as syntax trees, for tests that judge how we write."""

from __future__ import annotations

import ast
import gc
from typing import Any


def parsed(source: str, **options: Any) -> ast.Module:
    """The tree of a module; no garbage is collected meanwhile.

    Python 3.11 raises "AST constructor recursion depth mismatch" where a collection falls into `ast.parse`
    and what it ends runs code of its own.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        tree: ast.Module = ast.parse(source, **options)
        return tree
    finally:
        if was_enabled:
            gc.enable()
