"""Method ``auto``: an engine in the mode that is fastest here, which changes its mind while it runs.

With a profile (``sonoran calibrate``) every mode and split of cores is considered. Without one, target and draft are
loaded onto all cores and measured for some seconds, there and on cores of their own; that profile is kept for the next
start, marked as quick.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from sonoran.assemble import Models, load_models, make_engine, with_drafter
from sonoran.backends.base import Backend
from sonoran.backends.load import Role, available_memory
from sonoran.backends.placement import find_processors
from sonoran.backends.vocabulary import movable
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.drafting.adaptive import AdaptiveDrafter, AutoPolicy, NoDrafter
from sonoran.drafting.model import ModelDrafter
from sonoran.engine.core import EngineCore
from sonoran.errors import ConfigError, PlanError
from sonoran.models.opening import Reporting, draft_at_hand, open_with_tokenizer
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.planning.profile.choose import Choice, choose, engine_options
from sonoran.planning.profile.measure import Settings, core_splits, quick_settings
from sonoran.planning.profile.overheads import measure_host, measure_message
from sonoran.planning.profile.pair import Pair, open_pair
from sonoran.planning.profile.passes import TimedModel, measure_passes
from sonoran.planning.profile.placement import Placement, Workload
from sonoran.planning.profile.predict import predict_all
from sonoran.planning.profile.profile import Cores, PassCurve, Profile, Timing
from sonoran.planning.profile.prompts import built_in_prompts
from sonoran.planning.profile.reading import read_along
from sonoran.planning.profile.round_times import ProfileRounds
from sonoran.planning.profile.store import load_profile, save_profile
from sonoran.planning.rounds.plan import RoundMode

log = logging.getLogger(__name__)

CONTEXT = 512
"""Tokens of a sequence for which the first choice is made."""

READING_S = 6.0
"""Seconds after which a quick measurement reads no further, even if acceptance is not sure then."""

NOISY_FOR = timedelta(days=1)
"""How long a quick measurement that was too noisy is used: some machines are never quiet, others were busy just then."""

SPLIT_ROWS = (1, 4, 8)
_LEFT_AT_DEFAULT = ("budget", "backup", "least_chance")


def build_auto(
    model: str | Path,
    config: EngineConfig,
    speculative: SpeculativeConfig,
    reporting: Reporting | None = None,
) -> tuple[EngineCore, Tokenizer]:
    """Load target and draft in the best mode; its statistics tell the choice, and why, under ``auto``.

    Without a model in ``speculative`` the draft that is known for the target is used where it is at hand, else none.
    ``num_speculative_tokens`` bounds K. Raises ModelError, DownloadError, CompatibilityError, ConfigError.
    """
    if config.device != "cpu" and speculative.model is not None:
        raise ConfigError(
            f"mode auto weighs what device cpu does; for device {config.device} name the mode: ar, sd or ssd"
        )
    if speculative.model is None:
        target = open_with_tokenizer(model, reporting)
        draft, why = draft_at_hand(target, available_memory())
        if draft is not None and config.threads is not None and config.threads > len(_usable(config)):
            draft, why = None, f"{config.threads} threads are more than cores"
        if config.device != "cpu":
            draft, why = (
                None,
                f"modes are weighed on device cpu only, not on {config.device}; name one: sd or ssd",
            )
        if draft is None:
            reason = f"AR: {why}"
            log.info("auto: %s", reason)
            return _engine(_autoregressive(load_models(model, config, None, reporting), reason))
        speculative = replace(speculative, model=draft)
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
    if k_max == 0:
        models = _autoregressive(load_models(model, plain, None, reporting), "num_speculative_tokens is 0")
    else:
        profile = _stored(pair)
        if profile is not None and profile.acceptance:
            models = _as_profiled(
                model, plain, speculative, pair, profile.judged(), profile.remarks, reporting
            )
        else:
            models = _as_measured_now(model, plain, speculative, pair, reporting)
    return _engine(models)


def _engine(models: Models) -> tuple[EngineCore, Tokenizer]:
    return make_engine(models), models.target.tokenizer


def _as_profiled(
    model: str | Path,
    config: EngineConfig,
    speculative: SpeculativeConfig,
    pair: Pair,
    profile: Profile,
    remarks: Sequence[str],
    reporting: Reporting | None,
) -> Models:
    """Load for the mode and the split of cores that the profile recommends."""
    k_max = speculative.num_speculative_tokens
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
    placed = replace(config, cores=best.placement.target_cores)
    reason = _say(choice, remarks)
    if options.speculative is None and profile.quick:
        # So little was measured that the draft stays at hand: rounds will tell.
        return _in_turns(
            load_models(model, config, replace(speculative, method="sd"), reporting),
            profile,
            pair,
            choice,
            reason,
        )
    if options.speculative is None:
        return _autoregressive(load_models(model, placed, None, reporting), reason)
    # K changes from round to round, up to what was asked for; the rest follows the text and what the worker measures.
    fixed = {key: value for key, value in options.speculative.items() if key not in _LEFT_AT_DEFAULT}
    given = SpeculativeConfig.from_mapping(
        {**fixed, "num_speculative_tokens": k_max, "copy_tokens": speculative.copy_tokens}
    )
    models = load_models(model, placed, given, reporting)
    return _adaptive(models, profile, best.placement, best.mode, reason, choice.by_mode["ar"].placement)


def _as_measured_now(
    model: str | Path,
    config: EngineConfig,
    speculative: SpeculativeConfig,
    pair: Pair,
    reporting: Reporting | None,
) -> Models:
    """Load for SD on all cores, measure what was loaded, there and apart, and start from that."""
    models = load_models(model, config, replace(speculative, method="sd"), reporting)
    try:
        measured = quick_profile(models, pair)
        _keep(measured)
        profile = measured.judged()
        workload = Workload(1, CONTEXT, 0.0, speculative.verification)
        k_values = range(1, speculative.num_speculative_tokens + 1)
        choice = choose(predict_all(profile, workload, k_values=k_values))
        reason = _say(choice, measured.remarks)
        if choice.best.mode != "ssd":
            return _in_turns(models, profile, pair, choice, reason)
        if models.drafter is not None:
            models.drafter.close()
        place = choice.best.placement
        _place(models.backend, place.target_cores)
        ssd = replace(speculative, method="ssd", cores=place.draft_cores)
        placed = replace(config, cores=place.target_cores)
        models = with_drafter(models, placed, ssd, reporting or Reporting())
        return _adaptive(models, profile, place, "ssd", reason, choice.by_mode["ar"].placement)
    except (ConfigError, PlanError) as error:
        # Too little KV memory for the measurement is no reason not to serve.
        reason = f"do not speculate: nothing could be measured ({error})"
        log.warning("auto: %s", reason)
        if models.drafter is not None:
            models.drafter.close()
        return _autoregressive(models, reason)
    except BaseException:
        models.close()
        raise


def _say(choice: Choice, remarks: Sequence[str]) -> str:
    reason = f"{choice.reason} ({'; '.join(remarks)})" if remarks else choice.reason
    log.info("auto: %s", reason)
    return reason


def _keep(profile: Profile) -> None:
    """Remember a quick measurement for the next start; what it lacks, its remarks say each time."""
    try:
        save_profile(profile)
    except PlanError as error:
        log.info("%s", error)


def _in_turns(models: Models, profile: Profile, pair: Pair, choice: Choice, reason: str) -> Models:
    """Have the draft on the same cores. Where AR was chosen it begins with AR, and rounds must show that it was wrong."""
    shared = Placement("shared", pair.key.machine.cores)
    found = _adaptive(models, profile, shared, "sd", reason, choice.by_mode["ar"].placement)
    if choice.best.mode == "ar" and isinstance(found.drafter, AdaptiveDrafter):
        found.drafter.policy.k = 0
    return found


def quick_profile(models: Models, pair: Pair, settings: Settings | None = None) -> Profile:
    """Measure models where they are, before an engine uses them. Raises ConfigError when KV memory is too small."""
    wanted = settings or quick_settings()
    target, drafter = models.backend, models.drafter
    if not isinstance(drafter, ModelDrafter):
        raise ConfigError("a quick measurement needs a draft in the engine's process")
    cores, begin = pair.key.machine.cores, time.perf_counter()
    prompts = [pair.tokenizer.encode_prompt(text)[-wanted.max_prompt :] for text in built_in_prompts()]
    reading = read_along(
        target,
        drafter.backend,
        prompts,
        temperature=wanted.temperatures[0],
        eos_ids=pair.tokenizer.eos_ids,
        max_tokens=wanted.max_tokens,
        seconds=0.0,
        most_seconds=READING_S,
        least_positions=wanted.least_positions,
        see=drafter.see,
    )
    timed: dict[Role, tuple[TimedModel, Cores]] = {
        "target": (TimedModel(target, wanted.contexts, max(wanted.rows)), cores),
        "draft": (TimedModel(drafter.backend, wanted.contexts, max(wanted.rows)), cores),
    }
    passes: list[PassCurve] = measure_passes(
        timed, rows=wanted.rows, contexts=wanted.contexts, beside=False, seconds=0.3 * wanted.seconds
    )
    moving = [movable(backend) for backend in (target, drafter.backend)]
    # The smallest draft's place alone: others are left to calibrate.
    for target_cores, draft_cores in core_splits(cores)[:1] if all(moving) else ():
        _place(target, target_cores)
        _place(drafter.backend, draft_cores)
        apart: dict[Role, tuple[TimedModel, Cores]] = {
            "target": (timed["target"][0], target_cores),
            "draft": (timed["draft"][0], draft_cores),
        }
        passes += measure_passes(
            apart, rows=SPLIT_ROWS, contexts=wanted.contexts, beside=True, seconds=0.0, least_rounds=1
        )
        for backend in (target, drafter.backend):
            _place(backend, cores)
    drafter.reset()
    return Profile(
        pair.key,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tuple(passes),
        reading.acceptance,
        (reading.sampling,),
        host=measure_host(target.config, pair.tokenizer),
        message=measure_message(rounds=40) if len(cores) > 1 else Timing(0.0),
        elapsed_s=time.perf_counter() - begin,
        quick=True,
        prompts="built-in",
        made_for=pair.state,
    )


def _place(backend: Backend, cores: Cores) -> None:
    found = movable(backend)
    if found is not None:
        found.place(cores)


def _adaptive(
    models: Models,
    profile: Profile,
    placement: Placement,
    mode: RoundMode,
    reason: str,
    plain: Placement | None = None,
) -> Models:
    """Let the drafter's K follow what a profile promises and what each round then takes.

    Rounds of AR run on the cores of ``plain``, if it is given and the target's threads can be moved.
    """
    drafter, speculative = models.drafter, models.speculative
    if drafter is None or speculative is None:
        raise ConfigError("there is no drafter to adapt")
    k_max = speculative.num_speculative_tokens
    moves = plain is not None and plain.target_cores != placement.target_cores
    there = plain if moves and movable(models.backend) else None
    rounds = ProfileRounds(profile, placement, mode, k_max, CONTEXT, 0.0, there)
    rounds.prepare(models.config.max_num_seqs)
    policy = AutoPolicy(rounds, k_max, stops=isinstance(drafter, ModelDrafter))
    place = None
    if there is not None:
        plain_cores = there.target_cores

        def place(speculates: bool) -> None:
            _place(models.backend, placement.target_cores if speculates else plain_cores)

    return replace(models, drafter=AdaptiveDrafter(drafter, policy, reason, place=place))


def _autoregressive(models: Models, reason: str) -> Models:
    """Have no draft, and say why."""
    return replace(models, drafter=NoDrafter(reason), speculative=None)


def _stored(pair: Pair) -> Profile | None:
    try:
        found = load_profile(pair.key)
    except PlanError as error:
        log.warning("%s", error)
        return None
    if found is None or not found.quick:
        return found
    return found if found.made_for == pair.state and not (found.noisy and _is_old(found.created)) else None


def _is_old(created: str) -> bool:
    """Whether a noisy measurement has been used long enough; a date that is none is old."""
    try:
        return datetime.now(timezone.utc) - datetime.fromisoformat(created) > NOISY_FOR
    except (TypeError, ValueError):
        return True


def _usable(config: EngineConfig) -> Cores:
    return config.cores or find_processors().cores


def _cores(config: EngineConfig) -> Cores:
    """Return the cores to share out: those named, or as many of the usable ones as threads were asked for."""
    usable = _usable(config)
    if config.threads is None:
        return usable
    if config.threads > len(usable):
        raise ConfigError(f"{config.threads} threads do not fit {len(usable)} cores; ask for fewer threads")
    return usable[: config.threads]
