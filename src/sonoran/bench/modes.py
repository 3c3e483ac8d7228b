"""The decoding modes that `sonoran bench decode` compares, and the engines that run them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from sonoran.bench.decode import Run
from sonoran.bench.peers import LlamaCpp
from sonoran.config import Mode, SpeculativeConfig
from sonoran.errors import ConfigError, nearest
from sonoran.llm import LLM
from sonoran.planning.profile.profile import Cores
from sonoran.sampling.params import SamplingParams

ALL = "-all"
"""Suffix of a mode that gives every core to both models: ``ar-all``, ``sd-all``."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine to load: where the target runs, and what drafts. Plans that are equal share an engine."""

    cores: Cores | None
    speculative: tuple[tuple[str, Any], ...] | None  # sorted items of the speculative configuration

    @property
    def speculative_config(self) -> dict[str, Any] | None:
        """The configuration as LLM takes it."""
        return None if self.speculative is None else dict(self.speculative)


@dataclass(frozen=True, slots=True)
class BenchMode:
    """One column of the comparison."""

    name: str
    speculates: bool
    plan: EnginePlan


def plan_modes(
    names: Sequence[str],
    *,
    cores: Cores | None = None,
    draft_cores: Cores | None = None,
    draft: str = "auto",
    num_speculative_tokens: int = 4,
    verification: str = "coupled",
    draft_options: Mapping[str, Any] | None = None,
    extra: Mapping[str, Mapping[str, Any]] | None = None,
    variants: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] | None = None,
) -> list[BenchMode]:
    """Check the modes and place them, before anything is loaded.

    ``ar`` runs the target on `cores`; ``sd`` and ``ngram`` run target and draft there, one after the other;
    ``ssd`` runs the draft on `draft_cores` at the same time; ``auto`` shares the cores out itself.
    ``-all`` modes have both sets of cores for everything. `extra` holds more speculative options by method ("sd",
    "ssd"); a ``draft_address`` there takes the place of the draft and its placement. Autoregressive decoding
    shares the engine of a mode with the same target placement, so the same weights in the same memory are
    compared. `variants` are further options by method, each with what is added to the name of its mode. Raises
    ConfigError.
    """
    modes = []
    for name in names:
        kind, everywhere = name.removesuffix(ALL), name.endswith(ALL)
        if kind not in get_args(Mode) or (everywhere and kind == "ssd"):
            valid = [*get_args(Mode), *(mode + ALL for mode in get_args(Mode) if mode != "ssd")]
            raise ConfigError(f"unknown mode {name!r}{nearest(name, valid)}")
        place = _union(cores, draft_cores) if everywhere else cores
        if kind == "ar":
            modes.append(BenchMode(name, False, EnginePlan(place, None)))
            continue
        config: dict[str, Any] = {
            "method": kind, "num_speculative_tokens": num_speculative_tokens, "verification": verification,
        }  # fmt: skip
        if kind != "ngram":
            config |= {"model": draft, **(draft_options or {})}
        if kind == "ssd" and draft_cores is not None:
            config["cores"] = draft_cores
        own = (extra or {}).get(kind, {})
        if "draft_address" in own:  # that worker has its own model, cores and precision
            config = {key: config[key] for key in ("method", "num_speculative_tokens", "verification")}
        config |= own
        for label, options in (variants or {}).get(kind, [("", {})]):
            varied = config | dict(options)
            SpeculativeConfig.from_mapping(varied)
            items = tuple(sorted((key, _frozen(value)) for key, value in varied.items()))
            modes.append(BenchMode(f"{name} {label}".rstrip(), True, EnginePlan(place, items)))
    return [_share(mode, modes) for mode in modes]


def _share(mode: BenchMode, modes: Sequence[BenchMode]) -> BenchMode:
    if mode.speculates:
        return mode
    for other in modes:
        # The draft of ssd works beside the target all the time, and auto may put the target onto fewer cores:
        # autoregressive decoding stays away from both.
        method = (other.plan.speculative_config or {}).get("method")
        if other.speculates and method not in ("ssd", "auto") and other.plan.cores == mode.plan.cores:
            return BenchMode(mode.name, False, other.plan)
    return mode


def _union(first: Cores | None, second: Cores | None) -> Cores | None:
    if first is None or second is None:
        return None
    return tuple(dict.fromkeys((*first, *second)))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class LLMRunner:
    """Runs one mode on a loaded engine."""

    def __init__(self, llm: LLM, speculates: bool, params: Mapping[str, Any]) -> None:
        self._llm, self._speculates, self._params = llm, speculates, dict(params)

    def run(self, prompt: Sequence[int], seed: int, max_tokens: int) -> Run:
        """Generate for one prompt."""
        params = SamplingParams(
            **self._params, seed=seed, max_tokens=max_tokens, speculative=self._speculates
        )
        output = self._llm.generate([list(prompt)], params)[0]
        return Run(tuple(output.outputs[0].token_ids), output.metrics)

    def run_together(self, prompts: Sequence[Sequence[int]], seed: int, max_tokens: int) -> tuple[int, float]:
        """Generate for all prompts at once; return the new tokens of all and the seconds from call to return."""
        params = [
            SamplingParams(**self._params, seed=seed + i, max_tokens=max_tokens, speculative=self._speculates)
            for i in range(len(prompts))
        ]
        began = time.perf_counter()
        outputs = self._llm.generate([list(prompt) for prompt in prompts], params)
        seconds = time.perf_counter() - began
        return sum(len(output.outputs[0].token_ids) for output in outputs), seconds


class LlamaCppRunner:
    """Runs llama.cpp's own greedy decoding, autoregressive, as one more mode."""

    def __init__(self, peer: LlamaCpp, eos_ids: Sequence[int]) -> None:
        self._peer, self._eos_ids = peer, list(eos_ids)

    def run(self, prompt: Sequence[int], seed: int, max_tokens: int) -> Run:
        """Generate for one prompt; greedy, so the seed has no effect."""
        answer = self._peer.generate(prompt, max_tokens, self._eos_ids)
        return Run(tuple(answer["token_ids"]), {"ttft_s": answer["ttft_s"], "e2e_s": answer["e2e_s"]})
