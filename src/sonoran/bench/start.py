"""How long a command takes to start: whole processes, from nothing to their first and their last byte."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sonoran.backends.packed import SETTING as PACKED_SETTING
from sonoran.bench.stats import ratio, summarize
from sonoran.errors import SonoranError

COMMAND = (sys.executable, "-c", "from sonoran.cli.start import main; main()")
PATIENCE_S = 600.0
_LAST_BYTES = 2000  # of what a command that failed had to say


class StartError(SonoranError):
    """A command that was to be timed failed."""


@dataclass(frozen=True, slots=True)
class Start:
    """A command to time: its name in the table, its arguments, and what it has in its environment beside ours."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def planned(model: str, modes: Sequence[str], prompt: str, options: Sequence[str] = ()) -> list[Start]:
    """Return the commands of a comparison: help, then one token in each mode, with weights kept and converted anew.

    ``kept`` reads the packed weights that an earlier start has left in the cache; ``converted`` has no such cache.
    """
    starts = [Start("--help", ("--help",))]
    for mode in modes:
        arguments = ("generate", prompt, "-m", model, "--mode", mode, "-n", "1", *options)
        starts.append(Start(f"{mode}, kept", arguments))
        starts.append(Start(f"{mode}, converted", arguments, {PACKED_SETTING: "off"}))
    return starts


def time_start(start: Start, command: Sequence[str] = COMMAND) -> tuple[float, float]:
    """Run a command; return the seconds until its first byte of standard output and until its end.

    Raises StartError when it fails, says nothing or takes more than ten minutes.
    """
    called = f"sonoran {shlex.join(start.arguments)}"
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [*command, *start.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **start.environment},
        )
        # Terminated, not killed: it ends its draft worker.
        patience = threading.Timer(PATIENCE_S, process.terminate)
        patience.start()
        try:
            head = process.stdout.read(1) if process.stdout is not None else b""
            first = time.perf_counter() - begin
            process.communicate()
            end = time.perf_counter() - begin
        finally:
            patience.cancel()
            if process.poll() is None:
                process.terminate()
                process.wait()
        if end > PATIENCE_S:
            raise StartError(f"{called} took more than {PATIENCE_S:.0f} s")
        if process.returncode != 0 or not head:
            errors.seek(0)
            said = errors.read()[-_LAST_BYTES:].decode(errors="replace").strip()
            raise StartError(f"{called} ended with status {process.returncode}: {said or 'it said nothing'}")
    return first, end


def measure_starts(
    starts: Sequence[Start],
    repeats: int,
    progress: Callable[[str, int, int], None],
    timed: Callable[[Start], tuple[float, float]] = time_start,
) -> list[dict[str, Any]]:
    """Time commands in turn, after one round that is not counted: files are in the page cache, packed weights are kept.

    Seconds; ``against_first`` is the median time to the first byte over that of the same state in the first mode.
    """
    rows: dict[str, list[tuple[float, float]]] = {start.name: [] for start in starts}
    total = (repeats + 1) * len(starts)
    for repeat in range(repeats + 1):
        for number, start in enumerate(starts):
            progress("commands", repeat * len(starts) + number, total)
            times = timed(start)
            if repeat > 0:
                rows[start.name].append(times)
    progress("commands", total, total)
    found: list[dict[str, Any]] = []
    base: dict[str, float] = {}
    for start in starts:
        first, end = (summarize(values) for values in zip(*rows[start.name], strict=True))
        _, _, state = start.name.partition(", ")
        against = ratio(first.median, base.setdefault(state, first.median)) if state else None
        found.append(
            {"name": start.name, "first_s": asdict(first), "end_s": asdict(end), "against_first": against}
        )
    return found
