"""``sonoran bench decode``: AR, SD and SSD on the same prompts, in one run."""

from __future__ import annotations

import json as jsonlib
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sonoran.backends.placement import place_threads
from sonoran.bench.datasets import load_prompts
from sonoran.bench.decode import Runner, measure_modes
from sonoran.bench.machine import describe_processor
from sonoran.bench.modes import BenchMode, EnginePlan, LlamaCppRunner, LLMRunner, plan_modes
from sonoran.bench.peers import LlamaCpp, check_peer
from sonoran.cli.bench_options import names, step_progress
from sonoran.cli.common import command, err, out, print_json
from sonoran.cli.engine import ContextOption, JsonOption, ModelOption, QuantizeOption, TokensOption, load
from sonoran.config import parse_cores
from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.models.source import resolve_model

EXAMPLES = (
    "Examples:  sonoran bench decode --modes ar,sd --dataset humaneval --data-dir prompts --cores 0  |  "
    "sonoran bench decode --modes ar,sd,ssd,ar-all --cores 0 --draft-cores 1 --json"
)
SEQUENCES = 1


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    app.command("decode", epilog=EXAMPLES)(decode)


@command
def decode(
    model: ModelOption = DEFAULT_TARGET,
    draft: Annotated[
        str, typer.Option("--draft", "-d", help="Draft of sd and ssd: auto, or a model.")
    ] = "auto",
    modes: Annotated[
        str, typer.Option(help="ar, sd, ngram, ssd, auto; with -all (ar-all, sd-all) on all cores named.")
    ] = "ar,sd",
    dataset: Annotated[str, typer.Option(help="humaneval, gsm8k or spec_bench.")] = "humaneval",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the set as JSON lines; default: the model hub.")
    ] = None,
    categories: Annotated[
        str | None, typer.Option(help="Categories of spec_bench; default: writing,qa.")
    ] = None,
    num_prompts: Annotated[int, typer.Option("--num-prompts", help="Distinct prompts.")] = 20,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Most new tokens per prompt.")] = 128,
    num_speculative_tokens: TokensOption = 4,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the first prompt; the next ones count on.")] = 0,
    verification: Annotated[str, typer.Option(help="Rule: coupled or rejection.")] = "coupled",
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end token.")] = False,
    cores: Annotated[str | None, typer.Option(help="Cores of the target, and of an sd draft.")] = None,
    draft_cores: Annotated[str | None, typer.Option(help="Cores of the ssd draft.")] = None,
    quantize: QuantizeOption = None,
    draft_quantize: Annotated[str | None, typer.Option(help="Precision of the draft.")] = None,
    draft_vocab: Annotated[int | None, typer.Option(help="Draft only ids below this.")] = None,
    sd_config: Annotated[str | None, typer.Option(help="More speculative options for sd, as JSON.")] = None,
    ssd_config: Annotated[str | None, typer.Option(help="More speculative options for ssd, as JSON.")] = None,
    max_model_len: ContextOption = None,
    peer: Annotated[
        str | None, typer.Option(help="Decode with another engine too, greedily, on all cores: llama.cpp.")
    ] = None,
    peer_python: Annotated[str | None, typer.Option(help="Interpreter that has the peer's package.")] = None,
    json: JsonOption = False,
) -> None:
    """Compare decoding modes: tokens per second (prompt excluded), ratios, acceptance, identical texts."""
    target_cores, own_cores = parse_cores(cores), parse_cores(draft_cores)
    for given in (target_cores, own_cores):
        place_threads(None, given)
    draft_options = {"quantize": draft_quantize, "draft_vocab": draft_vocab}
    planned = plan_modes(
        names("--modes", modes),
        cores=target_cores,
        draft_cores=own_cores,
        draft=draft,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,
        draft_options={key: value for key, value in draft_options.items() if value is not None},
        extra={"sd": parse_object("--sd-config", sd_config), "ssd": parse_object("--ssd-config", ssd_config)},
    )
    if peer is not None:
        check_peer(peer)
        if temperature > 0:
            raise ConfigError("--peer decodes greedily; leave out --temperature")
    elif peer_python is not None:
        raise ConfigError("--peer-python without a peer; add --peer llama.cpp")
    prompts = load_prompts(
        dataset,
        num_prompts,
        data_dir=data_dir,
        categories=names("--categories", categories) if categories else (),
    )
    params = {"temperature": temperature, "ignore_eos": ignore_eos, "verification": verification}
    options = {"quantize": quantize, "max_model_len": max_model_len}
    with ExitStack() as stack:
        engines = load_engines(model, planned, options, stack)
        llm = next(iter(engines.values()))
        runners: dict[str, Runner] = {
            mode.name: LLMRunner(engines[mode.plan], mode.speculates, params) for mode in planned
        }
        own_modes = list(runners)
        if peer is not None:
            every = tuple(dict.fromkeys((*(target_cores or ()), *(own_cores or ())))) or None
            other = LlamaCpp(
                resolve_model(model),
                threads=place_threads(None, every)[0],
                cores=every,
                max_length=llm.max_model_len,
                python=peer_python,
            )
            stack.callback(other.close)
            runners = {
                other.name: LlamaCppRunner(other, () if ignore_eos else llm.tokenizer.eos_ids),
                **runners,
            }
        ids = [encode(llm, prompt.text) for prompt in prompts]
        with step_progress() as progress:
            result = measure_modes(
                runners, ids, max_tokens=max_tokens, seed=seed, same_text=own_modes, progress=progress
            )
    setting = {
        "model": model, "draft": draft, "dataset": dataset, "num_prompts": len(prompts),
        "max_tokens": max_tokens, "temperature": temperature,
        "num_speculative_tokens": num_speculative_tokens, "verification": verification,
        "cores": target_cores, "draft_cores": own_cores, "quantize": quantize,
    }  # fmt: skip
    result = {**setting, **result, "processor": describe_processor()}
    if json:
        print_json(result)
    else:
        show(result)


