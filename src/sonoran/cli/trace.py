"""``sonoran trace``: what target and draft did when, for Perfetto or chrome://tracing."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sonoran.cli.answer import generate_answer, summary, write_text
from sonoran.cli.common import JsonOption, command, examples, print_json, remark, say, write
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
from sonoran.cli.prompt import (
    ChatOption,
    FilesOption,
    PromptArgument,
    SystemOption,
    piped_input,
    read_prompt,
)
from sonoran.config import EngineConfig
from sonoran.engine.trace import Span, chrome_trace
from sonoran.errors import ConfigError
from sonoran.models.registry import DEFAULT_TARGET

EXAMPLES = examples(
    'sonoran trace "Reverse a list in Python" --out trace.json',
    "sonoran trace -f prompt.txt --mode sd -n 32",
    'sonoran trace "hello" --draft-address tcp://127.0.0.1:5757 --json',
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("trace", epilog=EXAMPLES)(trace)


@command
@offers(SAMPLING, SPECULATION, ENGINE, temperature=0.0, max_tokens=64, seed=0)
def trace(
    prompt: PromptArgument = None,
    file: FilesOption = None,
    target_file: Annotated[Path, typer.Option("--out", "-o", help="Where the trace goes.")] = Path(
        "trace.json"
    ),
    model: ModelOption = DEFAULT_TARGET,
    system: SystemOption = None,
    chat: ChatOption = None,
    mode: Annotated[str, mode_option()] = "ssd",
    *,
    given: Given,
    json: JsonOption = False,
) -> None:
    """Generate an answer and write a trace of target and draft worker; the text goes to standard output.

    Open the file at https://ui.perfetto.dev or chrome://tracing.
    """
    text = read_prompt(prompt, file or (), piped_input(wanted=prompt == "-"))
    params, config = decoding(mode, given)
    check_writable(target_file)
    with load(model, config, **given[EngineConfig], max_num_seqs=1) as llm:
        ids = llm.tokenizer.encode_prompt(text, system=system, chat=chat)
        llm.start_trace()
        answer = generate_answer(llm, ids, params, None if json else write_text)
        lanes = llm.end_trace()
        length = llm.max_model_len
    about = {
        "model": model,
        "speculative_config": None if config is None else asdict(config),
        "tokens": params.max_tokens,
    }
    document = jsonlib.dumps(chrome_trace(lanes, about), allow_nan=False) + "\n"
    write(target_file, document.encode("utf-8"))
    parts = {lane: totals(spans) for lane, spans in lanes.items()}
    if json:
        text = answer.text
        print_json({"file": str(target_file), "lanes": parts, "text": text, "metrics": answer.metrics})
        return
    say("")
    remark(summary(answer, params, length))
    for lane, total in parts.items():
        remark(f"{lane}: {describe(total)}")
    remark(f"{target_file} opens at https://ui.perfetto.dev")


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
