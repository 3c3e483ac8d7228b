"""What every command shares: error reporting, JSON output, consoles."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import typer
from rich.console import Console

from sonoran.errors import SonoranError

out = Console()
err = Console(stderr=True)

F = TypeVar("F", bound=Callable[..., Any])


def command(function: F) -> F:
    """Turn SonoranError into one line on standard error and exit code 2, and Ctrl-C into exit code 130."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SonoranError as error:
            err.print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt:
            err.print("interrupted")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise typer.Exit(1) from None

    return wrapped  # type: ignore[return-value]


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    json.dump(value, sys.stdout, indent=2, default=_plain, ensure_ascii=False)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)
