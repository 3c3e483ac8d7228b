"""``sonoran calibrate``: measure this machine and this pair, once; ``show`` and ``explain`` what follows from it."""

from __future__ import annotations

import json as jsonlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import typer

from sonoran.bench.datasets import DATASETS, load_prompts
from sonoran.cli.calibrate_text import Explanation, choices, print_explanation, print_profile
from sonoran.cli.common import JsonOption, command, examples, print_json, remark, say, suffix, write
from sonoran.cli.options import Given, load, offers, options_of
from sonoran.cli.progress import load_progress, share_progress
from sonoran.config import DraftQuantize, EngineConfig, Quantize, SpeculativeConfig, parse_cores
from sonoran.errors import ConfigError, PlanError, nearest
from sonoran.llm import LLM
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.planning.drawing import FORMS, Form
from sonoran.planning.profile.advice import advise
from sonoran.planning.profile.check import check_predictions
from sonoran.planning.profile.choose import Choice, choose, engine_options
from sonoran.planning.profile.measure import Settings, measure
from sonoran.planning.profile.pair import Pair, open_pair
from sonoran.planning.profile.placement import Workload, nearest_acceptance
from sonoran.planning.profile.predict import Prediction, predict_all
from sonoran.planning.profile.profile import Measured, Profile
from sonoran.planning.profile.prompts import BUILT_IN, built_in_prompts, prompts_from_file
from sonoran.planning.profile.store import load_profile, load_profiles, save_profile

app = typer.Typer(
    help="Measure this machine and a pair of models; from then on mode auto knows what is fastest."
)

EXAMPLES = examples(
    "sonoran calibrate",
    "sonoran calibrate --prompts humaneval --data-dir prompts --budget 60s",
    "sonoran calibrate show",
    "sonoran calibrate explain --batch 8 --verify 4 --plot why.svg",
)
SHOW_EXAMPLES = examples(
    "sonoran calibrate show", "sonoran calibrate show --all", "sonoran calibrate show --json"
)
EXPLAIN_EXAMPLES = examples(
    "sonoran calibrate explain",
    "sonoran calibrate explain --batch 8 --temperature 1",
    "sonoran calibrate explain --verify 4 --plot why.svg",
)
NUM_PROMPTS = 8
OVER_BUDGET = 1.1
"""Beyond this share of the budget it is said that it was not kept."""

DEFAULT_TEXT = 96
"""Tokens per prompt where nothing was read along."""

TargetOption = Annotated[
    str, typer.Option("--target", "-m", help="Target: a name, a GGUF file, a directory.")
]
PairDraftOption = Annotated[
    str, typer.Option("--draft", "-d", help="Draft: auto (one of the target's family), a model, or none.")
]
Temperature = Annotated[
    float, typer.Option(help="Temperature that is sampled with; greedy is always measured.")
]
PAIR = (
    options_of(EngineConfig, only=("cores", "quantize")),
    options_of(SpeculativeConfig, only=("quantize", "draft_vocab")),
)
"""What a profile is of, beside the models: each set of these has its own."""


