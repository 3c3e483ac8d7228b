"""``sonoran calibrate``: measure this machine and this pair, once; ``show`` and ``explain`` what follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from sonoran.bench.datasets import DATASETS, load_prompts
from sonoran.cli.calibrate_options import (
    DraftPrecision,
    DraftVocab,
    PairCores,
    PairDraftOption,
    TargetOption,
    TargetPrecision,
    budget_progress,
    open_from_options,
    stored,
)
from sonoran.cli.calibrate_text import choices, print_explanation, print_profile
from sonoran.cli.common import command, out, print_json
from sonoran.cli.engine import JsonOption
from sonoran.cli.plan_files import suffix, write
from sonoran.errors import ConfigError, nearest
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.planning.profile.measure import Settings, measure
from sonoran.planning.profile.placement import Workload
from sonoran.planning.profile.profile import Profile
from sonoran.planning.profile.prompts import BUILT_IN, built_in_prompts, prompts_from_file
from sonoran.planning.profile.store import load_profiles, save_profile

app = typer.Typer(
    help="Measure this machine and a pair of models; from then on mode auto knows what is fastest."
)

EXAMPLES = (
    "Examples:  sonoran calibrate  |  sonoran calibrate --prompts humaneval --data-dir prompts --budget 60s  |  "
    "sonoran calibrate show  |  sonoran calibrate explain --batch 8 --verify 4 --plot why.svg"
)
NUM_PROMPTS = 8

Temperature = Annotated[
    float, typer.Option(help="Temperature that is sampled with; greedy is always measured.")
]


def register(root: typer.Typer) -> None:
    """Add the command group to the application."""
    root.add_typer(app, name="calibrate")


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
@command
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
    cores: PairCores = None,
    quantize: TargetPrecision = None,
    draft_quantize: DraftPrecision = None,
    draft_vocab: DraftVocab = None,
    json: JsonOption = False,
) -> None:
    """Measure passes, acceptance and overheads within a time budget, and keep the result in the cache."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    temperatures = (0.0,) if temperature == 0.0 else (0.0, temperature)
    settings = Settings(seconds=parse_seconds(budget), temperatures=temperatures)
    texts = read_prompts(prompts, data_dir)
    pair = open_from_options(target, draft, cores, quantize, draft_quantize, draft_vocab)
    with budget_progress() as progress:
        profile = measure(
            pair.key,
            pair.load,
            pair.tokenizer,
            pair.encode(texts),
            settings,
            prompts_name=prompts,
            progress=progress,
        )
    path = save_profile(profile)
    if json:
        print_json({**profile.summary(), "path": str(path), "choices": choices(profile)})
        return
    print_profile(profile)
    out.print(f"kept in {path}", style="dim", highlight=False, soft_wrap=True)


@app.command(
    epilog="Examples:  sonoran calibrate show  |  sonoran calibrate show --all  |  sonoran calibrate show --json"
)
@command
def show(
    target: TargetOption = DEFAULT_TARGET,
    draft: PairDraftOption = "auto",
    cores: PairCores = None,
    quantize: TargetPrecision = None,
    draft_quantize: DraftPrecision = None,
    draft_vocab: DraftVocab = None,
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
            out.print(
                f"{profile.created}  {profile.key.target.name} + {name}, {profile.verdict}", highlight=False
            )
        if not profiles:
            out.print("no profiles; make one with: sonoran calibrate")
        return
    profile = stored(open_from_options(target, draft, cores, quantize, draft_quantize, draft_vocab))
    if json:
        print_json({**profile.summary(), "choices": choices(profile), "profile": _document(profile)})
    else:
        print_profile(profile)


@app.command(
    epilog="Examples:  sonoran calibrate explain  |  sonoran calibrate explain --batch 8 --temperature 1  |  "
    "sonoran calibrate explain --verify 4 --plot why.svg"
)
@command
def explain(
    target: TargetOption = DEFAULT_TARGET,
    draft: PairDraftOption = "auto",
    batch: Annotated[int, typer.Option(help="Sequences decoded at once.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens that each sequence sees.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    verification: Annotated[str, typer.Option(help="Rule: coupled or rejection.")] = "coupled",
    top: Annotated[int, typer.Option(help="Candidates in the table.")] = 12,
    verify: Annotated[int, typer.Option(help="Run this many of them, the best of each mode first.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write plots: .svg or .png.")] = None,
    cores: PairCores = None,
    quantize: TargetPrecision = None,
    draft_quantize: DraftPrecision = None,
    draft_vocab: DraftVocab = None,
    json: JsonOption = False,
) -> None:
    """Explain the choice for a workload: candidates, predicted and measured, and what would make it faster."""
    if verification not in ("coupled", "rejection"):
        raise ConfigError(
            f"unknown --verification {verification!r}{nearest(verification, ('coupled', 'rejection'))}"
        )
    if top < 1 or verify < 0:
        raise ConfigError(f"--top must be at least 1 and --verify at least 0, got {top} and {verify}")
    form = suffix(plot, ("svg", "png"), "--plot")
    workload = Workload(batch, context, temperature, cast(Literal["coupled", "rejection"], verification))
    pair = open_from_options(target, draft, cores, quantize, draft_quantize, draft_vocab)
    profile = stored(pair)
    from sonoran.cli.calibrate_explain import explain_workload

    answer = explain_workload(
        pair, profile, workload, draft=draft, target=target, top=top, verify_count=verify
    )
    if plot is not None:
        from sonoran.planning.profile.plot import render_plot

        drawing = render_plot(profile, workload, answer.predictions, cast(Literal["svg", "png"], form))
        write(plot, drawing)
    if json:
        print_json(answer.document(profile))
        return
    print_explanation(answer, profile)
    if plot is not None:
        out.print(f"wrote {plot}", highlight=False, soft_wrap=True)


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


def _document(profile: Profile) -> Any:
    import json as jsonlib

    return jsonlib.loads(profile.to_json())
