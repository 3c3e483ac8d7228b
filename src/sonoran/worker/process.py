"""A draft worker as a child process: started, watched, and cleaned up after, whatever way it ends.

It is a fresh interpreter, not a fork: the engine has threads. Its socket lies in a folder that only this user can
enter, or, where no folder can be made, in Linux's abstract namespace, with keys that nobody else has. Settings go
through its standard input, which also tells it when this process has gone.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from sonoran import errors
from sonoran.errors import SonoranError, WorkerError
from sonoran.worker.keys import Keys, key_pairs
from sonoran.worker.transport import DEFAULT_HEARTBEAT_S

_PREFIX = "sonoran-draft-"
_SOCKET = "worker.sock"
_LONGEST_FOLDER = 88  # bytes: a socket's path has at most 107
_LAST_LINES = 20
_PATIENCE_S = 2.0  # until a worker that was asked to stop is killed


class Orders(msgspec.Struct, frozen=True):
    """What a worker is told at its start; ``folder``, if there is one, is private to it and goes with it."""

    options: msgspec.Raw  # JSON of a WorkerConfig
    address: str
    folder: str | None
    parent: int
    heartbeat_s: float
    keys: Keys | None = None


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says on its way, a JSON object a line: bytes loaded and in all, that it is ready, or an error."""

    progress: tuple[int, int] | None = None
    ready: bool = False
    error: str | None = None
    kind: str = ""  # class of the error


@dataclass(slots=True)
class _Said:
    """What a worker has reported so far."""

    ready: bool = False
    progress: tuple[int, int] | None = None
    error: SonoranError | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))


class LocalWorker:
    """One child process and its folder. Make it in a thread that lives as long as the worker shall.

    ``options`` go to the worker as JSON: a WorkerConfig, unless ``command`` is another than ours, or a Future of one,
    which is waited for while the process starts. Raises WorkerError
    when the process cannot be started. ``stop`` is called at exit, if not before, and does nothing in a forked child.
    """

    def __init__(
        self,
        options: object,
        *,
        command: Sequence[str] = (),
        heartbeat_s: float = DEFAULT_HEARTBEAT_S,
    ) -> None:
        command = command or (interpreter(), "-m", "sonoran.worker")
        self.folder = _private_folder()
        self.keys: Keys | None = None
        keys: Keys | None = None  # the worker's
        if self.folder is None:
            self.keys, keys = key_pairs()
        self.address = (
            f"ipc://{self.folder / _SOCKET if self.folder else f'@{_PREFIX}{secrets.token_hex(16)}'}"
        )
        self._said = _Said()
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a terminal's Ctrl-C and hang-up are for the parent
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )
        except OSError as error:
            _remove(self.folder)
            raise WorkerError(f"the draft worker cannot be started: {error}") from error
        self._process = process
        self._cleanup = weakref.finalize(self, _end, process, self.folder, os.getpid())
        try:
            orders = Orders(
                options=msgspec.Raw(msgspec.json.encode(_settled(options))),
                address=self.address,
                folder=str(self.folder) if self.folder is not None else None,
                parent=os.getpid(),
                heartbeat_s=heartbeat_s,
                keys=keys,
            )
            self._brief(process, orders)
        except BaseException:
            self._cleanup()
            raise

    def _brief(self, process: subprocess.Popen[bytes], orders: Orders) -> None:
        """Listen to the process, and tell it what to do."""
        self._readers = [
            threading.Thread(target=read, args=(stream, self._said), daemon=True)
            for read, stream in ((_read_reports, process.stdout), (_read_log, process.stderr))
        ]
        for reader in self._readers:
            reader.start()
        if process.stdin is not None:
            with suppress(OSError):  # it died at once: `alive` and `failure` tell
                process.stdin.write(msgspec.json.encode(orders) + b"\n")
                process.stdin.flush()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs (it may be stopped)."""
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has loaded its model and takes clients."""
        return self._said.ready

    @property
    def progress(self) -> tuple[int, int] | None:
        """Bytes loaded so far and bytes in all, once it has begun to load."""
        return self._said.progress

    def failure(self) -> SonoranError:
        """Return why it ended: what it reported, or its last log lines."""
        for reader in self._readers:
            reader.join(_PATIENCE_S)
        if self._said.error is not None:
            return self._said.error
        status = self._process.poll()
        if status is None:
            how = "does not get ready"
        else:
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        if not self._said.lines:
            return WorkerError(f"the draft worker {how} and left no message")
        last = "\n".join(f"  {line}" for line in self._said.lines)
        return WorkerError(f"the draft worker {how}; its last words:\n{last}")

    def stop(self) -> None:
        """End the process, the hard way if it does not listen, and remove its folder. Twice is harmless."""
        self._cleanup()


