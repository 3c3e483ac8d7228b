"""``sonoran bench``: how fast a pass, each decoding mode, a server and the way to a first token are."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.table import Table

from sonoran.assemble import Models, load_models, make_engine, separate_cores, with_drafter
from sonoran.backends.placement import place_threads
from sonoran.bench.datasets import load_prompts
from sonoran.bench.decode import Runner, measure_modes
from sonoran.bench.forward import check_rows, context_tokens, measure
from sonoran.bench.machine import describe_processor
from sonoran.bench.modes import ALL, BenchMode, EnginePlan, LlamaCppRunner, LLMRunner, plan_modes
from sonoran.bench.native_subject import READ_LOOP_BYTES, NativeSubject
from sonoran.bench.peers import LlamaCpp, check_peer
from sonoran.bench.together import check_batches, measure_together
from sonoran.bench.verdict import base_of, speed_table, verdict
from sonoran.cli import bench_serve, bench_start
from sonoran.cli.common import (
    JsonOption,
    command,
    examples,
    names,
    numbers,
    out,
    print_json,
    remark,
    say,
    write,
)
from sonoran.cli.options import (
    SAMPLING,
    SPECULATION,
    Given,
    ModelOption,
    Option,
    load,
    offers,
    options_of,
    read_fan_out,
    sampling,
)
from sonoran.cli.progress import load_progress, step_progress
from sonoran.config import AUTO_SPECULATIVE_TOKENS, EngineConfig, Precision, SpeculativeConfig, parse_cores
from sonoran.errors import ConfigError, nearest
from sonoran.llm import LLM
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.models.source import open_model, resolve_model
from sonoran.models.untrusted import parse_json, refusing
from sonoran.planning.drawing import draw
from sonoran.planning.profile.profile import Cores
from sonoran.planning.profile.prompts import prompts_from_file
from sonoran.sampling.params import SamplingParams

FORWARD_EXAMPLES = examples(
    "sonoran bench forward --rows 1,2,4,6,8,16 --context 256 --cores 0",
    "sonoran bench forward --cores 0,1 --threads 1,2 --rows 1,4 --json",
    "sonoran bench forward --cores 0 --peer llama.cpp",
)
DECODE_EXAMPLES = examples(
    "sonoran bench decode --modes ar,sd --dataset humaneval --cores 0",
    "sonoran bench decode --modes ar,sd,ssd,ar-all --cores 0 --draft-cores 1",
    "sonoran bench decode --modes ar,sd,ssd,ngram --batch 1,4,16 --report out",
    "sonoran bench decode --prompts prompts.txt --modes ar,sd,ssd -k 2,4,6",
    "sonoran bench decode --modes ssd --budget 4,8,auto --backup draft,none --json",
)
SEQUENCES = 1
SWEPT = ("num_speculative_tokens", "budget", "backup", "fan_out")
"""Options of speculation of which `bench decode` takes several values."""

NUM_PROMPTS = 20
"""Prompts of a data set unless asked for otherwise; of a file all."""

app = typer.Typer(
    help="Measure passes and decoding modes, interleaved in one run.",
    epilog=examples("sonoran bench forward --cores 0", "sonoran bench decode --modes ar,sd,ssd"),
    no_args_is_help=True,
)


def register(root: typer.Typer) -> None:
    """Add the command group to the application."""
    app.command("serve", epilog=bench_serve.EXAMPLES)(bench_serve.serve)
    app.command("start", epilog=bench_start.EXAMPLES)(bench_start.start)
    root.add_typer(app, name="bench")


@app.command("forward", epilog=FORWARD_EXAMPLES)
@command
def forward(
    model: ModelOption = DEFAULT_TARGET,
    rows: Annotated[str, typer.Option(help="Rows of a pass, in turn.")] = "1,2,4,6,8,16",
    context: Annotated[int, typer.Option(help="Tokens that each row sees before itself.")] = 256,
    threads: Annotated[
        str | None,
        typer.Option(help="Threads; several counts (1,2) are compared, each on the first of the cores."),
    ] = None,
    cores: Annotated[str | None, typer.Option(help="Pin threads to these cores: 0,2-5.")] = None,
    quantize: Annotated[
        str | None, typer.Option(help="Lower precision: bf16, int8, int4, or int3 as for drafts.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Measured rounds over all row counts, after a warm-up.")] = 15,
    peer: Annotated[str | None, typer.Option(help="Measure another engine beside: llama.cpp.")] = None,
    peer_python: Annotated[
        str | None, typer.Option(help="Interpreter that has the peer's package; default: this one.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Time passes of several rows over one context; report bandwidth, prefill and, if asked, a peer."""
    counts = check_rows(numbers("--rows", rows))
    placements = place(numbers("--threads", threads) if threads else None, parse_cores(cores))
    if quantize is not None and quantize not in get_args(Precision):
        raise ConfigError(f"unknown --quantize {quantize!r}{nearest(quantize, get_args(Precision))}")
    if peer is not None:
        check_peer(peer)
    elif peer_python is not None:
        raise ConfigError("--peer-python without a peer; add --peer llama.cpp")
    with ExitStack() as stack:
        with load_progress() as reporting:
            path = resolve_model(model, progress=reporting.pull)
            file = open_model(path)
            ids = context_tokens(context, file.config.vocab_size)
            owns = []
            for count, places in placements:
                own = NativeSubject(
                    path,
                    ids,
                    max_rows=max(counts),
                    threads=count,
                    cores=places,
                    quantize=cast("Precision | None", quantize),
                    loading=reporting.loading(file),
                )
                stack.callback(own.close)
                owns.append(own)
        peers = []
        if peer is not None:
            for count, places in placements:
                other = LlamaCpp(
                    path, ids.tolist(), max_rows=max(counts), threads=count, cores=places, python=peer_python
                )
                stack.callback(other.close)
                peers.append(other)
        with step_progress() as progress:
            result = measure(
                owns,
                peers,
                counts,
                context=context,
                read_loop_bytes=READ_LOOP_BYTES,
                repeats=repeats,
                progress=progress,
            )
    result = {"model": model, "quantize": quantize, **result, "processor": describe_processor()}
    if json:
        print_json(result)
    else:
        show_forward(result)


