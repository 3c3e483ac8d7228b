"""What every command shares: consoles, errors, JSON, examples in ``--help``, files that the user named."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from sonoran.cli.start import INTERRUPTED, interruptible
from sonoran.errors import ConfigError, SonoranError, nearest
from sonoran.models.untrusted import decode_text, one_line, read_bytes, refusing

# What users, files and models name may look like markup: nothing that is printed is read as such.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

F = TypeVar("F", bound=Callable[..., Any])

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def command(function: F) -> F:
    """Turn SonoranError into one line on standard error and exit code 2, and Ctrl-C into exit code 130."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            with interruptible():
                result = function(*args, **kwargs)
            sys.stdout.flush()  # what cannot be written is told now, not while Python ends
            return result
        except SonoranError as error:
            _print_error(str(error))
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            err.print("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise typer.Exit(1) from None
        except OSError as error:
            if error.errno not in _OUTPUT_ERRORS:
                _print_error(
                    one_line(
                        ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
                    )
                )
                raise typer.Exit(2) from error
            err.print(f"error: the output cannot be written: {error.strerror}")
            os._exit(1)  # Python would try to write the rest once more, and complain
        except MemoryError as error:
            _print_error("there is not enough memory")
            raise typer.Exit(2) from error

    return wrapped  # type: ignore[return-value]


def _print_error(text: str) -> None:
    err.print("error:", style="red", end=" ")
    err.print(text, soft_wrap=True)


def examples(*commands: str) -> str:
    """Return what ``--help`` ends with: one command a line, to be copied."""
    # Typer takes paragraphs for lines, and what is in brackets for markup.
    return "\n\n".join(["Examples:" if len(commands) > 1 else "Example:", *map(escape, commands)])


def say(text: str, style: str | None = None) -> None:
    """Print a result: one line, however long."""
    out.print(text, style=style, soft_wrap=True)


def remark(text: str) -> None:
    """Print on standard error what is beside the result: one line, however long."""
    err.print(text, style="dim", soft_wrap=True)


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    json.dump(value, sys.stdout, indent=2, default=_plain, ensure_ascii=False)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        return value.tolist()
    return str(value)


def numbers(flag: str, text: str) -> list[int]:
    """Read a list such as ``1,2,4``. Raises ConfigError naming the option and the bad part."""
    values = []
    for part in text.split(","):
        if not part.strip().isdigit():
            raise ConfigError(f"{flag} {text!r}: cannot read {part.strip()!r}; write numbers like 1,2,4")
        values.append(int(part))
    return values


def names(flag: str, text: str) -> list[str]:
    """Read a list such as ``ar,sd``. Raises ConfigError for an empty entry or a repetition."""
    values = [part.strip() for part in text.split(",")]
    if not all(values) or len(set(values)) < len(values):
        raise ConfigError(f"{flag} {text!r}: write different names, separated by commas")
    return values


def suffix(path: Path | None, valid: tuple[str, ...], what: str) -> str | None:
    """Return the lower-case ending of a file name, which must be one of ``valid``. Raises ConfigError."""
    if path is None:
        return None
    ending = path.suffix.lower().lstrip(".")
    if ending not in valid:
        wanted = nearest(ending, valid) if ending else f"; valid: {', '.join(valid)}"
        raise ConfigError(
            f"{what}: the file name {str(path)!r} must end in {' or '.join('.' + v for v in valid)}{wanted}"
        )
    return ending


def read(path: Path, what: str) -> str:
    """Return the text of a file that the user named. Raises ConfigError."""
    with refusing(f"the {what} file {path}", ConfigError):
        return decode_text(read_bytes(path), ConfigError)


def write(path: Path, data: bytes) -> None:
    """Write a file that the user named. Raises ConfigError."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