def load_engines(
    model: str, planned: list[BenchMode], options: dict[str, Any], stack: ExitStack
) -> dict[EnginePlan, LLM]:
    """Load one engine for each different plan; the stack closes them."""
    engines: dict[EnginePlan, LLM] = {}
    for mode in planned:
        if mode.plan not in engines:
            # A prompt is read once per mode: what an earlier mode left in memory must not help a later one.
            llm = load(
                model,
                mode.plan.speculative_config,
                cores=mode.plan.cores,
                max_num_seqs=SEQUENCES,
                enable_prefix_caching=False,
                **options,
            )
            engines[mode.plan] = stack.enter_context(llm)
    return engines


def encode(llm: LLM, text: str) -> list[int]:
    """Return a prompt's token ids, as a chat if the model has a template."""
    if llm.tokenizer.has_chat_template:
        return list(llm.tokenizer.encode_chat([{"role": "user", "content": text}]))
    return list(llm.tokenizer.encode(text))


def parse_object(option: str, text: str | None) -> dict[str, Any]:
    """Read a JSON object given as an option. Raises ConfigError."""
    try:
        value = jsonlib.loads(text) if text else {}
    except ValueError as error:
        raise ConfigError(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{option} must be a JSON object, got {text}")
    return value


def show(result: dict[str, Any]) -> None:
    """Print the comparison as a table."""
    err.print(
        f"{result['model']}, {result['num_prompts']} prompts of {result['dataset']}, at most "
        f"{result['max_tokens']} tokens each, temperature {result['temperature']:g}",
        style="dim",
        highlight=False,
    )
    speed = {name: mode["tokens_per_s"] for name, mode in result["modes"].items()}
    base = "ar" if "ar" in speed else next(iter(speed))
    table = Table(box=None, header_style="bold")
    for title in ("mode", "tokens/s", "spread", f"x {base}", "first token", "accepted", "per round", "hits"):
        table.add_column(title, justify="left" if title == "mode" else "right", no_wrap=True)
    for name, mode in result["modes"].items():
        table.add_row(
            name,
            f"{mode['tokens_per_s']:.1f}",
            f"{mode['spread']:.0%}",
            f"{speed[name] / speed[base]:.2f}",
            f"{mode['ttft_s']:.2f} s",
            share(mode["acceptance_rate"]),
            "-" if mode["mean_acceptance_length"] is None else f"{mode['mean_acceptance_length']:.2f}",
            share(mode["hit_rate"]),
        )
    out.print(table)
    for name, paired in result["paired_ratios"].items():
        if paired is not None:
            extremes = f"{paired['min']:.2f} to {paired['max']:.2f}"
            out.print(f"{name}: {paired['median']:.2f} x on the median prompt ({extremes})", highlight=False)
    if result["identical_texts"]:
        out.print("texts identical in all modes")
    else:
        out.print(f"texts differ: {result['differences']}", highlight=False)


def share(value: float | None) -> str:
    """Return a percentage, or a dash for what does not apply."""
    return "-" if value is None else f"{value:.0%}"
