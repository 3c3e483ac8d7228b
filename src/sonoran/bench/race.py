"""A race of the decoding modes on one prompt: AR, SD and SSD over the same weights, one after the other.

Two lanes that run at once would take each other's memory bandwidth, and lanes that take turns would give the draft of
SSD time that no user has. So one lane runs at a time, each on a fresh engine over the one target in memory, and nothing
is replayed: what is shown is what was just generated.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from sonoran.assemble import Models, build_drafter, make_engine, plan_memory
from sonoran.backends.base import Backend
from sonoran.backends.load import load_backend
from sonoran.bench.lanes import Lane
from sonoran.config import EngineConfig
from sonoran.drafting.ssd import SsdDrafter
from sonoran.engine.core import EngineCore
from sonoran.engine.drafter import Drafter
from sonoran.engine.outputs import request_output
from sonoran.models.opening import LoadProgress, Reporting, open_draft, open_with_tokenizer
from sonoran.planning.profile.profile import Cores
from sonoran.sampling.params import SamplingParams
from sonoran.types import RequestOutput

WARMUP_PROMPT = "Count from one to ten."
WARMUP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class LaneState:
    """State of the lane that runs: the text so far, and tokens per second since its first token."""

    lane: Lane
    text: str
    num_tokens: int
    tokens_per_s: float
    worker_pid: int | None  # of SSD's draft worker


Show = Callable[[LaneState], None]


@dataclass(frozen=True, slots=True)
class Finish:
    """What a lane came to."""

    lane: Lane
    output: RequestOutput

    @property
    def token_ids(self) -> list[int]:
        """The tokens generated."""
        return self.output.outputs[0].token_ids

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second after the first one, the prompt excluded."""
        tpot = self.output.metrics["tpot_s"]
        return 1.0 / tpot if tpot else 0.0


class Race:
    """The models of a race. ``run`` may be interrupted at any time; ``close`` (or leaving the block) frees all."""

    def __init__(self, model: str, lanes: Sequence[Lane], reporting: Reporting | None = None) -> None:
        """Open target and draft, and check that they fit. Raises ModelError, DownloadError, CompatibilityError."""
        self._reporting = Reporting()
        self.target = open_with_tokenizer(model, reporting)
        model_of = (lane.speculative.model for lane in lanes if lane.speculative)
        self._draft = open_draft(self.target, next(model_of, None), reporting)
        self._lanes = list(lanes)
        self._stack = ExitStack()
        self._backend: tuple[Cores, Backend] | None = None

    def run(
        self, prompt: str, params: SamplingParams, show: Show, loading: LoadProgress | None = None
    ) -> list[Finish]:
        """Run the lanes in order, after a short warm-up of each. ``show`` is called after every round."""
        self._reporting = Reporting(load=loading)
        encode = self.target.tokenizer.encode_prompt
        ids, warmup = encode(prompt), encode(WARMUP_PROMPT)
        finishes = []
        for lane in self._lanes:
            backend = self._target_on(lane.cores)
            with ExitStack() as stack:
                models = self._models(lane, backend)
                if models.drafter is not None:
                    stack.callback(models.drafter.close)
                short = replace(params, max_tokens=WARMUP_TOKENS)
                _generate(make_engine(models), warmup, short, lambda *_: None)
                output = _generate(make_engine(models), ids, params, _watcher(lane, models.drafter, show))
            finishes.append(Finish(lane, output))
        return finishes

    def _target_on(self, cores: Cores) -> Backend:
        """Return the target on these cores; one that lies elsewhere is freed before, so that memory has one."""
        if self._backend is not None and self._backend[0] == cores:
            return self._backend[1]
        self._stack.close()
        _, blocks = plan_memory(self.target.file.config, EngineConfig(max_num_seqs=1))
        progress = self._reporting.loading(self.target.file)
        backend = load_backend(
            "target", self.target, num_blocks=blocks, cores=cores, progress=progress
        ).backend
        self._stack.callback(backend.close)
        self._backend = (cores, backend)
        return backend

    def _models(self, lane: Lane, backend: Backend) -> Models:
        """Put a lane's drafter beside the target that is in memory."""
        config = EngineConfig(max_num_seqs=1, cores=lane.cores, enable_prefix_caching=False)
        drafter = build_drafter(
            self.target, self._draft, backend.num_blocks, config, lane.speculative, self._draft_progress()
        )
        length = min(self.target.file.config.max_position, backend.num_blocks * backend.block_size)
        return Models(self.target, backend, drafter, config, lane.speculative, length)

    def _draft_progress(self) -> Callable[[int, int], None] | None:
        return self._reporting.loading(self._draft.file) if self._draft is not None else None

    def close(self) -> None:
        """Free the target; what a lane had is freed when the lane ends."""
        self._stack.close()
        self._backend = None

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fingerprint(token_ids: Sequence[int]) -> str:
    """Return the SHA-256 of token ids written in decimal and joined by commas."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def summary(finishes: Sequence[Finish]) -> dict[str, Any]:
    """Return one JSON document: modes, ratios to the first lane, hit rate, and whether the texts are identical."""
    base = finishes[0].tokens_per_s
    modes = {}
    for finish in finishes:
        speculation = finish.output.metrics.get("speculative_decoding", {})
        modes[finish.lane.name] = {
            "place": finish.lane.place,
            "num_tokens": len(finish.token_ids),
            "tokens_per_s": finish.tokens_per_s,
            "speed_up": finish.tokens_per_s / base if base else None,
            "ttft_s": finish.output.metrics["ttft_s"],
            "mean_acceptance_length": speculation.get("mean_acceptance_length"),
            "hit_rate": speculation.get("cache_hit_rate"),
            "sha256": fingerprint(finish.token_ids),
            "metrics": finish.output.metrics,
        }
    return {
        "modes": modes,
        "identical_texts": len({mode["sha256"] for mode in modes.values()}) == 1,
        "text": finishes[0].output.outputs[0].text,
    }


def _generate(
    core: EngineCore, ids: Sequence[int], params: SamplingParams, watch: Callable[[str, int], None]
) -> RequestOutput:
    request = core.prepare("race", ids, params)
    core.add(request)
    while core.busy:
        core.step()
        sequence = request.sequences[0]
        watch(sequence.text, len(sequence.output_ids))
    if request.error is not None:
        raise request.error
    return request_output(request, core.num_speculative_tokens)


def _watcher(lane: Lane, drafter: Drafter | None, show: Show) -> Callable[[str, int], None]:
    first: float | None = None

    def watch(text: str, count: int) -> None:
        nonlocal first
        now = time.perf_counter()
        if first is None and count:
            first = now
        rate = (count - 1) / (now - first) if first is not None and now > first else 0.0
        pid = drafter.client.worker_pid if isinstance(drafter, SsdDrafter) else None
        show(LaneState(lane, text, count, rate, pid))

    return watch
