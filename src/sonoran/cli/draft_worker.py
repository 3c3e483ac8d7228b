"""``sonoran draft-worker``: serve a draft model to engines, on this machine or others."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from sonoran.cli.common import command, err, out, print_json
from sonoran.config import DraftQuantize, WorkerConfig, parse_cores
from sonoran.errors import ConfigError
from sonoran.models.registry import DEFAULT_DRAFT
from sonoran.ssd.model import load_draft_model
from sonoran.worker.__main__ import pin_process
from sonoran.worker.guard import Guard
from sonoran.worker.keys import keygen, load_keys
from sonoran.worker.server import serve
from sonoran.worker.session import draft_service
from sonoran.worker.transport import DEFAULT_HEARTBEAT_S, MAX_HEARTBEAT_S, MIN_HEARTBEAT_S, check_address

EXAMPLES = (
    "Examples:  sonoran draft-worker --bind tcp://127.0.0.1:5757 --cores 1  |  "
    "sonoran draft-worker --model draft.gguf --bind tcp://0.0.0.0:5757 --key-file keys/worker.key"
)
KEYGEN_EXAMPLES = "Example:  sonoran draft-worker keygen --out keys"

app = typer.Typer(
    help="Serve a draft model to engines, on this machine or others.",
    invoke_without_command=True,
    epilog=EXAMPLES,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def register(root: typer.Typer) -> None:
    """Add the command group to the application."""
    root.add_typer(app, name="draft-worker")


@app.callback(epilog=EXAMPLES)
@command
def draft_worker(
    context: typer.Context,
    model: Annotated[
        str, typer.Option("--model", "-m", help="Draft: name, file or directory.")
    ] = DEFAULT_DRAFT,
    bind: Annotated[
        str, typer.Option("--bind", help="Where to listen: tcp://HOST:PORT or ipc://PATH.")
    ] = "tcp://127.0.0.1:5757",
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="worker.key of keygen; needed beyond this machine.")
    ] = None,
    cores: Annotated[str | None, typer.Option("--cores", help="Run on these cores only: 0,2-5.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads; default: all cores.")] = None,
    quantize: Annotated[
        str | None,
        typer.Option(
            "--quantize",
            help="Precision: int3, int4, int8, bf16, file. Default int4; int3 for the default draft.",
        ),
    ] = None,
    draft_vocab: Annotated[
        int | None, typer.Option("--draft-vocab", help="Propose only ids below this, and special tokens.")
    ] = None,
    num_kv_blocks: Annotated[
        int, typer.Option("--num-kv-blocks", help="KV memory of all clients, in blocks of 16 tokens.")
    ] = WorkerConfig.num_kv_blocks,
    max_rows: Annotated[
        int, typer.Option("--max-rows", help="Rows of one pass over a prompt; a reply waits for one pass.")
    ] = WorkerConfig.max_rows,
    heartbeat: Annotated[
        float, typer.Option("--heartbeat", help="Seconds; clients silent for 5 of these are dropped.")
    ] = DEFAULT_HEARTBEAT_S,
    json: Json = False,
) -> None:
    """Serve a draft model until Ctrl-C or SIGTERM. Engines name the address in their configuration."""
    if context.invoked_subcommand is not None:
        return
    config = WorkerConfig(
        model=model,
        cores=parse_cores(cores),
        threads=threads,
        quantize=cast("DraftQuantize | None", quantize),
        draft_vocab=draft_vocab,
        num_kv_blocks=num_kv_blocks,
        max_rows=max_rows,
    )
    if not MIN_HEARTBEAT_S <= heartbeat <= MAX_HEARTBEAT_S:
        raise ConfigError(
            f"heartbeat must be from {MIN_HEARTBEAT_S:g} to {MAX_HEARTBEAT_S:g} seconds, got {heartbeat}"
        )
    keys = load_keys(key_file, "worker") if key_file is not None else None
    check_address(bind, keys)
    with Guard([signal.SIGINT, signal.SIGTERM]) as guard:
        guard.before_exit(lambda: err.print("interrupted"))
        pin_process(config.cores)
        with load_bar(model) as progress:
            draft = load_draft_model(config, progress)
        facts = {
            "address": bind,
            "encrypted": keys is not None,
            "model": draft.name,
            "fingerprint": draft.fingerprint,
            "context_length": draft.context_length,
        }
        try:
            serve(
                draft_service(draft),
                bind,
                keys=keys,
                heartbeat_s=heartbeat,
                stop_fds=(guard.listen(),),
                on_ready=lambda: show(facts, json),
                before_exit=guard.before_exit,
            )
        finally:
            draft.close()


@app.command("keygen", epilog=KEYGEN_EXAMPLES)
@command
def make_keys(
    folder: Annotated[Path, typer.Option("--out", help="Folder for worker.key and client.key.")],
    json: Json = False,
) -> None:
    """Make keys: worker.key stays with the worker, client.key goes to the engines. Only you can read them."""
    worker, client = keygen(folder)
    if json:
        print_json({"worker": str(worker), "client": str(client)})
    else:
        out.print(f"for the worker:  {worker}", highlight=False, soft_wrap=True)
        out.print(f"for the engines: {client}", highlight=False, soft_wrap=True)


def show(facts: dict[str, Any], as_json: bool) -> None:
    """Say that clients can connect."""
    if as_json:
        print_json(facts)
        out.file.flush()
    else:
        secured = "encrypted" if facts["encrypted"] else "not encrypted"
        out.print(
            f"serving {facts['model']} at {facts['address']} ({secured}); Ctrl-C ends it",
            highlight=False,
            soft_wrap=True,
        )


@contextmanager
def load_bar(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show how far the weights are loaded, on a terminal only."""
    if not err.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=err, transient=True) as bars:
        task = bars.add_task(f"loading {name}", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
