"""Where the ``sonoran`` command begins: from here on Ctrl-C ends it in one line, also while modules are imported."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script."""
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # else it is ignored, as in a background job
        signal.signal(signal.SIGINT, _leave)
    importlib.import_module("sonoran.cli.main").main()


def _leave(*_: object) -> None:
    """End the process. An exception could come to light anywhere: modules turn it into others, callbacks lose it."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt meanwhile, for what has to be cleaned up."""
    ours = signal.getsignal(signal.SIGINT) is _leave
    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, _leave)
