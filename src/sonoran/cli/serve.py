"""``sonoran serve``: OpenAI's interface, metrics and a page over one model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from sonoran.cli.common import JsonOption, command, examples, out, print_json, say
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
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.llm import LLM
from sonoran.models.opening import OpenModel, known_draft
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.models.source import open_model, resolve_model
from sonoran.server.config import KEY_VARIABLE, ServerConfig, read_keys
from sonoran.server.run import bind, fingerprint, serve

EXAMPLES = examples(
    "sonoran serve",
    "sonoran serve --port 9000",
    "sonoran serve -m model.gguf --draft draft.gguf --served-model-name mine",
    "sonoran serve --host 0.0.0.0 --api-key-file keys.txt",
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("serve", epilog=EXAMPLES)(serve_command)


def _of(panel: str, help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel)


@command
@offers(SPECULATION, ENGINE)
def serve_command(
    model: ModelOption = DEFAULT_TARGET,
    mode: ModeOption = None,
    *,
    host: Annotated[str, _of("Server", "Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, _of("Server", "Port; 0 takes any that is free.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, _of("Server", "What clients call the model; may be repeated.")
    ] = None,
    api_key_file: Annotated[
        Path | None, _of("Server", f"File with keys, one a line; {KEY_VARIABLE} is read, too.")
    ] = None,
    insecure_no_key: Annotated[bool, _of("Server", "Serve other machines without keys.")] = False,
    cors_origin: Annotated[
        list[str] | None, _of("Server", "Origin whose pages may use the server; may be repeated.")
    ] = None,
    max_num_seqs: Annotated[int, _of("Limits", "Texts generated at once.")] = 16,
    max_queue: Annotated[int, _of("Limits", "Texts that may wait beside them.")] = 64,
    max_queued_tokens: Annotated[int, _of("Limits", "Tokens of prompts that may wait.")] = 65_536,
    queue_timeout: Annotated[float, _of("Limits", "Seconds that a request may wait.")] = 60.0,
    request_timeout: Annotated[float, _of("Limits", "Seconds that a request may take.")] = 600.0,
    drain_timeout: Annotated[float, _of("Limits", "Seconds that running requests get at the end.")] = 30.0,
    max_body: Annotated[int, _of("Limits", "Bytes of a request.")] = 4 * 2**20,
    keep_alive: Annotated[
        float, _of("Limits", "Seconds after which a silent stream says that it lives.")
    ] = 15.0,
    ssl_certfile: Annotated[Path | None, _of("Server", "Certificate, for https.")] = None,
    ssl_keyfile: Annotated[Path | None, _of("Server", "Its key.")] = None,
    ui: Annotated[bool, _of("Server", "Whether there is a page at /.", "--ui/--no-ui")] = True,
    given: Given,
    json: JsonOption = False,
) -> None:
    """Serve a model over HTTP with OpenAI's interface until Ctrl-C or SIGTERM; / is a page to try it."""
    speculative = speculation(mode, given[SpeculativeConfig])
    config = ServerConfig(
        names=tuple(served_model_name or [Path(model).stem if "/" in model else model]),
        host=host,
        port=port,
        keys=read_keys(api_key_file, os.environ.get(KEY_VARIABLE)),
        insecure_no_key=insecure_no_key,
        cors_origins=tuple(cors_origin or ()),
        max_queue=max_queue,
        max_queued_tokens=max_queued_tokens,
        queue_timeout=queue_timeout,
        request_timeout=request_timeout,
        drain_timeout=drain_timeout,
        max_body=max_body,
        keep_alive=keep_alive,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        page=ui,
    )
    with (
        bind(config) as taken,
        load(model, speculative, **given[EngineConfig], max_num_seqs=max_num_seqs) as llm,
    ):
        engine = given[EngineConfig]
        known = facts(llm, model, speculative, engine.get("quantize"), engine.get("device", "cpu"))
        serve(llm, config, taken, known, on_ready=lambda url: _show(url, config, known, json))


def facts(
    llm: LLM, model: str, speculative: SpeculativeConfig | None, quantize: str | None, device: str = "cpu"
) -> dict[str, Any]:
    """Return what clients may know of model and mode; no paths."""
    path = resolve_model(model)
    auto = llm.statistics().get("drafter", {}).get("auto", {})
    draft = speculative.model if speculative is not None else None
    if draft == "auto" or (draft is None and "acceptance" in auto):
        draft = known_draft(OpenModel(open_model(path), llm.tokenizer))
    return {
        "fingerprint": fingerprint(path, quantize, device),
        "model": Path(model).name,
        "mode": speculative.method if speculative is not None else "ar",
        "draft": Path(draft).name if draft else None,
        "quantize": quantize,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _show(url: str, config: ServerConfig, known: dict[str, Any], as_json: bool) -> None:
    """Say where clients find the server."""
    if as_json:
        print_json({"url": url, "api": f"{url}/v1", "models": list(config.names), **known})
    else:
        draft = f" with draft {known['draft']}" if known["draft"] else ""
        say(f"{config.names[0]} ({known['mode']}{draft}) at {url} - the API at {url}/v1; Ctrl-C ends it")
    out.file.flush()