def place(
    counts: list[int] | None, cores: tuple[int, ...] | None
) -> list[tuple[int, tuple[int, ...] | None]]:
    """Return threads and cores of each measured placement; n threads take the first n of the cores."""
    wanted: list[int | None] = [*counts] if counts else [None]
    placements = []
    for count in wanted:
        settled, pinned = place_threads(count, cores)
        placements.append((settled, pinned[:settled] or None))
    if len({count for count, _ in placements}) < len(placements):
        raise ConfigError("--threads names a count twice")
    return placements


def show_forward(result: dict[str, Any]) -> None:
    """Print tables: the main subject, then each other beside it."""
    remark(f"{result['model']}, context {result['context']}, {result['repeats']} repeats")
    for document in (result, *result["others"]):
        own = "read_gb_per_s" in document
        table = Table(title=document["name"], box=None, header_style="bold", title_justify="left")
        titles = ["rows", "ms median", "min", "spread", "x fewest rows"]
        titles += ["GB/s", "of read loop"] if own else ["sonoran / this"]
        for title in titles:
            table.add_column(title, justify="right")
        for entry in document["results"]:
            cells = [
                str(entry["rows"]),
                f"{entry['ms_median']:.2f}",
                f"{entry['ms_min']:.2f}",
                f"{entry['spread']:.0%}",
                f"{entry['relative_to_fewest_rows']:.2f}",
            ]
            if own:
                cells += [f"{entry['gb_per_s']:.1f}", f"{entry['share_of_read_loop']:.0%}"]
            else:
                cells.append(f"{document['main_to_this']['ms'][str(entry['rows'])]:.2f}")
            table.add_row(*cells)
        out.print(table)
        line = f"prefill {document['prefill_tokens_per_s']:.0f} tokens/s"
        if own:
            loading = document["load"]
            line += (
                f", read loop {document['read_gb_per_s']:.1f} GB/s, load {loading['seconds']:.1f} s, memory "
                f"{loading['resident_without_kv_per_file_byte']:.2f} x the file plus KV"
            )
        if "main_to_this" in document:
            ratios = document["main_to_this"]
            line += f"; first to this: prefill {ratios['prefill_ms']:.2f}"
            if own:
                line += ", rows " + ", ".join(f"{rows}: {x:.2f}" for rows, x in ratios["ms"].items())
        say(line + "\n")