def _settled(options: object) -> object:
    """Return options, those of a Future when it has them. Raises WorkerError when it is cancelled."""
    if not isinstance(options, Future):
        return options
    try:
        return options.result()
    except CancelledError:
        raise WorkerError("the draft worker was closed while it started") from None


def interpreter() -> str:
    """Return the Python that a worker runs in. Raises WorkerError when this process does not say which it is.

    In a program that embeds Python, ``sys.executable`` is empty, or is that program.
    """
    named = Path(sys.executable or "")
    if "py" in named.name:
        return str(named)
    usual = Path(sys.exec_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    if usual.exists():
        return str(usual)
    raise WorkerError(
        f"the draft worker cannot be started: sys.executable is {sys.executable!r}, and there is no {usual}; "
        "set sys.executable to the Python interpreter, or start 'sonoran draft-worker' and give its address"
    )


def _private_folder() -> Path | None:
    """Make a folder with a short name for a socket; None where none can be made, but none is needed."""
    problem: OSError | None = None
    for parent in (None, "/tmp", os.environ.get("XDG_RUNTIME_DIR") or "/tmp"):
        try:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        except OSError as error:
            problem = problem or error
            continue
        if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
            return folder
        folder.rmdir()
    if sys.platform == "linux":
        return None
    raise WorkerError(
        f"the draft worker cannot be started: it needs a temporary folder: {problem}; set TMPDIR"
    )


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes], folder: Path | None, owner: int) -> None:
    """Tell the worker to go, then insist. A stopped one hears nothing and is killed."""
    if os.getpid() != owner:
        return  # a forked child of its owner, which needs it still
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _remove(folder)


def _read_reports(stream: IO[bytes], said: _Said) -> None:
    """Take the worker's reports until it ends."""
    with stream:
        for line in stream:
            try:
                report = msgspec.json.decode(line, type=Report)
            except msgspec.MsgspecError:
                continue
            said.ready = said.ready or report.ready
            if report.progress is not None:
                said.progress = report.progress
            if report.error is not None:
                kind = getattr(errors, report.kind, WorkerError)
                said.error = kind(report.error)


def _read_log(stream: IO[bytes], said: _Said) -> None:
    with stream:
        for line in stream:
            said.lines.append(line.decode("utf-8", "replace").rstrip())


log = logging.getLogger(__name__)

HUNG_AFTER_S = 30.0
"""Seconds without a session after which a worker that has loaded its model and still runs is replaced."""


@dataclass(frozen=True, slots=True)
class Local:
    """A worker of our own. ``options`` is its WorkerConfig, or what another ``command`` takes instead, or a Future of
    either."""

    options: object
    heartbeat_s: float = DEFAULT_HEARTBEAT_S
    command: Sequence[str] = ()
    hung_after_s: float = HUNG_AFTER_S


class Keeper:
    """Owner of one worker process at a time. ``look`` belongs in the thread that shall own the process."""

    def __init__(self, place: Local) -> None:
        self._place = place
        self.worker: LocalWorker | None = None
        self.starts = 0
        self._ready_since: float | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a worker that takes clients."""
        return self.worker is not None and self.worker.ready

    @property
    def alive(self) -> bool:
        """Whether its process runs (it may be stopped)."""
        return self.worker is not None and self.worker.alive

    def look(self, now: float, last_session: float, may_start: bool) -> SonoranError | None:
        """Look after the process; return why it ended, once.

        ``last_session`` is when somebody could talk to it last. Raises WorkerError when none can be started.
        """
        if self.worker is not None:
            if self.worker.ready and self._ready_since is None:
                self._ready_since = now
            error = self._why_it_goes(self.worker, now, last_session)
            if error is not None:
                self.stop()
            return error
        if may_start:
            self.starts += 1
            self._ready_since = None
            self.worker = LocalWorker(
                self._place.options, command=self._place.command, heartbeat_s=self._place.heartbeat_s
            )
        return None

    def stop(self) -> None:
        """End the process and remove its folder."""
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def _why_it_goes(self, worker: LocalWorker, now: float, last_session: float) -> SonoranError | None:
        if not worker.alive:
            return worker.failure()
        if (
            self._ready_since is None
            or now - max(last_session, self._ready_since) <= self._place.hung_after_s
        ):
            return None
        return WorkerError("the draft worker hangs, so that it is replaced")
