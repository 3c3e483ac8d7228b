"""Models of the hub: fetched by name into the cache, found there without a network, listed and removed.

A repository's files lie in ``hub/org--repo`` of the cache under the names that they have on the hub. A list beside
them, written last, says which are whole: only what it names, in full size, counts as a model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from sonoran.errors import DownloadError, ModelError
from sonoran.models.cache import CHUNK, cache_dir, file_sha256, is_unchanged, mark_path, tree_bytes
from sonoran.models.download import RESERVE, Progress, PullEvent, Stage, locked, refuse_full_disk, writing
from sonoran.models.hf_config import read_hf_config
from sonoran.models.hub import UnreachableError, fetch_file, list_repository
from sonoran.models.registry import MODELS
from sonoran.models.repository import CONFIG, Choice, HubName, RemoteFile, choose, ranked
from sonoran.models.supported import gguf_architectures
from sonoran.models.untrusted import read_json, refusing

LIST = "sonoran.json"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model of the hub that lies in the cache. ``name`` names exactly this one."""

    name: HubName
    folder: Path
    files: tuple[RemoteFile, ...]

    @property
    def path(self) -> Path:
        """What opens it: the first GGUF file, or the folder of safetensors."""
        return self.folder if self.name.quant is None else self.folder / self.files[0].name

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    @property
    def whole(self) -> bool:
        """True while all its files are there in their full size."""
        paths = [(self.folder / file.name, file.size) for file in self.files]
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def verify(self) -> bool:
        """Hash its large files again; true when they are as the hub had them."""
        return all(
            file.sha256 is None or file_sha256(self.folder / file.name) == file.sha256 for file in self.files
        )


def repository_folder(repository: str, cache: Path) -> Path:
    """Where the files of a repository lie."""
    return cache / "hub" / repository.replace("/", "--")


def cached_models(cache: Path) -> list[CachedModel]:
    """All whole models of the hub in the cache, by name."""
    folders = sorted((cache / "hub").glob("*/" + LIST))
    return [model for file in folders for model in _listed(file.parent) if model.whole]


def unfinished(cache: Path) -> dict[str, int]:
    """Bytes of each repository that belong to no whole model: what interrupted pulls left."""
    left = {}
    for folder in sorted(path for path in (cache / "hub").glob("*--*") if path.is_dir()):
        owned = {(file.name, file.size) for model in _listed(folder) for file in model.files if model.whole}
        beside = tree_bytes(folder) - sum(size for _, size in owned)
        if beside > 1 << 20:  # the rest is bookkeeping
            left[folder.name.replace("--", "/", 1)] = beside
    return left


def find_cached(name: HubName, cache: Path) -> CachedModel | None:
    """Return the model of that name from the cache; without a quantisation, the preferred one of those there."""
    models = [model for model in _listed(repository_folder(name.repository, cache)) if model.whole]
    if name.quant is not None:
        wanted = name.quant.lower()
        return next((model for model in models if wanted in _names(model)), None)
    by_quant = {model.name.quant or "": model for model in models}
    return next((by_quant[quant] for quant in ranked(by_quant)), None)


def find_hub_model(name: HubName, cache: Path) -> CachedModel:
    """Return the model of that name from the cache. Raises DownloadError: what is there, and how to get it."""
    found = find_cached(name, cache)
    if found is not None:
        return found
    near = [str(model.name) for model in cached_models(cache) if model.name.repository == name.repository]
    there = f" (there is {', '.join(near)})" if near else ""
    raise DownloadError(f"{name} is not in the cache{there}; get it with: sonoran models pull {name}")


def _names(model: CachedModel) -> set[str]:
    files = {file.name.lower() for file in model.files}
    return {(model.name.quant or "").lower()} | files | {PurePosixPath(file).name for file in files}


def pull_from_hub(
    name: HubName,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    endpoint: str | None = None,
) -> CachedModel:
    """Return a model of the hub, fetching it if the cache has it not.

    Files are fetched one after another, go on where an interrupted transfer stopped, and are taken only with the
    right hash. Processes that pull from the same repository wait for each other.
    Raises DownloadError: not reachable (naming what lies in the cache), no such repository or quantisation (naming
    the nearest), gated, a wrong hash, too little disk space. Raises ModelError before weights are fetched when the
    repository's architecture does not load.
    """
    folder = cache_dir() if cache is None else cache

    def tell(stage: Stage, done: int, total: int, detail: str = "") -> None:
        if progress is not None:
            progress(PullEvent(str(name), stage, done, total, "hub", detail))

    found = find_cached(name, folder)
    if found is not None:
        _refuse_changed(found, tell)
        return found

    tell("trying", 0, 0)
    try:
        repository = list_repository(name.repository, endpoint=endpoint)
    except UnreachableError as error:
        raise DownloadError(
            f"{name}: no such file here, and the hub is {error}; {_at_hand(folder)}"
        ) from error
    choice = choose(repository, name.quant)
    if choice.quant is not None and repository.architecture not in (None, *gguf_architectures()):
        raise ModelError(
            f"{name}: architecture {repository.architecture!r} is not supported; "
            f"supported: {', '.join(gguf_architectures())}"
        )
    tell(
        "chosen", 0, choice.size, f"{choice.quant or 'safetensors'}, {choice.size / 1e9:.2f} GB: {choice.why}"
    )
    target = repository_folder(name.repository, folder)
    with writing(folder, str(choice.name), choice.size):
        target.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f"{target.name}.lock")
        with locked(lock, lambda: tell("waiting", 0, choice.size)):
            found = find_cached(choice.name, folder)
            return _fetch(choice, target, tell, endpoint) if found is None else found


