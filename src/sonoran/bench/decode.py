"""`sonoran bench decode`: decoding modes on the same prompts, interleaved: speeds, ratios, equal texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Protocol

from sonoran.bench.interleave import StepProgress
from sonoran.bench.stats import ratio, summarize
from sonoran.errors import ConfigError

WARMUP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Run:
    """One generation: the new token ids, and metrics with the engine's names (``ttft_s``, ``e2e_s``, ...)."""

    token_ids: tuple[int, ...]
    metrics: Mapping[str, Any]

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first one, the prompt excluded; None with fewer than two tokens."""
        seconds = self.metrics["e2e_s"] - self.metrics["ttft_s"]
        return (len(self.token_ids) - 1) / seconds if len(self.token_ids) > 1 and seconds > 0 else None


class Runner(Protocol):
    """A mode, ready to generate."""

    def run(self, prompt: Sequence[int], seed: int, max_tokens: int) -> Run: ...


def measure_modes(
    runners: Mapping[str, Runner],
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    seed: int = 0,
    same_text: Sequence[str] | None = None,
    progress: StepProgress | None = None,
    settle: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Generate for each prompt in every mode, one after the other, and return one JSON document.

    Who goes first changes from prompt to prompt. Prompt i has seed ``seed + i`` in every mode. `same_text`
    names the modes whose token ids must agree (default: all); what differs is listed, not raised.
    """
    if not runners or not prompts:
        raise ConfigError("there must be at least one mode and one prompt")
    names = list(runners)
    for name in names:
        runners[name].run(prompts[0], seed, min(max_tokens, WARMUP_TOKENS))
    runs: dict[str, list[Run]] = {name: [] for name in names}
    total = len(prompts) * len(names)
    for index, prompt in enumerate(prompts):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            settle()
            runs[name].append(runners[name].run(prompt, seed + index, max_tokens))
            if progress is not None:
                progress(name, sum(map(len, runs.values())), total)
    modes = {name: mode_result(of_mode) for name, of_mode in runs.items()}
    alike = {name: runs[name] for name in (names if same_text is None else same_text)}
    differences = text_differences(alike)
    return {
        "modes": modes,
        "ratios": {
            f"{later}/{earlier}": ratio(modes[later]["tokens_per_s"], modes[earlier]["tokens_per_s"])
            for earlier, later in combinations(names, 2)
        },
        "paired_ratios": {
            f"{later}/{earlier}": paired_ratio(runs[later], runs[earlier])
            for earlier, later in combinations(names, 2)
        },
        "identical_texts": not differences,
        "differences": differences,
        "hit_rate": next((m["hit_rate"] for m in modes.values() if m["hit_rate"] is not None), None),
    }


def mode_result(runs: Sequence[Run]) -> dict[str, Any]:
    """Return speeds (medians over prompts) and speculation counters (sums over prompts) of one mode.

    Raises ConfigError when no prompt gave two tokens, so that there is no speed.
    """
    rates = [run.tokens_per_s for run in runs if run.tokens_per_s is not None]
    if not rates:
        raise ConfigError("every answer ended after its first token; ask for more tokens or other prompts")
    speed = summarize(rates)
    whole = summarize([len(run.token_ids) / run.metrics["e2e_s"] for run in runs])
    first = summarize([run.metrics["ttft_s"] for run in runs])
    speculation = [run.metrics["speculative_decoding"] for run in runs if _speculated(run)]

    def total(key: str) -> int:
        return sum(counters.get(key, 0) for counters in speculation)

    return {
        "tokens_per_s": speed.median,
        "tokens_per_s_min": speed.min,
        "tokens_per_s_max": speed.max,
        "spread": speed.spread,
        "e2e_tokens_per_s": whole.median,
        "ttft_s": first.median,
        "num_prompts": len(runs),
        "num_tokens": sum(len(run.token_ids) for run in runs),
        "acceptance_rate": ratio(total("num_accepted_draft_tokens"), total("num_draft_tokens")),
        "mean_acceptance_length": ratio(total("num_emitted_tokens"), total("num_spec_steps")),
        "hit_rate": ratio(total("num_cache_hits"), total("num_cache_lookups")),
        "accepted_per_position": _by_position(speculation, "accepted_per_position"),
        "proposed_per_position": _by_position(speculation, "proposed_per_position"),
        "time_s": _times(runs),
        "prompts": [
            {"tokens": len(run.token_ids), "tokens_per_s": run.tokens_per_s, "ttft_s": run.metrics["ttft_s"]}
            for run in runs
        ],
    }


def paired_ratio(runs: Sequence[Run], baseline: Sequence[Run]) -> dict[str, Any] | None:
    """Summarise the speed of each prompt over its speed in another mode; None when there is no pair."""
    quotients = [
        ours / theirs
        for ours, theirs in zip(
            (r.tokens_per_s for r in runs), (r.tokens_per_s for r in baseline), strict=True
        )
        if ours is not None and theirs is not None
    ]
    return asdict(summarize(quotients)) if quotients else None


def text_differences(runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """Return where a mode's token ids leave those of the first mode: prompt, mode, position."""
    names = list(runs)
    found = []
    for name in names[1:]:
        for index, (first, other) in enumerate(zip(runs[names[0]], runs[name], strict=True)):
            if first.token_ids != other.token_ids:
                pairs = zip(first.token_ids, other.token_ids, strict=False)
                shorter = min(len(first.token_ids), len(other.token_ids))
                position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
                found.append({"prompt": index, "mode": name, "position": position})
    return found


def _by_position(speculation: Sequence[Mapping[str, Any]], key: str) -> list[int]:
    """Sum lists that may differ in length: an engine of mode auto may change its K."""
    lists = [counters.get(key, []) for counters in speculation]
    return [
        sum(counts[i] for counts in lists if i < len(counts)) for i in range(max(map(len, lists), default=0))
    ]


def _times(runs: Sequence[Run]) -> dict[str, float]:
    """Sum seconds by what they went into, the prompt's passes included; empty for engines that do not say."""
    told = [run.metrics["time_s"] for run in runs if "time_s" in run.metrics]
    return {part: sum(times[part] for times in told) for part in (told[0] if told else ())}


def _speculated(run: Run) -> bool:
    return bool(run.metrics.get("speculative_decoding"))