def register(root: typer.Typer) -> None:
    """Add the command group to the application."""
    root.add_typer(app, name="calibrate")


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
@command
@offers(*PAIR)
def calibrate(
    context: typer.Context,
    target: TargetOption = DEFAULT_TARGET,
    draft: PairDraftOption = "auto",
    prompts: Annotated[
        str, typer.Option(help=f"{BUILT_IN}, {', '.join(DATASETS)}, or a file with a prompt per line.")
    ] = BUILT_IN,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data sets as JSON lines.")] = None,
    budget: Annotated[str, typer.Option(help="Time for everything: 120s, 2m.")] = "120s",
    temperature: Temperature = 1.0,
    *,
    given: Given,
    json: JsonOption = False,
) -> None:
    """Measure passes, acceptance and overheads within a time budget, and keep the result in the cache."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    temperatures = (0.0,) if temperature == 0.0 else (0.0, temperature)
    settings = Settings(seconds=parse_seconds(budget), temperatures=temperatures)
    texts = read_prompts(prompts, data_dir)
    pair = open_named(target, draft, given)
    with share_progress() as progress:
        profile = measure(
            pair.key,
            pair.load,
            pair.tokenizer,
            [pair.tokenizer.encode_prompt(text) for text in texts],
            settings,
            prompts_name=prompts,
            progress=progress,
        )
    path = save_profile(profile)
    if profile.elapsed_s > OVER_BUDGET * settings.seconds:
        remark(
            f"this took {profile.elapsed_s:.0f} s, not {settings.seconds:.0f}: to load the models, to read "
            f"{settings.least_positions} positions and to time a few passes takes that long here"
        )
    if json:
        print_json({**profile.summary(), "path": str(path), "choices": choices(profile)})
        return
    print_profile(profile)
    say(f"kept in {path}", style="dim")


@app.command(epilog=SHOW_EXAMPLES)
@command
@offers(*PAIR)
def show(
    target: TargetOption = DEFAULT_TARGET,
    draft: PairDraftOption = "auto",
    *,
    given: Given,
    every: Annotated[bool, typer.Option("--all", help="List every profile in the cache instead.")] = False,
    json: JsonOption = False,
) -> None:
    """Show what was measured, and what is fastest for common workloads."""
    if every:
        profiles = load_profiles()
        if json:
            print_json([profile.summary() for profile in profiles])
            return
        for profile in profiles:
            name = profile.key.draft.name if profile.key.draft else "no draft"
            say(f"{profile.created}  {profile.key.target.name} + {name}, {profile.verdict}")
        if not profiles:
            say("no profiles; make one with: sonoran calibrate")
        return
    profile = stored(open_named(target, draft, given))
    if json:
        print_json(
            {**profile.summary(), "choices": choices(profile), "profile": jsonlib.loads(profile.to_json())}
        )
    else:
        print_profile(profile)


@app.command(epilog=EXPLAIN_EXAMPLES)
@command
@offers(*PAIR)
def explain(
    target: TargetOption = DEFAULT_TARGET,
    draft: PairDraftOption = "auto",
    batch: Annotated[int, typer.Option(help="Sequences decoded at once.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens that each sequence sees.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    verification: Annotated[str, typer.Option(help="Rule: coupled or rejection.")] = "coupled",
    top: Annotated[int, typer.Option(help="Candidates in the table.")] = 12,
    verify: Annotated[int, typer.Option(help="Run this many of them, the best of each mode first.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write plots: .svg, .png or .html.")] = None,
    *,
    given: Given,
    json: JsonOption = False,
) -> None:
    """Explain the choice for a workload: candidates, predicted and measured, and what would make it faster."""
    if verification not in ("coupled", "rejection"):
        raise ConfigError(
            f"unknown --verification {verification!r}{nearest(verification, ('coupled', 'rejection'))}"
        )
    if top < 1 or verify < 0:
        raise ConfigError(f"--top must be at least 1 and --verify at least 0, got {top} and {verify}")
    form = suffix(plot, FORMS, "--plot")
    workload = Workload(batch, context, temperature, cast(Literal["coupled", "rejection"], verification))
    pair = open_named(target, draft, given)
    profile = stored(pair)
    answer = explain_workload(
        pair, profile, workload, draft=draft, target=target, top=top, verify_count=verify
    )
    if plot is not None:
        from sonoran.planning.profile.plot import render_plot

        drawing = render_plot(profile, workload, answer.predictions, cast(Form, form))
        write(plot, drawing)
    if json:
        print_json(answer.document(profile))
        return
    print_explanation(answer, profile)
    if plot is not None:
        say(f"wrote {plot}")


def parse_seconds(text: str) -> float:
    """Read ``120s``, ``2m`` or a number of seconds. Raises ConfigError."""
    units = {"s": 1.0, "m": 60.0}
    number, factor = (text[:-1], units[text[-1]]) if text and text[-1] in units else (text, 1.0)
    try:
        seconds = float(number) * factor
    except ValueError:
        raise ConfigError(f"--budget {text!r} cannot be read; write 120s or 2m") from None
    if not 0.0 < seconds < 86_400.0:
        raise ConfigError(f"--budget {text!r} must be more than 0 s and less than a day")
    return seconds


def read_prompts(prompts: str, data_dir: Path | None) -> list[str]:
    """Return prompts from a set, a file, or those that come with the program. Raises ConfigError."""
    if prompts in DATASETS:
        return [prompt.text for prompt in load_prompts(prompts, NUM_PROMPTS, data_dir=data_dir)]
    if data_dir is not None:
        raise ConfigError(f"--data-dir without a data set; add --prompts {', '.join(DATASETS)}")
    if prompts == BUILT_IN:
        return built_in_prompts()
    path = Path(prompts)
    if not path.is_file():
        raise ConfigError(f"--prompts {prompts!r} is no file{nearest(prompts, (BUILT_IN, *DATASETS))}")
    return prompts_from_file(path)[:NUM_PROMPTS]


def _refuse_options(context: typer.Context) -> None:
    """Options in front of show or explain would have no effect; say so."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} must stand behind {context.invoked_subcommand!r}, not before it")


