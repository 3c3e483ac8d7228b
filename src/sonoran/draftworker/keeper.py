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
