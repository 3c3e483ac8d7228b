"""``sonoran trace``: what target and draft did when, for Perfetto or chrome://tracing."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from sonoran.cli.common import command, err, print_json
from sonoran.cli.engine import CoresOption, DraftOption, JsonOption, ModelOption, ThreadsOption, load
from sonoran.cli.generate import encode, read_prompt, stream, summary
from sonoran.cli.speculation import (
    AddressOption,
    BackupOption,
    BudgetOption,
    FanOutOption,
    KeyFileOption,
    speculative_config,
)
from sonoran.engine.trace import Span, chrome_trace
from sonoran.errors import ConfigError
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.sampling.params import SamplingParams

EXAMPLES = (
    'Examples:  sonoran trace "Reverse a list in Python" --out trace.json  |  '
    "sonoran trace --file prompt.txt --mode sd -n 32  |  "
    'sonoran trace "hello" --draft-address tcp://127.0.0.1:5757 --json'
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("trace", epilog=EXAMPLES)(trace)


@command
def trace(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    target_file: Annotated[Path, typer.Option("--out", "-o", help="Where the trace goes.")] = Path(
        "trace.json"
    ),
    mode: Annotated[str, typer.Option(help="ar, sd, ssd, ngram or auto.")] = "ssd",
    model: ModelOption = DEFAULT_TARGET,
    draft: DraftOption = "none",
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option("--num-speculative-tokens", "-k", help="Most tokens drafted per round; default 4."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same text.")] = 0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens to generate.")] = 64,
    threads: ThreadsOption = None,
    cores: CoresOption = None,
    draft_cores: Annotated[str | None, typer.Option(help="Cores of the draft.")] = None,
    draft_address: AddressOption = None,
    draft_key_file: KeyFileOption = None,
    fan_out: FanOutOption = None,
    budget: BudgetOption = None,
    backup: BackupOption = None,
    json: JsonOption = False,
) -> None:
    """Generate an answer and write a trace of target and draft worker; the text goes to standard output.

    Open the file at https://ui.perfetto.dev or chrome://tracing.
    """
    text = read_prompt(prompt, file)
    config = speculative_config(
        mode, draft, num_speculative_tokens, draft_options={"cores": draft_cores},
        ssd_options={
            "address": draft_address, "key_file": draft_key_file, "fan_out": fan_out, "budget": budget,
            "backup": backup,
        },
    )  # fmt: skip
    check_writable(target_file)
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    with load(model, config, threads=threads, cores=cores, max_num_seqs=1) as llm:
        ids = encode(llm, text, None, None)
        llm.start_trace()
        output = stream(llm, ids, params, quiet=json)
        lanes = llm.end_trace()
    document = chrome_trace(lanes, {"model": model, "speculative_config": config, "tokens": max_tokens})
    try:
        target_file.write_text(jsonlib.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {target_file}: {error}") from error
    facts = {"file": str(target_file), "lanes": {lane: totals(spans) for lane, spans in lanes.items()}}
    if json:
        print_json({**facts, "text": output.outputs[0].text, "metrics": output.metrics})
        return
    err.print(summary(output.metrics), style="dim", highlight=False, soft_wrap=True)
    for lane, parts in facts["lanes"].items():  # type: ignore[attr-defined]
        err.print(f"{lane}: {describe(parts)}", style="dim", highlight=False, soft_wrap=True)
    err.print(f"{target_file} opens at https://ui.perfetto.dev", style="dim", highlight=False, soft_wrap=True)


def check_writable(path: Path) -> None:
    """Raise ConfigError, before models are loaded, when the trace could not be written there."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: it must be a file in a folder that exists")


def totals(spans: list[Span]) -> dict[str, dict[str, Any]]:
    """Return count and milliseconds in all of each kind of span."""
    found: dict[str, dict[str, Any]] = {}
    for span in spans:
        entry = found.setdefault(span.name, {"count": 0, "total_ms": 0.0})
        entry["count"] += 1
        entry["total_ms"] += 1e3 * (span.end_s - span.begin_s)
    return found


def describe(parts: dict[str, dict[str, Any]]) -> str:
    """Return one line about a lane."""
    if not parts:
        return "nothing was recorded"
    return ", ".join(
        f"{name} {p['count']} x {p['total_ms'] / p['count']:.2f} ms" for name, p in parts.items()
    )
