"""What commands that load models share: options in common, progress bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from sonoran.cli.common import err
from sonoran.cli.pulling import pull_progress
from sonoran.llm import LLM
from sonoran.models.opening import Reporting

MODEL = "Model: a known name (sonoran models list), a GGUF file, or a model directory."
DRAFT = "What drafts: none, auto (the default draft), ngram, or a model."

ModelOption = Annotated[str, typer.Option("--model", "-m", help=MODEL)]
DraftOption = Annotated[str, typer.Option("--draft", "-d", help=DRAFT)]
TokensOption = Annotated[
    int, typer.Option("--num-speculative-tokens", "-k", help="Most tokens drafted for each verification.")
]
ThreadsOption = Annotated[int | None, typer.Option("--threads", help="Threads; default: all cores.")]
CoresOption = Annotated[str | None, typer.Option("--cores", help="Pin threads to these cores: 0,2-5.")]
QuantizeOption = Annotated[
    str | None, typer.Option("--quantize", help="Lower precision: bf16, int8 or int4.")
]
ContextOption = Annotated[
    int | None, typer.Option("--max-model-len", help="Tokens of prompt and output together.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed; the same seed gives the same text.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@contextmanager
def load_progress(console: Console = err) -> Iterator[Reporting]:
    """Show bars for models that are fetched and for weights that are read, on a terminal only."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with pull_progress(console) as pulling:
        bars = Progress(*columns, console=console, transient=True)
        tasks: dict[str, Any] = {}

        def loading(name: str, done: int, total: int) -> None:
            if not console.is_terminal:
                return
            bars.start()
            if name not in tasks:
                tasks[name] = bars.add_task(f"loading {name}", total=total)
            bars.update(tasks[name], completed=done)

        try:
            yield Reporting(pull=pulling, load=loading)
        finally:
            if tasks:  # without a terminal, stopping prints an empty line
                bars.stop()


def load(model: str, speculative: dict[str, Any] | None, **options: Any) -> LLM:
    """Load the models with progress bars; options left at None take the engine's defaults.

    Method auto says in one line what it chose, and why.
    """
    given = {key: value for key, value in options.items() if value is not None}
    with load_progress() as reporting:
        llm = LLM(model, speculative_config=speculative, reporting=reporting, **given)
    if speculative is not None and speculative.get("method") == "auto":
        chosen = llm.statistics().get("drafter", {}).get("auto", {})
        err.print(f"auto: {chosen.get('reason', 'AR')}", style="dim", highlight=False, soft_wrap=True)
    return llm
