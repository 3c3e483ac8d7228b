"""Method ``auto``: an engine in the mode that is fastest here, which changes its mind while it runs.

With a profile (``sonoran calibrate``) every mode and split of cores is considered. Without one, target and draft are
loaded onto all cores, measured for a second or two, and AR and SD are weighed against each other.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from sonoran import _native
from sonoran.assemble import build_engine
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.drafting.adaptive import AdaptiveDrafter, AutoPolicy, NoDrafter
from sonoran.drafting.model import ModelDrafter
from sonoran.engine.core import EngineCore
from sonoran.errors import ConfigError, PlanError
from sonoran.models.opening import Reporting
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.planning.profile.choose import choose, engine_options
from sonoran.planning.profile.measure import Settings, measure_host, quick_settings
from sonoran.planning.profile.pair import Pair, open_pair
from sonoran.planning.profile.passes import TimedModel, measure_passes
from sonoran.planning.profile.predict import Placement, ProfileRounds, Workload, predict_all
from sonoran.planning.profile.profile import Cores, PassCurve, Profile, Role, load_profile
from sonoran.planning.profile.reading import built_in_prompts, read_along
from sonoran.planning.rounds.plan import Mode

log = logging.getLogger(__name__)

CONTEXT = 512
"""Tokens of a sequence for which the first choice is made."""

QUICK_PROMPTS = 2
_LEFT_AT_DEFAULT = ("budget", "backup", "least_chance")


def build_auto(
    model: str | Path,
    config: EngineConfig,
    speculative: SpeculativeConfig,
    reporting: Reporting | None = None,
) -> tuple[EngineCore, Tokenizer]:
    """Load target and draft in the best mode; its statistics tell the choice, and why, under ``auto``.

    ``num_speculative_tokens`` bounds K. Raises ModelError, DownloadError, CompatibilityError, ConfigError.
    """
    cores = _cores(config)
    pair = open_pair(
        model,
        speculative.model,
        cores=cores,
        quantize=config.quantize,
        draft_quantize=speculative.quantize,
        draft_vocab=speculative.draft_vocab,
        reporting=reporting,
    )
    plain = replace(config, cores=cores, threads=None)
    k_max = speculative.num_speculative_tokens
    profile = _stored(pair)
    if k_max == 0:
        core, tokenizer = build_engine(model, plain, None, reporting)
        return _attach(core, NoDrafter("num_speculative_tokens is 0")), tokenizer
    if profile is None or not profile.acceptance:
        return _measured_now(model, plain, speculative, pair, reporting)
    workload = Workload(1, CONTEXT, 0.0, speculative.verification)
    choice = choose(predict_all(profile, workload, k_values=range(1, k_max + 1)))
    best = choice.best
    options = engine_options(
        best,
        draft=speculative.model,
        target_key=pair.key.target,
        draft_key=pair.key.draft,
        verification=speculative.verification,
    )
    placed = replace(plain, cores=best.placement.target_cores)
    reason = choice.reason if not profile.noisy else f"{choice.reason} ({profile.verdict})"
    log.info("auto: %s", reason)
    if options.speculative is None:
        core, tokenizer = build_engine(model, placed, None, reporting)
        return _attach(core, NoDrafter(reason)), tokenizer
    # K changes from round to round, up to what was asked for; the rest follows the text and what the worker measures.
    fixed = {key: value for key, value in options.speculative.items() if key not in _LEFT_AT_DEFAULT}
    given = SpeculativeConfig.from_mapping({**fixed, "num_speculative_tokens": k_max})
    core, tokenizer = build_engine(model, placed, given, reporting)
    return _adapt(core, profile, best.placement, best.mode, k_max, reason), tokenizer


def _measured_now(
    model: str | Path,
    config: EngineConfig,
    speculative: SpeculativeConfig,
    pair: Pair,
    reporting: Reporting | None,
) -> tuple[EngineCore, Tokenizer]:
    """Load for SD on all cores, measure what was loaded, and start from that."""
    k_max = speculative.num_speculative_tokens
    given = replace(speculative, method="draft_model")
    core, tokenizer = build_engine(model, config, given, reporting)
    try:
        profile = quick_profile(core, pair)
        cores = pair.key.machine.cores
        workload = Workload(1, CONTEXT, 0.0, speculative.verification)
        choice = choose(predict_all(profile, workload, k_values=range(1, k_max + 1)))
        reason = f"{choice.reason} (measured in {profile.elapsed_s:.1f} s; sonoran calibrate knows more)"
        log.info("auto: %s", reason)
        return _adapt(core, profile, Placement("shared", cores), "sd", k_max, reason), tokenizer
    except (ConfigError, PlanError) as error:
        # Too little KV memory for the measurement is no reason not to serve.
        reason = f"do not speculate: nothing could be measured ({error})"
        log.warning("auto: %s", reason)
        if core.drafter is not None:
            core.drafter.close()
        return _attach(core, NoDrafter(reason)), tokenizer
    except BaseException:
        core.close()
        raise


def quick_profile(core: EngineCore, pair: Pair, settings: Settings | None = None) -> Profile:
    """Measure an idle engine's own models where they are. Raises ConfigError when KV memory is too small."""
    wanted = settings or quick_settings()
    drafter = core.drafter
    if not isinstance(drafter, ModelDrafter):
        raise ConfigError("a quick measurement needs a draft in the engine's process")
    cores, begin = pair.key.machine.cores, time.perf_counter()
    prompts = [ids[-wanted.max_prompt :] for ids in pair.encode(built_in_prompts()[:QUICK_PROMPTS])]
    reading = read_along(
        core.target,
        drafter.backend,
        prompts,
        temperature=wanted.temperatures[0],
        eos_ids=pair.tokenizer.eos_ids,
        max_tokens=wanted.max_tokens,
        seconds=0.5 * wanted.seconds,
    )
    models: dict[Role, tuple[TimedModel, Cores]] = {
        "target": (TimedModel(core.target, wanted.contexts, max(wanted.rows)), cores),
        "draft": (TimedModel(drafter.backend, wanted.contexts, max(wanted.rows)), cores),
    }
    passes: list[PassCurve] = measure_passes(
        models, rows=wanted.rows, contexts=wanted.contexts, beside=False, seconds=0.4 * wanted.seconds
    )
    core.kv.reset()
    drafter.reset()
    return Profile(
        pair.key,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tuple(passes),
        reading.acceptance,
        (reading.sampling,),
        host=measure_host(core.target.config, pair.tokenizer),
        elapsed_s=time.perf_counter() - begin,
        quick=True,
        prompts="built-in",
    )


