"""Passes of a model by rows, behind short and long contexts, alone and while the other model works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from sonoran.backends.base import Backend, Rows
from sonoran.backends.load import Role
from sonoran.errors import ConfigError, SonoranError
from sonoran.planning.profile.profile import Cores, PassCurve, PassPoint, Timing
from sonoran.types import IntArray

Clock = Callable[[], float]
BudgetProgress = Callable[[str, float], None]
"""Called with what is being measured and the share of all work that is done, 0 to 1."""

MIN_ROUNDS = 2
MAX_ROUNDS = 25
_LOOP_ROWS = {"target": 5, "draft": 4}
"""Rows of the passes that the other model runs beside: a verification, a step of tree decoding."""


class TimedModel:
    """A backend with one sequence long enough for every context. Raises ConfigError when it lacks KV memory."""

    def __init__(
        self,
        backend: Backend,
        contexts: Sequence[int],
        max_rows: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.backend, self._clock = backend, clock
        size = backend.block_size
        needed = blocks_needed(contexts, max_rows, size)
        if needed > backend.num_blocks:
            raise ConfigError(f"timing needs {needed} KV blocks, the backend has {backend.num_blocks}")
        random = np.random.default_rng(0)
        self._ids = random.integers(0, backend.config.vocab_size, max(max_rows, size)).astype(np.int32)
        self._table = np.arange(needed, dtype=np.int32)[None, :]
        # Reading a long context would take longer than all else. Its values do not matter to a clock, but each
        # position must have memory of its own and finite numbers in it.
        backend.forward(self._rows(self._ids[:size], 0))
        for block in range(1, needed):
            backend.copy_block(0, block)

    def seconds(self, rows: int, context: int) -> float:
        """Run one pass of ``rows`` rows behind ``context`` tokens, all with logits; return its seconds."""
        batch = self._rows(self._ids[:rows], context)
        start = self._clock()
        self.backend.forward(batch)
        return self._clock() - start

    @contextmanager
    def working(self, rows: int, context: int) -> Iterator[None]:
        """Run passes one after the other in a thread while the block lasts."""
        stop = threading.Event()
        failed: list[SonoranError] = []
        batch = self._rows(self._ids[:rows], context)

        def loop() -> None:
            try:
                while not stop.is_set():
                    self.backend.forward(batch)
            except SonoranError as error:
                failed.append(error)

        thread = threading.Thread(target=loop, name="calibration", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failed:
            raise failed[0]

    def _rows(self, ids: IntArray, start: int) -> Rows:
        return one_sequence(ids, start, self._table, self.backend.block_size, np.ones(len(ids), np.int32))


def one_sequence(ids: IntArray, start: int, table: IntArray, block_size: int, wants: IntArray) -> Rows:
    """Return rows of the only sequence in memory: ``ids`` from position ``start`` on; ``wants`` marks logits."""
    positions = np.arange(start, start + len(ids), dtype=np.int32)
    return Rows.trunk(ids, positions, np.zeros(len(ids), np.int32), table, block_size, wants)


def blocks_needed(contexts: Sequence[int], max_rows: int, block_size: int) -> int:
    """Return the KV blocks of a ``TimedModel``."""
    return -(-(max(contexts) + max(max_rows, block_size)) // block_size)


def measure_passes(
    models: dict[Role, tuple[TimedModel, Cores]],
    *,
    rows: Sequence[int],
    contexts: Sequence[int],
    beside: bool,
    seconds: float,
    least_rounds: int = MIN_ROUNDS,
    clock: Clock = time.perf_counter,
    progress: Callable[[float], None] | None = None,
) -> list[PassCurve]:
    """Measure each model of a placement for about ``seconds``, in turns, and return its curves.

    ``beside``: also while the other model works. Every round measures everything once, so that a disturbance
    hits all alike; the first round warms up. There are at least ``least_rounds`` more, however long they take.
    """
    groups: list[tuple[Role, bool]] = [(role, False) for role in models]
    if beside and len(models) == 2:
        groups += [(role, True) for role in models]
    taken: dict[tuple[Role, bool, int, int], list[float]] = {}
    begin = clock()
    for turn in range(1 + MAX_ROUNDS):
        if turn > least_rounds and clock() - begin > seconds * turn / (turn + 1):
            break
        for role, disturbed in groups:
            model, _ = models[role]
            for context in contexts:
                with _disturbance(models, role, disturbed, context):
                    for count in rows:
                        ms = 1e3 * model.seconds(count, context)
                        if turn:
                            taken.setdefault((role, disturbed, context, count), []).append(ms)
                if progress is not None:
                    progress(min(1.0, (clock() - begin) / max(seconds, 1e-9)))
    curves = []
    for role, disturbed in groups:
        cores = models[role][1]
        other = next((models[r][1] for r in models if r != role), None)
        for context in contexts:
            points = tuple(PassPoint(n, Timing.of(taken[role, disturbed, context, n])) for n in rows)
            curves.append(PassCurve(role, cores, context, points, other if disturbed else None))
    return curves


@contextmanager
def _disturbance(
    models: dict[Role, tuple[TimedModel, Cores]], role: Role, disturbed: bool, context: int
) -> Iterator[None]:
    if not disturbed:
        yield
        return
    other: Role = "draft" if role == "target" else "target"
    with models[other][0].working(_LOOP_ROWS[other], context):
        yield