@app.command("decode", epilog=DECODE_EXAMPLES)
@command
@offers(
    SAMPLING,
    options_of(SpeculativeConfig, without=("model", "threads", "device", *SWEPT)),
    options_of(EngineConfig, without=("threads", "device")),
    temperature=0.0,
    max_tokens=128,
    seed=0,
)
def decode(
    model: ModelOption = DEFAULT_TARGET,
    draft: Annotated[
        str,
        typer.Option("--draft", "-d", help="What drafts: auto, or a model.", rich_help_panel="Draft"),
    ] = "auto",
    modes: Annotated[
        str, typer.Option(help="ar, sd, ngram, ssd, auto; with -all (ar-all, sd-all) on all cores named.")
    ] = "ar,sd",
    prompts: Annotated[
        Path | None,
        typer.Option(help='Your own prompts: one a line; in a .jsonl file {"prompt": ...} or a text a line.'),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="humaneval, edits, gsm8k or spec_bench; default: humaneval.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the set as JSON lines; default: the model hub.")
    ] = None,
    categories: Annotated[
        str | None, typer.Option(help="Categories of spec_bench; default: writing,qa.")
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(help=f"Distinct prompts; default: {NUM_PROMPTS}, of a file all."),
    ] = None,
    *,
    given: Given,
    num_speculative_tokens: Annotated[
        str | None,
        typer.Option(
            "--num-speculative-tokens",
            "-k",
            help="Most tokens drafted for each verification; several (2,4,6) are compared.",
            rich_help_panel="Draft",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Outcomes guessed per round; several (4,8,auto) are compared.", rich_help_panel="SSD"
        ),
    ] = None,
    backup: Annotated[
        str | None,
        typer.Option(help="What drafts on a miss; several (draft,none) are compared.", rich_help_panel="SSD"),
    ] = None,
    fan_out: Annotated[
        str | None,
        typer.Option(
            help="Rules for guesses, several (confidence,uniform) are compared; or one list of numbers.",
            rich_help_panel="SSD",
        ),
    ] = None,
    sd_config: Annotated[
        str | None, typer.Option(help="Speculative options for sd alone, as JSON.", rich_help_panel="Draft")
    ] = None,
    ssd_config: Annotated[
        str | None, typer.Option(help="Speculative options for ssd alone, as JSON.", rich_help_panel="SSD")
    ] = None,
    peer: Annotated[
        str | None, typer.Option(help="Decode with another engine too, greedily, on all cores: llama.cpp.")
    ] = None,
    peer_python: Annotated[str | None, typer.Option(help="Interpreter that has the peer's package.")] = None,
    batch: Annotated[
        str | None,
        typer.Option(help="Decode so many prompts at once too (1,4,16): throughput of each of our modes."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write results.json, a page, Markdown and pictures into this folder."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare decoding modes: tokens per second (prompt excluded), ratios, acceptance, identical texts.

    The target has --cores, and so has an sd draft; an ssd draft has --draft-cores. Each prompt has a seed of its own,
    counted from --seed. Options of speculation hold for every mode that they have a meaning for.
    """
    engine, speculative = given[EngineConfig], given[SpeculativeConfig]
    params = sampling(given[SamplingParams])
    cores, draft_cores = parse_cores(engine.pop("cores", None)), parse_cores(speculative.pop("cores", None))
    for place_of_one in (cores, draft_cores):
        place_threads(None, place_of_one)
    speculative.pop("verification", None)
    wanted = names("--modes", modes)
    kinds = [name.removesuffix(ALL) for name in wanted]
    several = {
        "num_speculative_tokens": num_speculative_tokens, "budget": budget, "backup": backup, "fan_out": fan_out,
    }  # fmt: skip
    swept: dict[str, list[Any]] = {}
    for option in SPECULATION:
        if (text := several.get(option.name)) is not None:
            values = values_of(option, text)
            if len(values) > 1:
                swept[option.name] = values
            else:
                speculative[option.name] = values[0]
    if "budget" in swept and any(character.isdigit() for character in fan_out or ""):
        raise ConfigError("--budget has no effect beside a list as --fan-out, whose sum is the budget")
    variants = sweep(kinds, swept)
    own = options_by_mode(kinds, speculative)
    if num_speculative_tokens is None and "auto" in own:
        own["auto"]["num_speculative_tokens"] = AUTO_SPECULATIVE_TOKENS
    for method, flag, text in (("sd", "--sd-config", sd_config), ("ssd", "--ssd-config", ssd_config)):
        own.setdefault(method, {}).update(parse_object(flag, text))
    planned = plan_modes(
        wanted,
        cores=cores,
        draft_cores=draft_cores,
        draft=draft,
        verification=params.verification,
        extra=own,
        variants=variants,
    )
    if peer is not None:
        check_peer(peer)
        if not params.greedy:
            raise ConfigError("--peer decodes greedily; leave out --temperature")
    elif peer_python is not None:
        raise ConfigError("--peer-python without a peer; add --peer llama.cpp")
    source, texts = read_prompts(prompts, dataset, num_prompts, data_dir, categories)
    batches = check_batches(numbers("--batch", batch), len(texts)) if batch is not None else ()
    if report is not None:
        report_folder(report)
    shared = dict(given[SamplingParams])
    seed, max_tokens = shared.pop("seed"), shared.pop("max_tokens")
    with ExitStack() as stack:
        engines = load_engines(model, planned, engine, stack, max(batches, default=SEQUENCES))
        llm = next(iter(engines.values()))
        ids = [llm.tokenizer.encode_prompt(text) for text in texts]
        runners: dict[str, Runner] = {
            mode.name: LLMRunner(engines[mode.plan], mode.speculates, shared) for mode in planned
        }
        own_modes = list(runners)
        if peer is not None:
            every = tuple(dict.fromkeys((*(cores or ()), *(draft_cores or ())))) or None
            other = LlamaCpp(
                resolve_model(model),
                threads=place_threads(None, every)[0],
                cores=every,
                max_length=max(map(len, ids)) + max_tokens,
                python=peer_python,
            )
            stack.callback(other.close)
            runners = {
                other.name: LlamaCppRunner(other, () if params.ignore_eos else llm.tokenizer.eos_ids),
                **runners,
            }
        with step_progress() as progress:
            result = measure_modes(
                runners,
                ids,
                max_tokens=max_tokens,
                seed=seed,
                same_text=own_modes,
                progress=progress,
            )
            together = {name: runners[name] for name in own_modes}
            if batches:
                result["throughput"] = measure_together(
                    cast("dict[str, LLMRunner]", together),
                    ids,
                    batches,
                    max_tokens=max_tokens,
                    seed=seed,
                    progress=progress,
                )
    setting = {
        "model": model, "draft": draft, "dataset": source, "num_prompts": len(texts),
        "max_tokens": max_tokens, "temperature": params.temperature,
        "num_speculative_tokens": swept.get("num_speculative_tokens", speculative.get("num_speculative_tokens")),
        "verification": params.verification,
        "cores": cores, "draft_cores": draft_cores, "quantize": engine.get("quantize"),
    }  # fmt: skip
    result = {**setting, **result, "processor": describe_processor()}
    result["verdict"] = verdict(
        {name: result["modes"][name] for name in own_modes},
        next((name for name in own_modes if name.startswith("ar")), None),
        {name: what_to_type(name, cores, draft_cores) for name in own_modes},
    )
    if report is not None:
        from sonoran.bench.report import report_files

        for name, data in report_files(result, shlex.join(["sonoran", *sys.argv[1:]])).items():
            write(report / name, data)
        remark(f"wrote {report / 'report.html'}, and beside it the same as Markdown, pictures and JSON")
    if json:
        print_json(result)
    else:
        show_decode(result)


def report_folder(path: Path) -> None:
    """Make the folder of a report before anything is measured. Raises ConfigError, PlanError without matplotlib."""
    draw(lambda _: None, (1, 1), "svg")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--report {path}: {error.strerror}") from None


def read_prompts(
    file: Path | None, dataset: str | None, count: int | None, data_dir: Path | None, categories: str | None
) -> tuple[str, list[str]]:
    """Return where the prompts are from, and their texts. Raises ConfigError, DownloadError."""
    if file is None:
        found = load_prompts(
            dataset or "humaneval",
            NUM_PROMPTS if count is None else count,
            data_dir=data_dir,
            categories=names("--categories", categories) if categories else (),
        )
        return dataset or "humaneval", [prompt.text for prompt in found]
    for flag, value in (("--dataset", dataset), ("--data-dir", data_dir), ("--categories", categories)):
        if value is not None:
            raise ConfigError(f"{flag} has no effect beside --prompts; leave one of them out")
    texts = list(dict.fromkeys(prompts_from_file(file)))
    if count is not None and not 1 <= count <= len(texts):
        raise ConfigError(f"--num-prompts {count}: {file} has {len(texts)} distinct prompts")
    return str(file), texts[:count]


def sweep(kinds: list[str], swept: dict[str, list[Any]]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return for each mode every combination of the values that it has a meaning for, under the flags that give it.

    Raises ConfigError for an option that no mode has a meaning for.
    """
    options = {option.name: option for option in SPECULATION}
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for kind in kinds:
        having = {name: values for name, values in swept.items() if has_meaning(options[name], kind)}
        found[kind] = [
            (
                " ".join(f"{options[n].flags[-1]} {v}" for n, v in zip(having, values, strict=True)),
                dict(zip(having, values, strict=True)),
            )
            for values in product(*having.values())
        ]
    for name in swept:
        refuse_without_mode(options[name], kinds)
    return found


def has_meaning(option: Option, kind: str) -> bool:
    """Tell whether an option of speculation has a meaning for a mode."""
    methods = option.field.metadata["methods"]
    return kind != "ar" and (not methods or kind in methods)


def refuse_without_mode(option: Option, kinds: list[str]) -> None:
    """Raise ConfigError for an option that none of the modes has a meaning for."""
    if not any(has_meaning(option, kind) for kind in kinds):
        methods = " and ".join(option.field.metadata["methods"]) or "modes that draft"
        raise ConfigError(f"{option.flags[0]} is for {methods}, and --modes has none of these")


def values_of(option: Option, text: str) -> list[Any]:
    """Return the values of an option that were named; numbers given as --fan-out are one value. Raises ConfigError."""
    flag = option.flags[0]
    if option.name == "fan_out" and any(character.isdigit() for character in text):
        return [text]
    return [int(part) if part.isdigit() else part for part in names(flag, text)]


def what_to_type(mode: str, cores: Cores | None, draft_cores: Cores | None) -> str:
    """Return the command that decodes as a measured mode did."""
    kind, _, options = mode.partition(" ")
    parts = ["sonoran generate --mode", kind.removesuffix(ALL), options]
    if kind.endswith(ALL):
        cores = None if cores is None or draft_cores is None else (*cores, *draft_cores)
    if cores is not None:
        parts.append(f"--cores {','.join(map(str, cores))}")
    if kind == "ssd" and draft_cores is not None:
        parts.append(f"--draft-cores {','.join(map(str, draft_cores))}")
    return " ".join(filter(None, parts))


def options_by_mode(modes: list[str], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return for each mode what it has a meaning for. Raises ConfigError for what none of them has a meaning for."""
    found: dict[str, dict[str, Any]] = {mode: {} for mode in modes if mode != "ar"}
    for option in SPECULATION:
        if option.name not in given:
            continue
        refuse_without_mode(option, modes)
        for mode in found:
            if has_meaning(option, mode):
                found[mode][option.name] = given[option.name]
    for options in found.values():
        read_fan_out(options)
    return found


def load_engines(
    model: str, planned: list[BenchMode], options: dict[str, Any], stack: ExitStack, sequences: int
) -> dict[EnginePlan, LLM]:
    """Load one engine for each different plan; the stack closes them. A target on the same cores is loaded once."""
    engines: dict[EnginePlan, LLM] = {}
    targets: dict[Cores | None, Models] = {}
    # A prompt is read once per mode: what an earlier mode left in memory must not help a later one.
    fixed = {**options, "max_num_seqs": sequences, "enable_prefix_caching": False}
    for plan in dict.fromkeys(mode.plan for mode in planned):
        given = plan.speculative_config
        if given is not None and given["method"] == "auto":
            engines[plan] = stack.enter_context(load(model, given, cores=plan.cores, **fixed))
            continue
        config, speculative = separate_cores(
            EngineConfig(cores=plan.cores, **fixed),
            None if given is None else SpeculativeConfig.from_mapping(given),
        )
        with load_progress() as reporting:
            if config.cores in targets:
                models = with_drafter(targets[config.cores], config, speculative, reporting)
            else:
                models = targets[config.cores] = load_models(model, config, speculative, reporting)
        engines[plan] = stack.enter_context(LLM.from_core(make_engine(models), models.target.tokenizer))
    return engines


def parse_object(option: str, text: str | None) -> dict[str, Any]:
    """Read a JSON object given as an option. Raises ConfigError."""
    with refusing(option, ConfigError):
        value = parse_json(text, ConfigError) if text else {}
    if not isinstance(value, dict):
        raise ConfigError(f"{option} must be a JSON object, got {text}")
    return value


def show_decode(result: dict[str, Any]) -> None:
    """Print the comparison as a table."""
    remark(
        f"{result['model']}, {result['num_prompts']} prompts of {result['dataset']}, at most "
        f"{result['max_tokens']} tokens each, temperature {result['temperature']:g}"
    )
    head, rows = speed_table(result["modes"])
    table = Table(box=None, header_style="bold")
    for title in head:
        table.add_column(title, justify="left" if title == "mode" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    out.print(table)
    for name, paired in result["paired_ratios"].items():
        if paired is not None and (name.endswith(f"/{base_of(result['modes'])}") or len(rows) <= 3):
            extremes = f"{paired['min']:.2f} to {paired['max']:.2f}"
            say(f"{name}: {paired['median']:.2f} x on the median prompt ({extremes})")
    for entry in result.get("throughput", []):
        say(
            f"{entry['mode']}, batch {entry['batch']}: {entry['tokens_per_s']:.1f} tokens/s, prompts included "
            f"({entry['spread']:.0%} spread)"
        )
    if result["identical_texts"]:
        say("texts identical in all modes")
    else:
        say(f"texts differ: {result['differences']}")
    say(result["verdict"])
