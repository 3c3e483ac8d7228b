"""How a worker ends: within a second of being told to, whatever its main thread is doing at that moment.

A thread of its own waits for signals, and for the end of the parent if there is one. It asks the main thread to stop,
and ends the process when that does not happen: a forward pass, a load or a loop may take longer than anybody waits.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

GRACE_S = 0.6
"""Between being told to stop and ending the hard way."""

_LOOK_AT_PARENT_S = 0.3
_STDIN = 0


class Guard:
    """A context manager for the main thread of a worker; inside, ``signals`` end it, and the end of ``parent`` does.

    Until ``listen`` is called, a signal also raises KeyboardInterrupt or SystemExit as soon as Python code runs, so
    that what is being loaded is let go. A ``parent`` is a process id; its end is also told by the end of standard
    input, which it holds open.
    """

    def __init__(self, signals: Sequence[signal.Signals], *, parent: int | None = None) -> None:
        self._signals, self._parent = tuple(signals), parent
        self._last: list[Callable[[], None]] = []
        self._listening = False
        self._done = threading.Event()
        self._wake, self._waker = os.pipe()
        self._asked, self._asker = os.pipe()
        os.set_blocking(self._waker, False)
        self._thread = threading.Thread(target=self._watch, name="guard", daemon=True)

    def __enter__(self) -> Guard:
        # The descriptor does the work, also while the main thread is in a long call.
        self._wakeup = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._handlers: list[Any] = [signal.signal(number, self._on_signal) for number in self._signals]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in zip(self._signals, self._handlers, strict=True):
            with suppress(TypeError):  # a handler that was not installed from Python
                signal.signal(number, handler)
        os.write(self._waker, b"\0")
        self._thread.join()
        for descriptor in (self._wake, self._waker, self._asked, self._asker):
            os.close(descriptor)

    def listen(self) -> int:
        """Return a descriptor that becomes readable when it is time to stop; nothing is raised from now on."""
        self._listening = True
        return self._asked

    def before_exit(self, clean: Callable[[], None]) -> None:
        """Have ``clean`` called before the process is ended the hard way."""
        self._last.append(clean)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._listening:
            return
        # Once: a parent with several threads may send its last signal twice, and the second would end the cleaning up.
        self._listening = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _watch(self) -> None:
        status = self._wait()
        if status is None:
            return
        os.write(self._asker, b"!")
        if not self._done.wait(GRACE_S):
            for clean in self._last:
                with suppress(Exception):
                    clean()
            os._exit(status)

    def _wait(self) -> int | None:
        """Return the exit status of a process that is ended the hard way; None when it ends by itself."""
        watched, pause = [self._wake], None
        if self._parent is not None:
            watched, pause = [self._wake, _STDIN], _LOOK_AT_PARENT_S
        while True:
            ready, _, _ = select.select(watched, [], [], pause)
            if self._done.is_set():
                return None
            if self._wake in ready:
                for number in os.read(self._wake, 64):
                    if number in self._signals:
                        return 128 + number
            if self._parent is not None and os.getppid() != self._parent:
                return 1
            if _STDIN in ready and not os.read(_STDIN, 4096):
                return 1
