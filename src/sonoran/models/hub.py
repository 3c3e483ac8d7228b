"""Talking with the model hub: what a repository has, fetching a file of it, and what a refusal means."""

from __future__ import annotations

import difflib
import errno
import inspect
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sonoran.errors import DownloadError
from sonoran.models.registry import ModelEntry
from sonoran.models.repository import RemoteFile, Repository
from sonoran.models.untrusted import one_line

CONNECT_SECONDS = 2.0
"""Without a network this is what a user waits for."""
REACH_SECONDS = 6.0
"""For a first answer of a hub that is there."""

T = TypeVar("T")


class UnreachableError(DownloadError):
    """The hub cannot be asked at all: no network, or switched off."""


def list_repository(
    name: str, *, endpoint: str | None = None, reach_seconds: float = REACH_SECONDS
) -> Repository:
    """Ask the hub for the files of a repository, their sizes and hashes.

    Raises UnreachableError, and DownloadError for a repository that is not there (naming the nearest), private or
    gated (saying what to type).
    """
    where = _reach(endpoint)
    try:
        found = _within(
            reach_seconds, lambda: _api(where).model_info(name, files_metadata=True, timeout=reach_seconds)
        )
    except Exception as error:
        raise _explained(error, name, where) from error
    gguf = getattr(found, "gguf", None) or {}
    return Repository(
        name,
        found.sha or "main",
        tuple(_remote_file(file) for file in found.siblings or () if _harmless(file.rfilename)),
        bool(found.gated),
        gguf.get("architecture") if isinstance(gguf, dict) else None,
    )


def _harmless(name: str) -> bool:
    """False for a name that would lead out of its folder."""
    parts = name.split("/")
    return not ("\\" in name or ":" in name or any(part in ("", ".", "..") for part in parts))


def _remote_file(file: Any) -> RemoteFile:
    lfs = file.lfs
    sha256 = (lfs.get("sha256") if isinstance(lfs, dict) else lfs.sha256) if lfs else None
    return RemoteFile(file.rfilename, int(file.size or 0), sha256, file.blob_id if sha256 is None else None)


def fetch_file(
    repository: Repository,
    file: RemoteFile,
    folder: Path,
    report: Callable[[int], None],
    *,
    endpoint: str | None = None,
) -> Path:
    """Fetch one file below ``folder`` and return it, unchecked; an interrupted transfer goes on later.

    ``report`` receives the bytes done. Raises DownloadError.
    """
    import huggingface_hub

    where = endpoint or huggingface_hub.constants.ENDPOINT
    options = _download_options(folder, where, REACH_SECONDS, report)
    try:
        return Path(
            huggingface_hub.hf_hub_download(repository.name, file.name, revision=repository.commit, **options)
        )
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        what = "the download broke off; what has come is kept, the same command goes on from there"
        raise _explained(error, repository.name, where, what) from error


def fetch_from_hub(
    entry: ModelEntry,
    work: Path,
    report: Callable[[int], None],
    *,
    endpoint: str | None = None,
    reach_seconds: float = REACH_SECONDS,
) -> Path:
    """Download ``entry`` below ``work`` and return the file; an interrupted download goes on later.

    ``report`` receives the bytes done. Raises DownloadError when the hub is switched off (HF_HUB_OFFLINE),
    does not answer within ``reach_seconds``, has another file under that name, or the transfer fails.
    """
    import huggingface_hub

    if entry.hub is None:
        raise DownloadError("the model is not there")
    where = _reach(endpoint)
    repository, file = entry.hub.repository, entry.hub.file
    url = huggingface_hub.hf_hub_url(repository, file, endpoint=where)
    try:
        # A name server that never answers is not covered by the client's own timeout.
        found = _within(
            reach_seconds, lambda: huggingface_hub.get_hf_file_metadata(url, timeout=reach_seconds)
        )
    except Exception as error:
        raise DownloadError(f"not reachable ({_reason(error)})") from error
    if found.size is not None and found.size != entry.size:
        raise DownloadError(f"{repository}/{file} has {found.size} bytes there, expected {entry.size}")
    options = _download_options(work / "hub", where, reach_seconds, report)
    try:
        return Path(huggingface_hub.hf_hub_download(repository, file, **options))
    except Exception as error:
        raise DownloadError(f"the download failed ({_reason(error)})") from error