def _adapt(
    core: EngineCore, profile: Profile, placement: Placement, mode: Mode, k_max: int, reason: str
) -> EngineCore:
    rounds = ProfileRounds(profile, placement, mode, k_max, CONTEXT, 0.0)
    rounds.prepare(core.scheduler.max_num_seqs)
    if core.drafter is None:
        raise ConfigError("there is no drafter to adapt")
    policy = AutoPolicy(rounds, k_max, stops=isinstance(core.drafter, ModelDrafter))
    return _attach(core, AdaptiveDrafter(core.drafter, policy, reason))


def _attach(core: EngineCore, drafter: AdaptiveDrafter | NoDrafter) -> EngineCore:
    core.drafter = drafter
    return core


def _stored(pair: Pair) -> Profile | None:
    try:
        return load_profile(pair.key)
    except PlanError as error:
        log.warning("%s", error)
        return None


def _cores(config: EngineConfig) -> Cores:
    """Return the cores to share out: those named, or as many of the usable ones as threads were asked for."""
    usable = config.cores or tuple(_native.available_cores() or [0])
    if config.threads is None:
        return usable
    if config.threads > len(usable):
        raise ConfigError(f"{config.threads} threads do not fit {len(usable)} cores; ask for fewer threads")
    return usable[: config.threads]
