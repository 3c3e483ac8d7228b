"""``sonoran generate``: one prompt, its answer as it comes, and how fast it was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sonoran.cli.common import command, err, print_json
from sonoran.cli.engine import (
    ContextOption,
    CoresOption,
    DraftOption,
    JsonOption,
    ModelOption,
    QuantizeOption,
    SeedOption,
    ThreadsOption,
    load,
)
from sonoran.cli.speculation import (
    AddressOption,
    BackupOption,
    BudgetOption,
    FanOutOption,
    KeyFileOption,
    LeastChanceOption,
    ModeOption,
    SaguaroOption,
    speculative_config,
)
from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.sampling.params import SamplingParams
from sonoran.types import RequestOutput

EXAMPLES = (
    'Examples:  sonoran generate "Reverse a list in Python"  |  '
    'sonoran generate --draft auto "Reverse a list in Python"  |  '
    'sonoran generate --mode ssd -k 4 --temperature 0.7 --seed 1 "Tell a story"  |  '
    'sonoran generate --mode sd --draft draft.gguf "Sort a list in Go"  |  '
    "sonoran generate --file prompt.txt --json  |  echo 'def f(x):' | sonoran generate - --raw"
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("generate", epilog=EXAMPLES)(generate)


@command
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    model: ModelOption = DEFAULT_TARGET,
    mode: ModeOption = None,
    draft: DraftOption = "none",
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "--num-speculative-tokens",
            "-k",
            help="Most tokens drafted for each verification; default 4, in mode auto 8.",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Keep the most likely tokens with this total probability.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep this many most likely tokens; 0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Drop tokens less likely than this share of the best.")] = 0.0,
    presence_penalty: Annotated[float, typer.Option(help="Lower what occurred, -2 to 2.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="Lower what occurred, per time, -2 to 2.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Divide the logits of what occurred.")] = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens to generate.")] = 256,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end token.")] = False,
    seed: SeedOption = None,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw", help="Use the chat template (default if there is one), or the bare text."
        ),
    ] = None,
    verification: Annotated[str | None, typer.Option(help="Rule: coupled (default) or rejection.")] = None,
    threads: ThreadsOption = None,
    cores: CoresOption = None,
    quantize: QuantizeOption = None,
    draft_threads: Annotated[int | None, typer.Option(help="Threads of the draft.")] = None,
    draft_cores: Annotated[str | None, typer.Option(help="Cores of the draft.")] = None,
    draft_quantize: Annotated[str | None, typer.Option(help="Precision of the draft.")] = None,
    draft_vocab: Annotated[int | None, typer.Option(help="Draft only ids below this.")] = None,
    least_chance: LeastChanceOption = None,
    draft_address: AddressOption = None,
    draft_key_file: KeyFileOption = None,
    fan_out: FanOutOption = None,
    budget: BudgetOption = None,
    backup: BackupOption = None,
    saguaro_c: SaguaroOption = None,
    max_model_len: ContextOption = None,
    json: JsonOption = False,
) -> None:
    """Generate an answer to a prompt and stream it; the speed goes to standard error."""
    text = read_prompt(prompt, file)
    params = SamplingParams.from_mapping(
        {
            "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p,
            "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty,
            "repetition_penalty": repetition_penalty, "max_tokens": max_tokens, "stop": stop or (),
            "ignore_eos": ignore_eos, "seed": seed, "verification": verification or "coupled",
        }
    )  # fmt: skip
    speculative = speculative_config(
        mode,
        draft,
        num_speculative_tokens,
        draft_options={
            "threads": draft_threads, "cores": draft_cores, "quantize": draft_quantize, "vocab": draft_vocab,
            "least_chance": least_chance,
        },
        ssd_options={
            "address": draft_address, "key_file": draft_key_file, "fan_out": fan_out, "budget": budget,
            "backup": backup, "saguaro_c": saguaro_c,
        },
    )  # fmt: skip
    if saguaro_c is not None and saguaro_c < 1.0 and (params.greedy or params.verification != "rejection"):
        raise ConfigError(
            f"--saguaro-c {saguaro_c:g} has no effect here; it needs --verification rejection and a "
            "temperature above 0"
        )
    options = {"threads": threads, "cores": cores, "quantize": quantize, "max_model_len": max_model_len}
    with load(model, speculative, **options, max_num_seqs=1) as llm:
        output = stream(llm, encode(llm, text, system, chat), params, quiet=json)
    if json:
        print_json(as_json(output, model))
    else:
        err.print(summary(output.metrics), style="dim", highlight=False, soft_wrap=True)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the prompt from the argument, standard input or a file. Raises ConfigError."""
    if (prompt is None) == (file is None):
        raise ConfigError("give a prompt, - for standard input, or --file; one of them")
    try:
        if file is not None:
            text = file.read_text(encoding="utf-8")
        else:
            text = sys.stdin.read() if prompt == "-" else str(prompt)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompt: {error}") from error
    if not text.strip():
        raise ConfigError("the prompt is empty")
    return text


def encode(llm: LLM, text: str, system: str | None, chat: bool | None) -> list[int]:
    """Return the prompt's token ids, under the chat template unless there is none or it is unwanted."""
    use_chat = llm.tokenizer.has_chat_template if chat is None else chat
    if not use_chat:
        if system is not None:
            raise ConfigError("--system needs the chat template; leave out --raw, or use an instruct model")
        ids: list[int] = llm.tokenizer.encode(text)
        return ids
    messages = [{"role": "system", "content": system}] if system is not None else []
    chat_ids: list[int] = llm.tokenizer.encode_chat([*messages, {"role": "user", "content": text}])
    return chat_ids


def stream(llm: LLM, prompt: list[int], params: SamplingParams, *, quiet: bool) -> RequestOutput:
    """Generate; write the text to standard output as it comes, unless `quiet`. Return the result."""
    shown = 0
    for output in llm.stream(prompt, params):
        text = output.outputs[0].text
        if not quiet:
            sys.stdout.write(text[shown:])
            sys.stdout.flush()
        shown = len(text)
    if not quiet:
        sys.stdout.write("\n")
    return output


def as_json(output: RequestOutput, model: str) -> dict[str, Any]:
    """Return the JSON document of one answer."""
    completion = output.outputs[0]
    prompt_tokens, new_tokens = len(output.prompt_token_ids), len(completion.token_ids)
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": new_tokens,
            "total_tokens": prompt_tokens + new_tokens,
        },
        "model": model,
        "metrics": output.metrics,
    }


def summary(metrics: dict[str, Any]) -> str:
    """Return one line: tokens, time to first token, time per output token, tokens per second, acceptance, hits."""
    parts = [f"{metrics['num_generated_tokens']} tokens"]
    if metrics["ttft_s"] is not None:
        parts.append(f"first after {metrics['ttft_s']:.2f} s")
    if metrics["tpot_s"] is not None:
        parts.append(f"{metrics['tpot_s'] * 1000:.1f} ms per token")
    parts.append(f"{metrics['tokens_per_s']:.1f} tokens/s")
    speculation = metrics.get("speculative_decoding")
    if speculation:
        parts.append(
            f"{speculation['draft_acceptance_rate']:.0%} of drafted tokens accepted, "
            f"{speculation['mean_acceptance_length']:.2f} tokens per verification"
        )
        if speculation.get("num_cache_lookups"):
            parts.append(f"{speculation['cache_hit_rate']:.0%} hits in the speculation cache")
    return ", ".join(parts)
