"""Where a prompt comes from: an argument, files, standard input, or all of them together."""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from sonoran.cli.common import read, remark
from sonoran.errors import ConfigError
from sonoran.models.untrusted import LARGEST_TEXT

PromptArgument = Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")]
FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", help="A file to go with the prompt, or to be the prompt; may be repeated."),
]
SystemOption = Annotated[str | None, typer.Option(help="System message of the chat.")]
ChatOption = Annotated[
    bool | None,
    typer.Option("--chat/--raw", help="Use the chat template (default if there is one), or the bare text."),
]

WAIT_S = 1.0
"""After so many seconds without a byte from a pipe its reader is told what is waited for."""


def read_prompt(prompt: str | None, files: Iterable[Path] = (), piped: str | None = None) -> str:
    """Return the prompt: the argument, or else what was piped; then each file, and what was piped beside an argument.

    A file or a pipe alone is the prompt as it is. Raises ConfigError.
    """
    named = [(str(path), read(path, "prompt")) for path in files]
    piped = piped.removeprefix("\ufeff") if piped else None
    if prompt in (None, "-"):
        if prompt == "-" and piped is None:
            raise ConfigError("the prompt is empty: nothing came from standard input")
        text = piped or ""
    else:
        text = str(prompt)
        named += [("standard input", piped)] if piped is not None and piped.strip() else []
    if not named and prompt is None and piped is None:
        raise ConfigError("give a prompt, a file (-f FILE), or - for standard input")
    if not text.strip() and len(named) == 1:
        [(_, text)], named = named, []
    text = with_files(text, named)
    if not text.strip():
        raise ConfigError("the prompt is empty")
    return text


def with_files(text: str, files: Iterable[tuple[str, str]]) -> str:
    """Return a prompt with files behind it, each under its name and between fences longer than any inside."""
    parts = [text] if text.strip() else []
    for name, content in files:
        longest = max((len(run) for run in re.findall(r"`{3,}", content)), default=2)
        fence = "`" * (longest + 1)
        parts.append(f"{name}:\n{fence}\n{content.rstrip()}\n{fence}")
    return "\n\n".join(parts)


def piped_input(*, wanted: bool) -> str | None:
    """Return what was piped or redirected to this program, None from a terminal unless it is ``wanted``.

    Raises ConfigError for what is not UTF-8.
    """
    stream = sys.stdin
    if stream is None or (stream.isatty() and not wanted):
        return None
    with suppress(OSError, ValueError):  # a stream that is no file is read as it is
        kind = stat.S_IFMT(os.fstat(stream.fileno()).st_mode)
        if not wanted and kind == stat.S_IFCHR:  # /dev/null, say
            return None
        if not stream.isatty() and not select.select([stream], [], [], WAIT_S)[0]:
            remark("waiting for the end of standard input; </dev/null leaves it out")
    try:
        text = stream.read(LARGEST_TEXT + 1)
    except UnicodeDecodeError as error:
        raise ConfigError("standard input is not UTF-8 text") from error
    if len(text) > LARGEST_TEXT:
        raise ConfigError(f"standard input is longer than the {LARGEST_TEXT} characters that are read")
    return text