def _download_options(
    folder: Path, endpoint: str, reach_seconds: float, report: Callable[[int], None]
) -> dict[str, Any]:
    import huggingface_hub

    options: dict[str, Any] = {"local_dir": folder, "endpoint": endpoint, "etag_timeout": reach_seconds}
    if "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        options["tqdm_class"] = _progress_class(report)
    return options


def _api(endpoint: str) -> Any:
    import huggingface_hub

    return huggingface_hub.HfApi(endpoint=endpoint)


def _reach(endpoint: str | None) -> str:
    """Return the hub's address once something listens there. Raises UnreachableError, soon."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise UnreachableError("switched off by HF_HUB_OFFLINE")
    where = endpoint or constants.ENDPOINT
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in ("https_proxy", "all_proxy")):
        return where  # only the proxy can tell
    parts = urlsplit(where)
    address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        # In a thread: a name server that never answers knows no timeout.
        _within(CONNECT_SECONDS, lambda: socket.create_connection(address, CONNECT_SECONDS).close())
    except Exception as error:
        raise UnreachableError(f"not reachable ({_reason(error)})") from error
    return where


def _explained(error: Exception, name: str, endpoint: str, what: str = "not reachable") -> DownloadError:
    """What a refusal of the hub means, and what to do about it."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    log_in = "hf auth login (or set HF_TOKEN=hf_...)"
    if isinstance(error, GatedRepoError):
        return DownloadError(
            f"{name} is gated: its owner wants terms accepted first. Open {endpoint}/{name}, accept them, make a "
            f"token under {endpoint}/settings/tokens, then type: {log_in}, and try again"
        )
    if isinstance(error, RepositoryNotFoundError):
        near = _similar(name, endpoint)
        hint = f"; nearest there: {', '.join(near)}" if near else ""
        return DownloadError(f"the hub has no model {name}, or it is private (then type: {log_in}){hint}")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None and what == "not reachable":
        return UnreachableError(f"not reachable ({_reason(error)})")
    return DownloadError(f"{name}: {what} ({_reason(error)})")


def _similar(name: str, endpoint: str) -> list[str]:
    """Names of repositories like one that is not there: its owner's, or those that are called like it."""
    owner, _, model = name.partition("/")
    api = _api(endpoint)
    word = model.partition("-")[0]
    for query in (
        {"author": owner, "search": word},
        {"search": model},
        {"search": model.replace("-GGUF", "")},
    ):
        try:
            found = _within(REACH_SECONDS, lambda query=query: list(api.list_models(**query, limit=100)))  # type: ignore[misc]
        except Exception:  # the hint is worth no error of its own
            return []
        if found:
            names = [one_line(str(model.id)) for model in found]
            return difflib.get_close_matches(name, names, n=3, cutoff=0.0)
    return []


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return one_line(f"{type(error).__name__}: {text[0]}") if text else type(error).__name__


def _within(seconds: float, function: Callable[[], T]) -> T:
    """Run a function in a thread of its own; TimeoutError when it takes longer than that."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="sonoran-hub-probe")
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    raise errors[0] if errors else TimeoutError(f"no answer within {seconds:g} s")


def _progress_class(report: Callable[[int], None]) -> type[Any]:
    """A silent progress bar class that passes the bytes done on to ``report``."""
    from tqdm.auto import tqdm

    class Reporting(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)
            self.n = kwargs.get("initial", 0) or 0

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            report(int(self.n))
            return None

    return Reporting
