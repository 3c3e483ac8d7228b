"""``sonoran bench serve``: a server under load, with and without speculation."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.table import Table

from sonoran.bench.machine import describe_processor
from sonoran.bench.serve import Load, Target, measure_load, measure_overhead
from sonoran.cli.common import JsonOption, command, examples, numbers, out, print_json, say
from sonoran.cli.options import (
    ENGINE,
    SPECULATION,
    Given,
    ModelOption,
    ModeOption,
    load,
    offers,
    speculation,
)
from sonoran.cli.progress import step_progress
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.errors import ConfigError
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.planning.profile.prompts import built_in_prompts
from sonoran.sampling.params import SamplingParams
from sonoran.server.config import KEY_VARIABLE, ServerConfig
from sonoran.server.run import Background

EXAMPLES = examples(
    "sonoran bench serve --draft auto",
    "sonoran bench serve --clients 1,8 --mode ngram",
    "sonoran bench serve --url http://127.0.0.1:8000 --served-model-name m",
)


@command
@offers(SPECULATION, ENGINE)
def serve(
    model: ModelOption = DEFAULT_TARGET,
    mode: ModeOption = None,
    *,
    url: Annotated[
        str | None, typer.Option(help="A server that runs; default: one of our own, in this process.")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="What the server at --url calls its model.")
    ] = None,
    clients: Annotated[str, typer.Option(help="Clients at once, in turn.")] = "1,4,16",
    requests: Annotated[int, typer.Option(help="Requests of each client.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each request.")] = 48,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="Requests for what HTTP adds; with a server of our own.")] = 7,
    given: Given,
    json: JsonOption = False,
) -> None:
    """Load a server with clients: tokens per second and latencies, with and without speculation in turn.

    A server of our own is also compared with its engine, asked directly. SONORAN_API_KEY is the key for --url.
    """
    if requests < 1 or repeats < 1:
        raise ConfigError("--requests and --repeats must be at least 1")
    counts, prompts = numbers("--clients", clients), built_in_prompts()
    params: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "ignore_eos": True}
    SamplingParams(**params)  # refuses what cannot be before anything is loaded
    if url is not None:
        if served_model_name is None:
            raise ConfigError("--url needs --served-model-name: what GET /v1/models lists")
        given_here = [name for config in given.values() for name in config]
        if given_here or mode is not None:
            raise ConfigError(
                "options of models and modes have no effect beside --url, whose server has its own"
            )
        target = Target(
            url.rstrip("/"), served_model_name, (os.environ.get(KEY_VARIABLE) or "").split(",")[0]
        )
        with step_progress() as progress:
            result = measure_load(
                target,
                Load(prompts, params, requests),
                counts,
                lambda done, total: progress("clients", done, total),
            )
    else:
        speculative = speculation(mode, given[SpeculativeConfig])
        config = ServerConfig(names=("bench",), port=0, max_queue=1024)
        with (
            load(model, speculative, **given[EngineConfig]) as llm,
            Background(llm, config) as server,
            step_progress() as progress,
        ):
            ids = [llm.tokenizer.encode_prompt(prompt) for prompt in prompts]
            wanted, target = Load(ids, params, requests), Target(server.url, "bench")
            result = measure_load(
                target, wanted, counts, lambda done, total: progress("clients", done, total)
            )
            result["http"] = measure_overhead(llm, target, wanted, repeats)
        result["model"], result["mode"] = model, speculative.method if speculative is not None else "ar"
    result = {**result, **params, "requests": requests, "processor": describe_processor()}
    if json:
        print_json(result)
    else:
        show(result)


def show(result: dict[str, Any]) -> None:
    """Print what clients saw."""
    table = Table(box=None, header_style="bold")
    for title in (
        "clients",
        "",
        "tokens/s",
        "TTFT ms p50 p90 p99",
        "ITL ms p50 p90 p99",
        "request s p50 p90 p99",
        "texts",
    ):
        table.add_column(title, justify="left" if title in ("", "texts") else "right")

    def spread(values: dict[str, float], scale: float) -> str:
        return " ".join(f"{scale * value:.1f}" for value in values.values()) or "-"

    for level in result["levels"]:
        for variant, title in (("speculative", "speculative"), ("ar", "AR")):
            row, first = level[variant], variant == "speculative"
            table.add_row(
                str(level["clients"]) if first else "",
                title + (f" x{level['speedup']:.2f}" if first else ""),
                f"{row['tokens_per_s']:.1f}",
                spread(row["ttft_s"], 1e3),
                spread(row["itl_s"], 1e3),
                spread(row["e2e_s"], 1.0),
                ("the same" if level["same_texts"] else "DIFFERENT") if first else "",
            )
    out.print(table)
    http = result.get("http")
    if http is not None:
        say(
            f"over HTTP {http['speed_ratio']:.1%} of the speed of the engine itself, "
            f"first token {1e3 * http['added_ttft_s']:+.1f} ms (median of {http['repeats']})"
        )
