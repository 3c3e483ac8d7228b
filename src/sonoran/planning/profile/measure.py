"""One calibration: load, read along, time passes, within a budget of seconds; the result is a profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Protocol

from sonoran.backends.base import Backend
from sonoran.backends.load import Loaded, Role
from sonoran.backends.vocabulary import movable
from sonoran.engine.sequence import TextTokens
from sonoran.errors import ConfigError
from sonoran.planning.profile.acceptance import LEAST_POSITIONS, Acceptance
from sonoran.planning.profile.overheads import measure_host, measure_message
from sonoran.planning.profile.passes import (
    MIN_ROUNDS,
    BudgetProgress,
    Clock,
    TimedModel,
    blocks_needed,
    measure_passes,
)
from sonoran.planning.profile.profile import Cores, PassCurve, Profile, ProfileKey, SamplingTime, Timing
from sonoran.planning.profile.reading import read_along

BLOCK_SIZE = 16

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
    least_positions: int = (
        LEAST_POSITIONS  # of all texts together, by which acceptance is judged, whatever the time
    )

    def __post_init__(self) -> None:
        if not self.seconds >= MIN_BUDGET_S:
            raise ConfigError(f"the budget must be at least {MIN_BUDGET_S:g} s, got {self.seconds:g}")
        if not self.rows or not self.contexts or min(*self.rows, *self.contexts) < 1:
            raise ConfigError("calibration needs row counts and contexts of at least 1")
        if not self.temperatures or min(self.temperatures) < 0.0:
            raise ConfigError(f"temperatures must be >= 0, got {list(self.temperatures)}")


def quick_settings() -> Settings:
    """Return settings for a first guess: few rows, a short context, short texts."""
    return Settings(2.0, (1, 2, 4, 8), (128,), (0.0,), 40, max_prompt=24, quick=True)


COARSE_ROWS = (1, 2, 4, 8, 16)
LEAST_ROWS = (1, 4, 8)


def fitting(
    settings: Settings, times: Sequence[tuple[float, float]], seconds: float, beside: bool
) -> tuple[Settings, int]:
    """Return what passes to time in ``seconds``, and in how many rounds: fewer rows and contexts where all would not fit.

    ``times`` are the seconds of each model's smallest and largest pass. The least is taken where nothing fits.
    """

    def cost(rows: Sequence[int], contexts: Sequence[int], rounds: int) -> float:
        most = max(settings.rows)
        once = sum(low + (high - low) * (n - 1) / max(1, most - 1) for low, high in times for n in rows)
        return (1 + rounds) * len(contexts) * once * (1 + beside)

    def among(wanted: Sequence[int]) -> tuple[int, ...]:
        return tuple(n for n in settings.rows if n in wanted) or settings.rows

    ways = (
        (settings.rows, settings.contexts, MIN_ROUNDS),
        (among(COARSE_ROWS), settings.contexts, MIN_ROUNDS),
        (among(COARSE_ROWS), settings.contexts[:1], MIN_ROUNDS),
        (among(LEAST_ROWS), settings.contexts[:1], 1),
    )
    rows, contexts, rounds = next((way for way in ways if cost(*way) <= seconds), ways[-1])
    return replace(settings, rows=rows, contexts=contexts), rounds


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
    progress: BudgetProgress | None = None,
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
        # Where threads can be moved nothing is loaded twice.
        moving = [found for model, _ in models.values() if (found := movable(model.backend))]
        moves = len(moving) == len(models) == 2
        if moves:
            stages = 1 + len(splits)
        config = models["target"][0].backend.config
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
                    least_positions=wanted.least_positions,
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
        for target_cores, draft_cores in splits if moves else []:
            done = 1 + splits.index((target_cores, draft_cores))
            share = max(0.0, wanted.seconds - (clock() - begin)) / (stages - done)
            moving[0].place(target_cores)
            moving[1].place(draft_cores)
            models = {
                "target": (models["target"][0], target_cores),
                "draft": (models["draft"][0], draft_cores),
            }
            where = f"cores {_text(target_cores)} | {_text(draft_cores)}"
            passes += _passes(models, wanted, True, share, clock, tell, where)
    for target_cores, draft_cores in [] if moves else splits:
        with ExitStack() as stack:
            models, _ = _load(load, target_cores, draft_cores, True, kept, wanted, stack, tell)
            done = 1 + 2 * splits.index((target_cores, draft_cores))
            share = 2.0 * max(0.0, wanted.seconds - (clock() - begin)) / (stages - done)
            where = f"cores {_text(target_cores)} | {_text(draft_cores)}"
            passes += _passes(models, wanted, True, share, clock, tell, where)
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


_Models = dict[Role, tuple[TimedModel, Cores]]


class _Telling:
    """Progress as a share of the budget's seconds; what runs over stays just below the end."""

    def __init__(self, progress: BudgetProgress | None, seconds: float, begin: float, clock: Clock) -> None:
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
) -> tuple[_Models, Callable[[Sequence[int]], object] | None]:
    blocks = blocks_needed(settings.contexts, max(settings.rows), BLOCK_SIZE)
    texts = sum(-(-(len(prompt) + settings.max_tokens) // BLOCK_SIZE) for prompt in prompts)
    models: _Models = {}
    see = None
    placed: list[tuple[Role, Cores]] = [("target", target_cores)]
    if draft:
        placed.append(("draft", draft_cores))
    for role, cores in placed:
        tell.say(f"loading the {role} on cores {_text(cores)}")
        loaded = load(role, cores, max(blocks, texts))
        stack.callback(loaded.backend.close)
        models[role] = _timed(loaded.backend, settings), cores
        see = loaded.vocabulary.add if loaded.vocabulary is not None else None
    return models, see


def _timed(backend: Backend, settings: Settings) -> TimedModel:
    return TimedModel(backend, settings.contexts, max(settings.rows))


def _passes(
    models: _Models,
    settings: Settings,
    beside: bool,
    seconds: float,
    clock: Clock,
    tell: _Telling,
    where: str,
) -> list[PassCurve]:
    begin, contexts = clock(), settings.contexts
    times = [
        (model.seconds(1, contexts[0]), model.seconds(max(settings.rows), contexts[-1]))
        for model, _ in models.values()
    ]
    left = max(0.0, seconds - (clock() - begin))
    wanted, rounds = fitting(settings, times, left, beside)
    return measure_passes(
        models,
        rows=wanted.rows,
        contexts=wanted.contexts,
        beside=beside,
        seconds=left,
        least_rounds=rounds,
        clock=clock,
        progress=tell.stage(f"passes on {where}"),
    )


def _text(cores: Cores) -> str:
    return ",".join(map(str, cores))
