"""The command `completion`, and the words of a command line that a shell wants completed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # not in its __all__


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell in use.")],
) -> None:
    """Print a script with which a shell completes commands and options.

    In ~/.bashrc: eval "$(everstep completion bash)"; in ~/.zshrc the same with zsh; in
    ~/.config/fish/config.fish: everstep completion fish | source
    """
    print(
        get_completion_script(prog_name="everstep", complete_var="_EVERSTEP_COMPLETE", shell=shell)
    )


def words_before(environ: Mapping[str, str]) -> list[str]:
    """The words between `everstep` and the one to complete."""
    line = environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS") or ""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is still open
        words = line.split()
    begun = 0 if line.endswith(" ") else 1  # bash alone counts the words itself
    return words[1 : int(environ.get("COMP_CWORD", len(words) - begun))]
