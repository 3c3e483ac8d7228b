"""``sonoran draft-worker``: serve a draft model to engines, on this machine or others."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sonoran.cli.common import JsonOption, command, examples, out, print_json, remark, say
from sonoran.cli.options import Given, offers, options_of
from sonoran.cli.progress import load_progress
from sonoran.config import WorkerConfig
from sonoran.errors import ConfigError
from sonoran.models.registry import DEFAULT_DRAFT
from sonoran.models.source import resolve_model
from sonoran.ssd.model import load_draft_model
from sonoran.worker.__main__ import pin_process
from sonoran.worker.guard import Guard
from sonoran.worker.keys import keygen, load_keys
from sonoran.worker.server import serve
from sonoran.worker.session import draft_service
from sonoran.worker.transport import DEFAULT_HEARTBEAT_S, MAX_HEARTBEAT_S, MIN_HEARTBEAT_S, check_address

EXAMPLES = examples(
    "sonoran draft-worker --bind tcp://127.0.0.1:5757 --cores 1",
    "sonoran draft-worker --bind tcp://0.0.0.0:5757 --key-file keys/worker.key",
)
KEYGEN_EXAMPLES = examples("sonoran draft-worker keygen --out keys")

app = typer.Typer(
    help="Serve a draft model to engines, on this machine or others.",
    invoke_without_command=True,
    epilog=EXAMPLES,
)


def register(root: typer.Typer) -> None:
    """Add the command group to the application."""
    root.add_typer(app, name="draft-worker")


@app.callback(epilog=EXAMPLES)
@command
@offers(options_of(WorkerConfig, without=("model",), own_names=True))
def draft_worker(
    context: typer.Context,
    model: Annotated[
        str, typer.Option("--model", "-m", help="Draft: a name, org/repo of the hub, a file or directory.")
    ] = DEFAULT_DRAFT,
    bind: Annotated[
        str, typer.Option("--bind", help="Where to listen: tcp://HOST:PORT or ipc://PATH.")
    ] = "tcp://127.0.0.1:5757",
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="worker.key of keygen; needed beyond this machine.")
    ] = None,
    *,
    given: Given,
    heartbeat: Annotated[
        float, typer.Option("--heartbeat", help="Seconds; clients silent for 5 of these are dropped.")
    ] = DEFAULT_HEARTBEAT_S,
    json: JsonOption = False,
) -> None:
    """Serve a draft model until Ctrl-C or SIGTERM. Engines name the address in their configuration."""
    if context.invoked_subcommand is not None:
        return
    config = WorkerConfig(model=model, **given[WorkerConfig])
    if not MIN_HEARTBEAT_S <= heartbeat <= MAX_HEARTBEAT_S:
        raise ConfigError(
            f"heartbeat must be from {MIN_HEARTBEAT_S:g} to {MAX_HEARTBEAT_S:g} seconds, got {heartbeat}"
        )
    keys = load_keys(key_file, "worker") if key_file is not None else None
    check_address(bind, keys)
    with Guard([signal.SIGINT, signal.SIGTERM]) as guard:
        guard.before_exit(lambda: remark("interrupted"))
        with load_progress() as reporting:
            path = resolve_model(model, progress=reporting.pull)
            loading = reporting.load
            draft = load_draft_model(
                replace(config, model=str(path)),
                None if loading is None else lambda done, total: loading(path.name, done, total),
            )
        pin_process(config.cores)
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
    json: JsonOption = False,
) -> None:
    """Make keys: worker.key stays with the worker, client.key goes to the engines. Only you can read them."""
    worker, client = keygen(folder)
    if json:
        print_json({"worker": str(worker), "client": str(client)})
    else:
        say(f"for the worker:  {worker}")
        say(f"for the engines: {client}")


def show(facts: dict[str, Any], as_json: bool) -> None:
    """Say that clients can connect."""
    if as_json:
        print_json(facts)
        out.file.flush()
    else:
        secured = "encrypted" if facts["encrypted"] else "not encrypted"
        say(f"serving {facts['model']} at {facts['address']} ({secured}); Ctrl-C ends it")
