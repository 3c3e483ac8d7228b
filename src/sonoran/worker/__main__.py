"""The life of a worker that an engine started: it obeys its parent, and never outlives it.

The parent writes one line of JSON (``Orders``) to standard input and keeps it open; end of file means that it is
gone. Reports go to standard output, a JSON object a line; whatever else is printed goes to standard error.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from sonoran.backends.native import LoadProgress
from sonoran.config import ChildConfig
from sonoran.errors import ConfigError, SonoranError
from sonoran.ssd.model import load_draft_model
from sonoran.worker.guard import Guard
from sonoran.worker.process import Orders, Report
from sonoran.worker.server import serve
from sonoran.worker.session import Service, draft_service

log = logging.getLogger(__name__)

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1


def child_main(build: Callable[[T, LoadProgress], Service], options: type[T]) -> int:
    """Run a worker as a child process; return its exit status.

    ``build`` loads what it serves, as its ``options`` say, which are of the type that is named.
    """
    control = _private_output()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    orders = msgspec.json.decode(_first_line(), type=Orders)
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )

    def clean() -> None:
        if orders.folder is not None:
            shutil.rmtree(orders.folder, ignore_errors=True)

    with Guard([signal.SIGTERM], parent=orders.parent) as guard:
        guard.before_exit(clean)
        _die_with_parent()
        try:
            service = build(
                msgspec.json.decode(orders.options, type=options),
                lambda part, total: _report(control, Report(progress=(part, total))),
            )
            serve(
                service,
                orders.address,
                keys=orders.keys,
                heartbeat_s=orders.heartbeat_s,
                stop_fds=(guard.listen(),),
                on_ready=lambda: _report(control, Report(ready=True)),
                before_exit=guard.before_exit,
            )
        except SonoranError as error:
            _report(control, Report(error=str(error), kind=type(error).__name__))
            return 2
        finally:
            guard.listen()  # so that no signal ends the cleaning up
            clean()
    return 0


def _may_use(cores: Sequence[int] | None) -> None:
    """Have cores that were named for the draft, though the thread that started this process is pinned to others."""
    if cores and hasattr(os, "sched_setaffinity"):
        with suppress(
            OSError, ValueError
        ):  # what the system does not grant is refused where threads are placed
            os.sched_setaffinity(0, {*os.sched_getaffinity(0), *cores})


def pin_process(cores: Sequence[int] | None) -> None:
    """Keep this process, and all threads that it will have, on these cores. Raises ConfigError if it may not."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    tasks = Path("/proc/self/task")
    try:
        os.sched_setaffinity(0, cores)
        for task in tasks.iterdir() if tasks.is_dir() else ():
            with suppress(ProcessLookupError):  # a thread that has just ended
                if not os.sched_getaffinity(int(task.name)) <= set(cores):  # else it has a core of its own
                    os.sched_setaffinity(int(task.name), cores)
    except (OSError, ValueError) as error:
        usable = sorted(os.sched_getaffinity(0))
        raise ConfigError(
            f"the draft worker cannot use cores {list(cores)}, usable are {usable}: {error}"
        ) from None


def _die_with_parent() -> None:
    """Have Linux send SIGTERM when the thread that started this process ends; elsewhere, the guard looks."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _private_output() -> int:
    """Keep standard output for reports, and send everything else that is printed to standard error."""
    control = os.dup(1)
    os.dup2(2, 1)
    return control


def _first_line() -> bytes:
    """Read a line from standard input without reading further."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit("this starts draft workers for an engine; by hand, use: sonoran draft-worker")
        line += byte
    return line


def _report(control: int, report: Report) -> None:
    with suppress(OSError):
        os.write(control, msgspec.json.encode(report) + b"\n")


def build(config: ChildConfig, progress: LoadProgress) -> Service:
    """Load the draft model that was named, on all cores, and stay on its own from then on."""
    _may_use(config.cores)
    draft = load_draft_model(config, progress)
    pin_process(config.cores)
    return draft_service(draft)


if __name__ == "__main__":
    sys.exit(child_main(build, ChildConfig))
