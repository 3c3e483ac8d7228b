"""Keeps a draft worker of our own alive: starts it, finds out why it ended, and replaces one that hangs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sonoran.draftworker.process import COMMAND, LocalWorker
from sonoran.draftworker.transport import DEFAULT_HEARTBEAT_S
from sonoran.errors import SonoranError, WorkerError

log = logging.getLogger(__name__)

HUNG_AFTER_S = 30.0
"""Seconds without a session after which a worker that has loaded its model and still runs is replaced."""


@dataclass(frozen=True, slots=True)
class Local:
    """A worker of our own: ``options`` is what `WorkerOptions.to_mapping` returns."""

    options: dict[str, Any]
    heartbeat_s: float = DEFAULT_HEARTBEAT_S
    command: Sequence[str] = field(default=COMMAND)
    hung_after_s: float = HUNG_AFTER_S


class Keeper:
    """Owner of one worker process at a time. ``look`` belongs in the thread that shall own the process."""

    def __init__(self, place: Local) -> None:
        self._place = place
        self.worker: LocalWorker | None = None
        self.starts = 0

    @property
    def ready(self) -> bool:
        """Whether there is a worker that takes clients."""
        return self.worker is not None and self.worker.ready

    @property
    def alive(self) -> bool:
        """Whether its process runs (it may be stopped)."""
        return self.worker is not None and self.worker.alive

    def look(self, no_session_s: float, may_start: bool) -> SonoranError | None:
        """Look after the process; return why it ended, once.

        ``no_session_s`` is for how long nobody could talk to it. Raises WorkerError when none can be started.
        """
        if self.worker is not None:
            error: SonoranError | None = None
            if not self.worker.alive:
                error = self.worker.failure()
            elif self.worker.ready and no_session_s > self._place.hung_after_s:
                error = WorkerError(
                    f"the draft worker hangs: no session for {no_session_s:.0f} s; it is replaced"
                )
            if error is not None:
                self.stop()
            return error
        if may_start:
            self.starts += 1
            self.worker = LocalWorker(
                self._place.options, command=self._place.command, heartbeat_s=self._place.heartbeat_s
            )
        return None

    def stop(self) -> None:
        """End the process and remove its folder."""
        if self.worker is not None:
            self.worker.stop()
            self.worker = None
