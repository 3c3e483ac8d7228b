"""One calibration: load, read along, time passes, within a budget of seconds; the result is a profile."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

import numpy as np
import zmq

from sonoran.backends.base import Backend, BackendFacts, Rows
from sonoran.backends.load import Loaded
from sonoran.engine.core import EngineCore
from sonoran.engine.sequence import TextTokens
from sonoran.errors import ConfigError
from sonoran.models.config import ModelConfig
from sonoran.planning.profile.passes import Clock, Progress, TimedModel, blocks_needed, measure_passes
from sonoran.planning.profile.profile import (
    Acceptance,
    Cores,
    PassCurve,
    Profile,
    ProfileKey,
    Role,
    SamplingTime,
    Timing,
)
from sonoran.planning.profile.reading import read_along
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

BLOCK_SIZE = 16

ROUNDS = 60
_PROMPT = [0]


class InstantBackend:
    """A backend that computes nothing and always wants token 1: whatever time a round takes is the engine's."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.block_size = config, BLOCK_SIZE
        self.num_blocks = -(-(ROUNDS + 2 + len(_PROMPT)) // BLOCK_SIZE) + 1
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


def measure_host(config: ModelConfig, tokenizer: TextTokens, clock: Clock = time.perf_counter) -> Timing:
    """Return the engine's own milliseconds per round: scheduling, KV tables, stop rules, text.

    Sampling is not part of it; ``read_along`` measures that with real logits.
    """
    core = EngineCore(InstantBackend(config), tokenizer, max_num_seqs=1, prefix_caching=False)
    params = SamplingParams(temperature=0.0, max_tokens=ROUNDS, ignore_eos=True)
    core.add(core.prepare("calibration", _PROMPT, params))
    taken = []
    while core.busy:
        sampled, begin = core.stats.times.sampling, clock()
        core.step()
        taken.append(1e3 * (clock() - begin - (core.stats.times.sampling - sampled)))
    core.close()
    return Timing.of([max(0.0, ms) for ms in taken[ROUNDS // 4 :]])


def measure_message(rounds: int = 200, k: int = 4, clock: Clock = time.perf_counter) -> Timing:
    """Return the milliseconds of one question to a draft worker and its answer, encoding included.

    A thread answers in the worker's place over the same kind of socket, at once.
    """
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


READING_SHARE = 0.4
"""Of the time that is left after loading; the rest goes to passes."""

MIN_BUDGET_S = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is measured. ``rows`` and ``contexts`` of passes; texts that are generated to read along."""

    seconds: float = 120.0
    rows: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
    contexts: tuple[int, ...] = (128, 1024)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_tokens: int = 160  # of each text
    max_prompt: int = 192  # tokens of a prompt that are kept, its last ones
    quick: bool = False

    def __post_init__(self) -> None:
        if not self.seconds >= MIN_BUDGET_S:
            raise ConfigError(f"the budget must be at least {MIN_BUDGET_S:g} s, got {self.seconds:g}")
        if not self.rows or not self.contexts or min(*self.rows, *self.contexts) < 1:
            raise ConfigError("calibration needs row counts and contexts of at least 1")
        if not self.temperatures or min(self.temperatures) < 0.0:
            raise ConfigError(f"temperatures must be >= 0, got {list(self.temperatures)}")


def quick_settings(seconds: float = 2.0, temperature: float = 0.0) -> Settings:
    """Return settings for a first guess: few rows, a short context, short texts."""
    return Settings(seconds, (1, 2, 4, 8), (128,), (temperature,), max_tokens=24, max_prompt=64, quick=True)


class Loader(Protocol):
    """Loads a model of the pair onto cores, with KV memory for ``num_blocks`` blocks of ``BLOCK_SIZE``."""

    def __call__(self, role: Role, cores: Cores, num_blocks: int) -> Loaded: ...


def core_splits(cores: Cores) -> list[tuple[Cores, Cores]]:
    """Return splits of the cores worth measuring, (target's, draft's): the draft has 1, a quarter, half of them."""
    sizes = sorted({1, len(cores) // 4, len(cores) // 2} - {0})
    return [(cores[:-n], cores[-n:]) for n in sizes if n < len(cores)]


def measure(
    key: ProfileKey,
    load: Loader,
    tokenizer: TextTokens,
    prompts: Sequence[Sequence[int]],
    settings: Settings | None = None,
    *,
    prompts_name: str = "",
    clock: Clock = time.perf_counter,
    progress: Progress | None = None,
) -> Profile:
    """Measure everything that a profile holds. Raises ConfigError, ModelError.

    One placement is in memory at a time. Loading counts towards the budget; when it takes it all, the least that
    makes sense is measured all the same.
    """
    wanted = settings or Settings()
    cores, draft = key.machine.cores, key.draft is not None
    splits = core_splits(cores) if draft else []
    kept = [list(prompt)[-wanted.max_prompt :] for prompt in prompts]
    if draft and not kept:
        raise ConfigError("calibration needs at least one prompt")
    begin = clock()
    tell = _Telling(progress, wanted.seconds, begin, clock)
    passes: list[PassCurve] = []
    acceptance: list[Acceptance] = []
    sampling: list[SamplingTime] = []
    stages = 1 + 2 * len(splits)
    with ExitStack() as stack:
        models, see = _load(load, cores, cores, draft, kept, wanted, stack, tell)
        if draft:
            # Loading the other placements will take as long as loading this one did.
            left = READING_SHARE * max(0.4 * wanted.seconds, wanted.seconds - (clock() - begin) * stages)
            for temperature in wanted.temperatures:
                reading = read_along(
                    models["target"][0].backend,
                    models["draft"][0].backend,
                    kept,
                    temperature=temperature,
                    eos_ids=tokenizer.eos_ids,
                    max_tokens=wanted.max_tokens,
                    seconds=left / len(wanted.temperatures),
                    see=see,
                    clock=clock,
                    progress=tell.stage(f"acceptance at temperature {temperature:g}"),
                )
                acceptance += reading.acceptance
                sampling.append(reading.sampling)
            # Reading has overwritten memory; positions that timing reads must be finite all the same.
            models = {role: (_timed(model.backend, wanted), where) for role, (model, where) in models.items()}
        share = max(0.0, wanted.seconds - (clock() - begin)) / stages
        passes += _passes(models, wanted, False, share, clock, tell, f"cores {_text(cores)}")
    for target_cores, draft_cores in splits:
        with ExitStack() as stack:
            models, _ = _load(load, target_cores, draft_cores, True, kept, wanted, stack, tell)
            done = 1 + 2 * splits.index((target_cores, draft_cores))
            share = 2.0 * max(0.0, wanted.seconds - (clock() - begin)) / (stages - done)
            where = f"cores {_text(target_cores)} | {_text(draft_cores)}"
            passes += _passes(models, wanted, True, share, clock, tell, where)
            config = models["target"][0].backend.config
    if not splits:
        config = models["target"][0].backend.config
    host = measure_host(config, tokenizer, clock)
    message = measure_message(clock=clock) if splits else Timing(0.0)
    return Profile(
        key,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tuple(passes),
        tuple(acceptance),
        tuple(sampling),
        message,
        host,
        elapsed_s=clock() - begin,
        quick=wanted.quick,
        prompts=prompts_name,
    )


Models = dict[Role, tuple[TimedModel, Cores]]


class _Telling:
    """Progress as a share of the budget's seconds; what runs over stays just below the end."""

    def __init__(self, progress: Progress | None, seconds: float, begin: float, clock: Clock) -> None:
        self._progress, self._seconds, self._begin, self._clock = progress, seconds, begin, clock

    def say(self, what: str) -> None:
        if self._progress is not None:
            self._progress(what, min(0.99, (self._clock() - self._begin) / self._seconds))

    def stage(self, what: str) -> Callable[[float], None]:
        return lambda _: self.say(what)


def _load(
    load: Loader,
    target_cores: Cores,
    draft_cores: Cores,
    draft: bool,
    prompts: list[list[int]],
    settings: Settings,
    stack: ExitStack,
    tell: _Telling,
) -> tuple[Models, Callable[[Sequence[int]], object] | None]:
    blocks = blocks_needed(settings.contexts, max(settings.rows), BLOCK_SIZE)
    texts = sum(-(-(len(prompt) + settings.max_tokens) // BLOCK_SIZE) for prompt in prompts)
    models: Models = {}
    see = None
    for role, cores in (("target", target_cores), ("draft", draft_cores)):
        if role == "draft" and not draft:
            continue
        tell.say(f"loading the {role} on cores {_text(cores)}")
        which: Role = "target" if role == "target" else "draft"
        loaded = load(which, cores, max(blocks, texts))
        stack.callback(loaded.backend.close)
        models[which] = _timed(loaded.backend, settings), cores
        see = loaded.vocabulary.add if loaded.vocabulary is not None else None
    return models, see


def _timed(backend: Backend, settings: Settings) -> TimedModel:
    return TimedModel(backend, settings.contexts, max(settings.rows))


def _passes(
    models: Models,
    settings: Settings,
    beside: bool,
    seconds: float,
    clock: Clock,
    tell: _Telling,
    where: str,
) -> list[PassCurve]:
    return measure_passes(
        models,
        rows=settings.rows,
        contexts=settings.contexts,
        beside=beside,
        seconds=seconds,
        clock=clock,
        progress=tell.stage(f"passes on {where}"),
    )


def _text(cores: Cores) -> str:
    return ",".join(map(str, cores))