def _fetch(choice: Choice, folder: Path, tell: Callable[..., None], endpoint: str | None) -> CachedModel:
    refuse_full_disk(str(choice.name), folder, max(0, choice.size - tree_bytes(folder)) + RESERVE)
    done = 0
    for file in choice.files:
        path = folder / file.name
        if not (path.is_file() and path.stat().st_size == file.size):
            path.unlink(missing_ok=True)  # the client would take a damaged file for the one that it fetched

            def report(count: int, before: int = done) -> None:
                tell("fetching", before + count, choice.size)

            path = fetch_file(choice.repository, file, folder, report, endpoint=endpoint)
        _check(file, path, partial(_tell_from, tell, done, choice.size))
        if file.name == CONFIG:
            read_hf_config(path)  # refuses what does not load before gigabytes are fetched
        done += file.size
    model = CachedModel(choice.name, folder, choice.files)
    others = [other for other in _listed(folder) if other.name != model.name]
    _write_list(folder, choice.repository.name, [*others, model])
    tell("done", done, choice.size)
    return model


def _refuse_changed(model: CachedModel, tell: Callable[..., None]) -> None:
    """Raise DownloadError when a cached file is not what it was; each is hashed once (see ``is_unchanged``)."""
    done = 0
    for file in model.files:
        path = model.folder / file.name
        report = partial(_tell_from, tell, done, model.size)
        with refusing(path):
            if file.sha256 is not None and not is_unchanged(path, file.sha256, report):
                raise DownloadError(
                    f"{path} has the right size, but its SHA-256 is another one than when it was fetched. Remove it "
                    f"with: sonoran models rm {model.name}; then it is fetched again"
                )
        done += file.size


def _tell_from(tell: Callable[..., None], before: int, total: int, count: int) -> None:
    tell("checking", before + count, total)


def _check(file: RemoteFile, path: Path, report: Callable[[int], None]) -> None:
    """Compare size and hash; a wrong file is deleted, so that the next try does not go on from it."""
    size = path.stat().st_size
    if size != file.size:
        path.unlink()
        raise DownloadError(
            f"{file.name} came with {size} bytes, expected {file.size}; it was deleted, try again"
        )
    if file.sha256 is not None:
        right = is_unchanged(path, file.sha256, report)
    else:
        right = file.blob is None or _git_hash(path, size) == file.blob
    if not right:
        path.unlink()
        kind = f"SHA-256 than {file.sha256}" if file.sha256 is not None else f"git hash than {file.blob}"
        raise DownloadError(f"{file.name} came with another {kind}; it was deleted, try again")


def _git_hash(path: Path, size: int) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def remove_from_cache(name: HubName, cache: Path) -> int:
    """Delete a model of the hub, or all that the cache has of its repository when no quantisation is named.

    Return the bytes freed. Raises DownloadError while another process pulls from the repository.
    """
    folder = repository_folder(name.repository, cache)
    if not folder.exists():
        return 0

    def refuse() -> None:
        raise DownloadError(
            f"{name.repository} is being pulled by another process; wait for it or stop it first"
        )

    with locked(folder.with_name(f"{folder.name}.lock"), refuse):
        before, kept = tree_bytes(folder), []
        if name.quant is not None:
            kept = [model for model in _listed(folder) if name.quant.lower() not in _names(model)]
            gone = [model for model in _listed(folder) if model not in kept]
            needed = {file.name for model in kept for file in model.files}
            try:
                for file in {file.name for model in gone for file in model.files} - needed:
                    (folder / file).unlink(missing_ok=True)
                    mark_path(folder / file).unlink(missing_ok=True)
                _write_list(folder, name.repository, kept)
            except OSError as error:
                raise DownloadError(f"{name} could not be removed ({error})") from error
            if not gone:
                return 0
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        return before - tree_bytes(folder)


def _at_hand(cache: Path) -> str:
    """What can be used without a network."""
    names = [str(model.name) for model in cached_models(cache)]
    names += [entry.name for entry in MODELS.values() if (cache / "models" / entry.file).is_file()]
    shown = f"in the cache: {', '.join(names[:8])}" if names else "the cache is empty"
    return f"pass the path of a GGUF file or model folder, or a model that is here ({shown})"


def _listed(folder: Path) -> list[CachedModel]:
    """Models that the list of a folder names; nothing when there is none or it cannot be read."""
    if not (folder / LIST).is_file():
        return []
    try:
        content = read_json(folder / LIST)
        return [
            CachedModel(
                HubName(str(content["repository"]), model["quant"]),
                folder,
                tuple(RemoteFile(str(f["name"]), int(f["size"]), f.get("sha256")) for f in model["files"]),
            )
            for model in content["models"]
            if model["files"]
        ]
    except (ModelError, KeyError, TypeError, ValueError):
        return []


def _write_list(folder: Path, repository: str, models: list[CachedModel]) -> None:
    content: dict[str, Any] = {
        "repository": repository,
        "models": [
            {
                "quant": model.name.quant,
                "files": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in model.files],
            }
            for model in models
        ],
    }
    new = folder / f"{LIST}.new"
    new.write_text(json.dumps(content, indent=1), encoding="utf-8")
    new.replace(folder / LIST)
