"""``sonoran generate``: one prompt, its answer as it comes, and how fast it was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sonoran.cli.common import JsonOption, command, examples, print_json, remark
from sonoran.cli.options import (
    ENGINE,
    SAMPLING,
    SPECULATION,
    Given,
    ModelOption,
    decoding,
    load,
    mode_option,
    offers,
)
from sonoran.config import EngineConfig
from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.sampling.params import SamplingParams
from sonoran.types import RequestOutput

EXAMPLES = examples(
    'sonoran generate "Reverse a list in Python"',
    'sonoran generate --draft auto "Reverse a list in Python"',
    'sonoran generate --mode ssd --temperature 0.7 --seed 1 "Tell a story"',
    'sonoran generate --mode sd --draft draft.gguf "Sort a list in Go"',
    "sonoran generate --file prompt.txt --json",
    "echo 'def f(x):' | sonoran generate - --raw",
)

PromptArgument = Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")]
FileOption = Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")]
SystemOption = Annotated[str | None, typer.Option(help="System message of the chat.")]
ChatOption = Annotated[
    bool | None,
    typer.Option("--chat/--raw", help="Use the chat template (default if there is one), or the bare text."),
]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("generate", epilog=EXAMPLES)(generate)


@command
@offers(SAMPLING, SPECULATION, ENGINE, temperature=0.0, max_tokens=256)
def generate(
    prompt: PromptArgument = None,
    file: FileOption = None,
    model: ModelOption = DEFAULT_TARGET,
    system: SystemOption = None,
    chat: ChatOption = None,
    mode: Annotated[str | None, mode_option("; default: ar without --draft, auto with it")] = None,
    *,
    given: Given,
    json: JsonOption = False,
) -> None:
    """Generate an answer to a prompt and stream it; the speed goes to standard error."""
    text = read_prompt(prompt, file)
    params, speculative = decoding(mode, given)
    with load(model, speculative, **given[EngineConfig], max_num_seqs=1) as llm:
        ids = llm.tokenizer.encode_prompt(text, system=system, chat=chat)
        output = stream(llm, ids, params, quiet=json)
    if json:
        print_json(as_json(output, model))
    else:
        remark(summary(output.metrics))


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the prompt from the argument, standard input or a file. Raises ConfigError."""
    if (prompt is None) == (file is None):
        raise ConfigError("give a prompt, - for standard input, or --file; one of them")
    try:
        if file is not None:
            text = file.read_text(encoding="utf-8-sig")  # without the mark that Windows puts in front
        else:
            text = sys.stdin.read().removeprefix("\ufeff") if prompt == "-" else str(prompt)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompt: {error}") from error
    if not text.strip():
        raise ConfigError("the prompt is empty")
    return text


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
        parts.append(f"{metrics['tpot_s'] * 1000:.1f} ms per token, {metrics['tokens_per_s']:.1f} tokens/s")
    speculation = metrics.get("speculative_decoding")
    if speculation:
        parts.append(
            f"{speculation['draft_acceptance_rate']:.0%} of drafted tokens accepted, "
            f"{speculation['mean_acceptance_length']:.2f} tokens per verification"
        )
        if speculation.get("num_cache_lookups"):
            parts.append(f"{speculation['cache_hit_rate']:.0%} hits in the speculation cache")
    return ", ".join(parts)