def open_named(target: str, draft: str, given: Given) -> Pair:
    """Open the pair that the options name. Raises ConfigError, ModelError, DownloadError, CompatibilityError."""
    engine, of_draft = given[EngineConfig], given[SpeculativeConfig]
    for flag, value, known in (
        ("--quantize", engine.get("quantize"), get_args(Quantize)),
        ("--draft-quantize", of_draft.get("quantize"), get_args(DraftQuantize)),
    ):
        if value is not None and value not in known:
            raise ConfigError(f"unknown {flag} {value!r}{nearest(value, known)}")
    draft_vocab = of_draft.get("draft_vocab")
    if draft_vocab is not None and draft_vocab < 0:
        raise ConfigError(f"--draft-vocab must be at least 0 (the whole vocabulary), got {draft_vocab}")
    if draft == "none" and of_draft:
        raise ConfigError("--draft-quantize and --draft-vocab need a draft; leave out --draft none")
    with load_progress() as reporting:
        return open_pair(
            target,
            None if draft == "none" else draft,
            cores=parse_cores(engine.get("cores")),
            quantize=engine.get("quantize"),
            draft_quantize=of_draft.get("quantize"),
            draft_vocab=draft_vocab,
            reporting=reporting,
        )


def stored(pair: Pair) -> Profile:
    """Return the profile of a pair, saying so where it is but the quick one of a first start.

    Raises PlanError when there is none.
    """
    profile = load_profile(pair.key)
    if profile is not None and profile.quick:
        remark("this is the quick measurement of a first start; sonoran calibrate knows more")
    if profile is None:
        draft = pair.key.draft.name if pair.key.draft else "no draft"
        raise PlanError(
            f"{pair.key.target.name} with {draft} was not calibrated on this machine with these settings; "
            "run: sonoran calibrate with the same options"
        )
    return profile


def explain_workload(
    pair: Pair, profile: Profile, workload: Workload, *, target: str, draft: str, top: int, verify_count: int
) -> Explanation:
    """Predict, choose, advise and, if asked, run the best configurations and keep the results in the profile."""
    predictions = predict_all(profile, workload)
    choice = choose(predictions)
    answer = Explanation(
        workload,
        predictions,
        candidates(predictions, choice, top),
        choice,
        advise(profile, workload),
    )
    if verify_count:
        wanted = candidates(predictions, choice, max(verify_count, 1))[:verify_count]
        answer.measured = run_candidates(
            wanted,
            pair,
            workload,
            target=target,
            draft=draft,
            max_tokens=text_length(profile, workload),
        )
        again = {m.label for m in answer.measured}
        kept = [m for m in profile.measured if m.label not in again]
        save_profile(replace(profile, measured=(*kept, *answer.measured)))
    return answer


def text_length(profile: Profile, workload: Workload) -> int:
    """Return the tokens to generate per prompt: about as many as calibration read, since later text is harder."""
    acceptance = nearest_acceptance(profile, workload)
    if acceptance is None:
        return DEFAULT_TEXT
    return max(2, round(acceptance.positions / len(acceptance.texts)))


def candidates(predictions: list[Prediction], choice: Choice, count: int) -> list[Prediction]:
    """Return the choice, the best of each mode, then the fastest others, at most ``count``, fastest first."""
    chosen = list(dict.fromkeys([choice.best, *choice.by_mode.values(), *predictions]))[:count]
    return sorted(chosen, key=lambda p: -p.tokens_per_s)


def run_candidates(
    wanted: list[Prediction],
    pair: Pair,
    workload: Workload,
    *,
    target: str,
    draft: str,
    max_tokens: int,
) -> list[Measured]:
    """Run configurations on the engine, one after the other, with the built-in prompts."""

    def make(p: Prediction) -> LLM:
        options = engine_options(
            p,
            draft=None if draft == "none" else draft,
            target_key=pair.key.target,
            draft_key=pair.key.draft,
            verification=workload.verification,
        )
        return load(
            target,
            options.speculative,
            max_num_seqs=workload.batch,
            enable_prefix_caching=False,
            **options.engine,
        )

    def show(label: str, done: int, total: int) -> None:
        # A line, because loading has bars of its own, and nothing shall draw while speeds are measured.
        remark(f"running {label} ({done + 1} of {total})")

    prompts = [pair.tokenizer.encode_prompt(text) for text in built_in_prompts()]
    return check_predictions(wanted, make, prompts, workload, max_tokens=max_tokens, repeats=1, progress=show)
