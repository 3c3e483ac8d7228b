"""What a round costs beside the passes: the engine's own work, and a message to the draft worker and back."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import zmq

from sonoran.backends.base import BackendFacts, Rows
from sonoran.engine.core import EngineCore
from sonoran.engine.sequence import TextTokens
from sonoran.models.config import ModelConfig
from sonoran.planning.profile.passes import Clock
from sonoran.planning.profile.profile import Timing
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.messages import (
    Answer,
    Item,
    Speculate,
    Speculations,
    decode_to_client,
    decode_to_worker,
    encode,
)
from sonoran.types import FloatArray, IntArray

ROUNDS = 60
_PROMPT = [0]


def measure_host(config: ModelConfig, tokenizer: TextTokens, clock: Clock = time.perf_counter) -> Timing:
    """Return the engine's own milliseconds per round: scheduling, KV tables, stop rules, text.

    Sampling is not part of it; ``read_along`` measures that with real logits.
    """
    core = EngineCore(_InstantBackend(config), tokenizer, max_num_seqs=1, prefix_caching=False)
    params = SamplingParams(temperature=0.0, max_tokens=ROUNDS, ignore_eos=True)
    core.add(core.prepare("calibration", _PROMPT, params))
    taken = []
    while core.busy:
        sampled, begin = core.stats.times.sampling, clock()
        core.step()
        taken.append(1e3 * (clock() - begin - (core.stats.times.sampling - sampled)))
    core.close()
    return Timing.of([max(0.0, ms) for ms in taken[ROUNDS // 4 :]])


class _InstantBackend:
    """A backend that computes nothing and always wants token 1: whatever time a round takes is the engine's."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.block_size = config, 16
        self.num_blocks = -(-(ROUNDS + 2 + len(_PROMPT)) // self.block_size) + 1
        self._logits = np.zeros((1, config.vocab_size), np.float32)
        self._logits[0, 1] = 1.0

    @property
    def facts(self) -> BackendFacts:
        """Nothing is held."""
        return BackendFacts("none", "none", 1, 0, 0, 0)

    def forward(self, rows: Rows) -> FloatArray:
        """Return the same row for all that want logits, without copying it."""
        shape = (int(np.count_nonzero(rows.wants_logits)), self.config.vocab_size)
        return np.broadcast_to(self._logits, shape)

    def copy_block(self, source: int, destination: int) -> None:
        """Do nothing: there is no memory."""

    def restrict_output(self, token_ids: IntArray) -> None:
        """Do nothing: logits cost nothing."""

    def close(self) -> None:
        """Do nothing."""


def measure_message(rounds: int = 200, clock: Clock = time.perf_counter) -> Timing:
    """Return the milliseconds of one question to a draft worker and its answer (K = 4), encoding included.

    A thread answers in the worker's place over the same kind of socket, at once.
    """
    k = 4
    question = Speculate(1, [Item(0, 0, k, [1] * (k + 1), k, k)])
    answer = Speculations(1, [Answer(0, 0, True, "primary", [1] * k, [], [1] * (k + 1))], 0.0, 0.0)
    folder = Path(tempfile.mkdtemp(prefix="sonoran-calibrate-"))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    worker, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    try:
        address = f"ipc://{folder / 'echo.sock'}"
        worker.bind(address)
        client.connect(address)
        thread = threading.Thread(target=_answer, args=(worker, encode(answer), rounds), daemon=True)
        thread.start()
        taken = []
        for _ in range(rounds):
            begin = clock()
            client.send(encode(question))
            decode_to_client(client.recv())
            taken.append(1e3 * (clock() - begin))
        thread.join()
        return Timing.of(taken[rounds // 10 :])
    finally:
        client.close(0)
        worker.close(0)
        context.term()
        shutil.rmtree(folder, ignore_errors=True)


def _answer(worker: zmq.Socket[bytes], reply: bytes, rounds: int) -> None:
    for _ in range(rounds):
        name, data = worker.recv_multipart()
        decode_to_worker(data)
        worker.send_multipart([name, reply])
